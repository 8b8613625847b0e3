"""Generates the synchronous client from the asynchronous one. With `--check`, only report modules that are out of date.

The two differ only in the words below, so they cannot diverge. Waiting and sockets are in the hand-written module `io`
of each.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ingle" / "client" / "aio"
TARGET = ROOT / "src" / "ingle" / "client" / "sync"
MODULES = (
    "attached.py",
    "client.py",
    "connection.py",
    "event_reader.py",
    "files.py",
    "provided.py",
    "session.py",
    "shell.py",
    "tools.py",
    "transcripts.py",
    "trials.py",
    "values.py",
)

WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (
        r"\bAsync(Attached|CellReader|Client|Connection|EventReader|Files|Iterator|Provided|Session|Shell|Tools|"
        r"Transcripts|Trials|Values)\b",
        r"\1",
    ),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclosing\b", "closing"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
    (r"\baiter_raw\b", "iter_raw"),
    (r"\bingle\.client\.aio\b", "ingle.client.sync"),
    # Sentences about coroutines in docstrings.
    (r"\n +Callbacks of an `Client` may be coroutine functions\.", ""),
]

HEAD = "# Generated from ../aio/{name} by tools/unasync.py: edit that file, and run the script.\n"


def made_from(name: str) -> str:
    text = (SOURCE / name).read_text("utf-8")
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    text = HEAD.format(name=name) + text
    # Shorter words change line breaks and the order of imports.
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        done = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--stdin-filename", TARGET / name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    behind = []
    for name in MODULES:
        target, text = TARGET / name, made_from(name)
        if not target.exists() or target.read_text("utf-8") != text:
            behind.append(name)
            if not check:
                target.write_text(text, "utf-8")
    if check and behind:
        print(f"not up to date in {TARGET}: {', '.join(behind)}; run `python tools/unasync.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
