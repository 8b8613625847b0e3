"""`python tools/install.py WHAT...`: pip install, with one line of progress instead of a long log.

The line says what pip does and for how long. If pip fails, its own last lines follow.
"""

import re
import subprocess
import sys
import time

STEP = re.compile(r"\s*(Obtaining|Collecting|Downloading|Using cached|Building|Installing \w+)\b[\s:]*(\S*)")
MAX_LINES = 15
WIDTH = 78


def main(what: list[str]) -> int:
    began = time.monotonic()
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check", *what]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert pip.stdout is not None
    terminal = sys.stdout.isatty()
    lines: list[str] = []
    packages: set[str] = set()
    for line in pip.stdout:
        lines.append(line)
        found = STEP.match(line)
        if found is None:
            continue
        if found[1] == "Collecting":
            packages.add(re.split(r"[^\w.-]", found[2])[0])
        if terminal:
            done = f"{time.monotonic() - began:3.0f} s, {len(packages)} packages: {found[1].lower()} {found[2]}"
            print(f"\r\x1b[K{done[:WIDTH]}", end="", flush=True)
    code = pip.wait()
    if terminal:
        print("\r\x1b[K", end="")
    if code:
        print("".join(lines[-MAX_LINES:]), end="", file=sys.stderr)
        print(f"pip could not install {' '.join(what)}; its last lines are above", file=sys.stderr)
    else:
        print(f"installed in {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
