"""Limits that each process of a session sets for itself, before it runs user code. Its children inherit them.

Every process may lower its own limits. A server of root may lower those of another user's process only with
CAP_SYS_RESOURCE, which containers usually take away.
"""

import os
import resource

OOM_SCORE = 200
"""oom_score_adj of sessions, out of 1000: counts as much as a fifth of all memory. When memory is short, the kernel
kills their processes before their init and the server."""

MAX_NICE = 19

NAMES = ("files", "file_size", "memory", "nice")


class ProcessLimits:
    """Limits of one process; 0 is no limit."""

    def __init__(self, files: int = 0, file_size: int = 0, memory: int = 0, nice: int = 0) -> None:
        self.files = files
        self.file_size = file_size
        self.memory = memory
        """Bytes that the process may allocate in addition to the libraries that were loaded before."""
        self._priority = min(MAX_NICE, os.getpriority(os.PRIO_PROCESS, 0) + nice)

    @classmethod
    def of(cls, given: dict[str, int]) -> "ProcessLimits":
        """Return the limits of single processes among those of a session."""
        return cls(**{name: given[name] for name in NAMES if name in given})

    def apply(self) -> None:
        """Set the limits for this process. They are never raised, so this may be repeated. Raises OSError."""
        memory = self.memory and self.memory + _data_memory()
        for kind, value in (
            (resource.RLIMIT_NOFILE, self.files),
            (resource.RLIMIT_FSIZE, self.file_size),
            (resource.RLIMIT_DATA, memory),
        ):
            if value:
                lower(kind, value)
        lower(resource.RLIMIT_CORE, 0)
        if os.getpriority(os.PRIO_PROCESS, 0) < self._priority:
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)
        _raise_oom_score()


def lower(kind: int, value: int) -> None:
    """Lower a limit of this process for good. Raises OSError."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _data_memory() -> int:
    """Return the bytes that this process has allocated."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _raise_oom_score() -> None:
    """Raise the score of this process. It may be higher already, and no process may lower it again."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < OOM_SCORE:
                file.seek(0)
                file.write(str(OOM_SCORE))
    except OSError:
        pass  # without it the kernel chooses by memory alone
