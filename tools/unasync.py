"""Make the synchronous client from the asynchronous one: `python tools/unasync.py`, or `--check` whether it is done.

The two are the same text but for the words below, so one cannot fall behind the other. What really differs, waiting and
sockets, is in the module `io` of each, written by hand.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ingle" / "client" / "aio"
TARGET = ROOT / "src" / "ingle" / "client" / "sync"
ROOMS = ("client.py", "connection.py", "session.py", "shell.py")

WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Client|Session|Shell|Connection|Iterator)\b", r"\1"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\baclose\b", "close"),
    (r"\bingle\.client\.aio\b", "ingle.client.sync"),
    # The docstrings' own words.
    (r"\n +Those of an `Client` may be coroutine functions\.", ""),
]

HEAD = "# Made from ../aio/{name} by tools/unasync.py: change that one, and run it.\n"


def made_from(name: str) -> str:
    text = (SOURCE / name).read_text("utf-8")
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    text = HEAD.format(name=name) + text
    # Shorter words make shorter lines, and another order of imports.
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
    for name in ROOMS:
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
