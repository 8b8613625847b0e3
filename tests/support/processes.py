"""Processes that tests start, found by an environment variable."""

import os
from pathlib import Path
from uuid import uuid4

MARK = "LC_INGLETEST"
"""Name of the variable. Every isolation level passes variables named LC_* on to its processes."""


def own_mark() -> dict[str, str]:
    """Return the variable with a new mark, for a server that lives longer than one test.

    With the mark of the run, its processes would count as left behind by the shared services, which stop meanwhile.
    """
    return {MARK: uuid4().hex}


def marked_processes(mark: str) -> list[tuple[int, str]]:
    """Return pid and state of every process, zombies too, that was started with this mark in its environment."""
    found = []
    needle = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                environ = file.read()
            if needle in environ and needle in environ.split(b"\0"):
                found.append((int(name), Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]))
        except OSError:
            continue
    return found


def command_line(pid: int) -> str:
    """Return the command line of a process, empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_idle_init(pid: int) -> bool:
    """Return whether a process is an init without children, which waits a while for the next session."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        return name == "ingle-init" and not Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return False
