"""How many sessions this machine can hold: its file descriptors, processes and memory, and what a session takes.

The bound with the lowest number counts. It is named wherever the number is told, together with the way to raise it.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingle import errors
from ingle.capacity import Capacity
from ingle.isolation.limits.cgroup_mounts import MEMORY, PROCESSES, find_groups
from ingle.settings import Settings

DESCRIPTORS_PER_SESSION = 1
"""File descriptors of the server for an idle session: the socket of its init, which keeps the other five."""

DESCRIPTORS_OF_PROXY = 1
"""File descriptors more for a sandbox whose network is an allow-list: the socket on which its proxy listens."""

SHARE_OF_RUNNING = 4
"""One part in so many of the file descriptors is for sessions that are in use, with six each."""

PROCESSES_PER_SESSION = 2
"""Its init and its worker."""

MEMORY_PER_SESSION = 2 * 1024 * 1024
"""Bytes that an idle session takes at least; the libraries of its interpreter are shared."""

OWN_DESCRIPTORS = 256
"""File descriptors of the server itself: log files, zygotes, files that are being read."""

SPARE_DESCRIPTORS = 128
"""File descriptors that must be free when a session begins: those of all starts under way, and of answers."""

SHARE_OF_OTHERS = 8
"""One part in so many of processes and memory is left to everything that is not an idle session."""

SHARE_OF_CONNECTIONS = 4
"""Connections take at most one part in so many of the file descriptors."""

UNLIMITED = 1 << 62
"""Version 1 of cgroups has a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class Bound:
    """One resource: how many sessions it allows, and what it is in words."""

    sessions: int
    name: str
    remedy: str


def measure(settings: Settings, network: str = "full", root: Path = Path("/")) -> Capacity:
    """Return how many sessions with this network may live at once. Reads a few small files."""
    bounds = [*_descriptors(settings, network), *_processes(root), *_memory(root)]
    if settings.max_sessions:
        bounds.append(Bound(settings.max_sessions, f"the setting max_sessions is {settings.max_sessions}", "raise it"))
    lowest = min(bounds, key=lambda bound: bound.sessions)
    return Capacity(max(1, lowest.sessions), lowest.name, lowest.remedy, _connections(settings))


def raise_file_limit() -> None:
    """Allow this process as many file descriptors as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return


def check_descriptors() -> None:
    """Raise TooManySessions while too few file descriptors are free for one more session in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if used_descriptors(min(SPARE_DESCRIPTORS, limit // 4)) > 1:
        raise errors.TooManySessions(
            None, "almost all file descriptors of the server are in use", "raise the limit of open files"
        )


def used_descriptors(more: int = 0) -> float:
    """Return the share of file descriptors that would be in use with so many more."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0.0 if limit == resource.RLIM_INFINITY else (_open_descriptors() + more) / limit


def _open_descriptors() -> int:
    try:
        # Since Linux 6.2 the size of this folder is the number of its entries.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # without /proc nothing is known


def _file_limit() -> int | None:
    # The server raises its own limit to this one when it starts.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _connections(settings: Settings) -> int:
    """Return how many connections may be open: the setting, or fewer where file descriptors are few."""
    limit = _file_limit()
    return settings.max_connections if limit is None else min(settings.max_connections, limit // SHARE_OF_CONNECTIONS)


def _descriptors(settings: Settings, network: str) -> Iterator[Bound]:
    limit = _file_limit()
    if limit is None:
        return
    each = DESCRIPTORS_PER_SESSION + (DESCRIPTORS_OF_PROXY if network == "allowlist" else 0)
    others = min(OWN_DESCRIPTORS + _connections(settings), limit // 2)
    yield Bound(
        (limit - others - limit // SHARE_OF_RUNNING) // each,
        f"this process may open {limit} files, and an idle session takes {each}",
        "raise the hard limit of open files (`ulimit -Hn`, or LimitNOFILE= in systemd)",
    )


def _processes(root: Path) -> Iterator[Bound]:
    limits = [
        (_number(root / "proc/sys/kernel/pid_max"), "kernel.pid_max", "raise it with sysctl"),
        (_number(root / "proc/sys/kernel/threads-max"), "kernel.threads-max", "raise it with sysctl"),
        (_lowest(root, PROCESSES, "pids.max"), "pids.max of this control group", "raise it (TasksMax= in systemd)"),
    ]
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() and limit != resource.RLIM_INFINITY:
        # Root is not held to it.
        limits.append((limit, "the limit of this user's processes", "raise it (`ulimit -u`)"))
    for number, name, remedy in limits:
        if number is not None:
            yield Bound(_without_others(number) // PROCESSES_PER_SESSION, f"{name} is {number}", remedy)


def _memory(root: Path) -> Iterator[Bound]:
    total = None
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limit = _lowest(root, MEMORY, "memory.max", "memory.limit_in_bytes")
    for number, name, remedy in (
        (total, "of this machine", "use a machine with more memory"),
        (limit, "that this control group may use", "raise it (MemoryMax= in systemd)"),
    ):
        if number is not None:
            text = f"the memory {name} is {number / 1024**3:.1f} GiB"
            yield Bound(_without_others(number) // MEMORY_PER_SESSION, text, remedy)


def _without_others(number: int) -> int:
    return number - number // SHARE_OF_OTHERS


def _lowest(root: Path, controller: str, *files: str) -> int | None:
    """Return the lowest limit of this process's control group and of those above it."""
    numbers = [_number(folder / file) for folder in find_groups(root, controller) for file in files]
    return min((number for number in numbers if number is not None and number < UNLIMITED), default=None)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
