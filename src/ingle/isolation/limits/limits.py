"""Limits of a session: their names, their units, and those that the kernel applies to single processes.

Memory and processes are limited for the whole tree by its cgroup or by the watchdog. The other limits are set here from
outside, on a process that has not run user code yet. Its children inherit them.
"""

import contextlib
import os
import resource

from ingle.requests import SessionLimits
from ingle.settings import Settings
from ingle.support import processes

OOM_SCORE = 200
"""oom_score_adj of sessions, out of 1000: counts as much as a fifth of all memory."""

UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))

NAMES = {
    "memory": "memory limit",
    "processes": "process limit",
    "files": "open file limit",
    "file_size": "file size limit",
    "tmp": "temporary file limit",
    "disk": "disk limit",
}

MINIMUM = {"memory": 16 * 1024**2, "processes": 4, "files": 128}
"""What the interpreter of a session itself needs."""

ERRORS = {
    "[Errno 11]": ("processes",),
    "[Errno 24]": ("files",),
    "[Errno 27]": ("file_size",),
    "[Errno 28]": ("tmp", "disk"),
}
"""Limits by the error that Python raises for them (EAGAIN, EMFILE, EFBIG, ENOSPC)."""


def of_settings(settings: Settings) -> SessionLimits:
    """Return the operator's limits."""
    return SessionLimits(**{name: getattr(settings, f"limit_{name}") or None for name in NAMES})


def lower(first: SessionLimits, second: SessionLimits) -> SessionLimits:
    """Return the smaller value of each limit."""
    return SessionLimits(**{name: _smaller(getattr(first, name), getattr(second, name)) for name in NAMES})


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)


def words(name: str, value: int) -> str:
    """Return a limit as answers name it: `memory limit 2 GiB`."""
    if name in ("processes", "files"):
        return f"{NAMES[name]} {value}"
    for unit, short in UNITS:
        if value >= unit and value % unit == 0:
            return f"{NAMES[name]} {value // unit} {short}"
    return f"{NAMES[name]} {value} bytes"


def is_named(name: str, text: str) -> bool:
    """Return whether an answer's text begins with this limit, in the words of `words`."""
    return text.startswith(f"{NAMES[name]} ")


def behind(name: str, error: str, limits: SessionLimits) -> str | None:
    """Return the limit that caused a cell's error, if any."""
    if name == "MemoryError" and limits.memory is not None:
        return words("memory", limits.memory)
    for sign, names in ERRORS.items():
        if error.startswith(sign):
            found = [words(name, value) for name in names if (value := getattr(limits, name)) is not None]
            return " or ".join(found) or None
    return None


def set_for(pid: int, limits: SessionLimits, nice: int, *, memory_too: bool) -> None:
    """Set the limits of a process that has not started yet. A process that has just ended is ignored.

    `memory_too` is set without a cgroup: then at least no single process can exceed the memory limit.
    """
    memory = None
    if memory_too and limits.memory is not None:
        # Memory of libraries that were loaded before the fork does not count.
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
        # When memory is short the kernel kills session processes before their init and the server.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
        if nice:
            # Relative to the server's value, because an ordinary user cannot lower it.
            os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice))
