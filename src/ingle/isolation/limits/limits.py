"""What a session may use: the limits in force, how each is named, and those that the kernel keeps for one process.

Memory and processes are bounded for the whole tree, by its cgroup or by the watchdog. What is bounded for each process
is set here, from outside, on a process that has not run anybody's code yet: all that it starts inherits it.
"""

import contextlib
import os
import resource

from ingle.requests import SessionLimits
from ingle.settings import Settings
from ingle.support import processes

EXPENDABLE = 200
"""Of 1000; it counts as much as a fifth of all memory."""

UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))

NAMES = {
    "memory": "memory limit",
    "processes": "process limit",
    "files": "open file limit",
    "file_size": "file size limit",
    "tmp": "temporary file limit",
    "disk": "disk limit",
}

LEAST = {"memory": 16 * 1024**2, "processes": 4, "files": 128}
"""What the interpreter of a session needs itself."""

ERRORS = {
    "[Errno 11]": ("processes",),
    "[Errno 24]": ("files",),
    "[Errno 27]": ("file_size",),
    "[Errno 28]": ("tmp", "disk"),
}
"""What Python says when a limit of a process is reached (EAGAIN, EMFILE, EFBIG, ENOSPC)."""


def of_settings(settings: Settings) -> SessionLimits:
    """The operator's."""
    return SessionLimits(**{name: getattr(settings, f"limit_{name}") or None for name in NAMES})


def lower(first: SessionLimits, second: SessionLimits) -> SessionLimits:
    """The smaller of each."""
    return SessionLimits(**{name: _smaller(getattr(first, name), getattr(second, name)) for name in NAMES})


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)


def words(name: str, value: int) -> str:
    """A limit as an answer names it: `memory limit 2 GiB`."""
    if name in ("processes", "files"):
        return f"{NAMES[name]} {value}"
    for unit, short in UNITS:
        if value >= unit and value % unit == 0:
            return f"{NAMES[name]} {value // unit} {short}"
    return f"{NAMES[name]} {value} bytes"


def behind(name: str, error: str, limits: SessionLimits) -> str | None:
    """The limit that a cell's error tells of, if it does."""
    if name == "MemoryError" and limits.memory is not None:
        return words("memory", limits.memory)
    for sign, names in ERRORS.items():
        if error.startswith(sign):
            found = [words(name, value) for name in names if (value := getattr(limits, name)) is not None]
            return " or ".join(found) or None
    return None


def set_for(pid: int, limits: SessionLimits, nice: int, *, memory_too: bool) -> None:
    """The limits of each process, on one that has not begun. One that has just gone is told as always.

    `memory_too`: there is no cgroup that does it, so at least no single process shall get more.
    """
    memory = None
    if memory_too and limits.memory is not None:
        # What it has of the libraries that were loaded before it was forked, it is not asked to pay for.
        memory = limits.memory + processes.data_memory(pid)
    wanted = {
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: memory,
    }
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for kind, value in wanted.items():
            if value is not None:
                hard = resource.prlimit(pid, kind)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.prlimit(pid, kind, (value, value))
        # When memory is short a session's processes go first, before its init and before the server.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(str(EXPENDABLE))
        if nice:
            # Relative to ours, which an ordinary user cannot get below.
            os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice))
