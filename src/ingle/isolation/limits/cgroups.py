"""Cgroups of version 2 or 1: groups of processes whose memory, number and CPU share the kernel limits.

Each session's tree has one group, below a group of this server. A process joins it before it runs a user's code, so
all that it starts is in the group too. Where the system offers no groups, or not all controllers, `Groups` says which
limits hold, and the watchdog does the rest. Groups of dead servers are removed by the next server. Every function
blocks for a moment; to move a process may take 20 ms.
"""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from ingle.isolation.limits.cgroup_mounts import CPU, MEMORY, PREFIX, PROCESSES, Place, find_places, write
from ingle.support import processes


@dataclass(frozen=True)
class Files:
    """Names of control files in one version of cgroups."""

    memory_max: str
    swap_max: str
    memory_used: str
    memory_events: str
    cpu_weight: str
    cpu_weight_of_one: int
    """What one busy process counts."""
    max_cpu_weight: int


FILES = {
    1: Files(
        memory_max="memory.limit_in_bytes",
        swap_max="memory.memsw.limit_in_bytes",
        memory_used="memory.usage_in_bytes",
        memory_events="memory.oom_control",
        cpu_weight="cpu.shares",
        cpu_weight_of_one=1024,
        max_cpu_weight=262144,
    ),
    2: Files(
        memory_max="memory.max",
        swap_max="memory.swap.max",
        memory_used="memory.current",
        memory_events="memory.events",
        cpu_weight="cpu.weight",
        cpu_weight_of_one=100,
        max_cpu_weight=10000,
    ),
}

TCP_MEMORY_FILE, TCP_MEMORY_SHARE = "memory.kmem.tcp.limit_in_bytes", 4
"""Version 1 counts the memory of connections apart. They may have a quarter of the limit."""


@dataclass
class Group:
    """One group. Several workers of one tree may share it, and the last one removes it."""

    places: dict[str, Place]
    _kills_seen: int = 0
    _refusals_seen: int = 0
    _holders: int = 1

    def hold(self) -> None:
        """Note one more worker in the group."""
        self._holders += 1

    def let_go(self) -> bool:
        """Note that a worker is gone. Return True for the last one."""
        self._holders -= 1
        return self._holders == 0

    def open(self) -> list[int]:
        """Return descriptors by which an init and its worker enter the group. Raises OSError.

        To move a process with all its threads, the kernel may wait for 10 ms and more. The worker need not wait for
        that. In version 1 a thread can move itself, by writing `0` to `tasks`. In version 2 a worker can be forked into
        a group, by the group's folder. Its init moves while the worker starts.
        """
        opened: list[int] = []
        try:
            for place in set(self.places.values()):
                if place.version == 1:
                    fd = os.open(place.folder / "tasks", os.O_WRONLY | os.O_CLOEXEC)
                else:
                    fd = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.append(fd)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def attach(self, pid: int) -> None:
        """Move a process into the group. Processes that it starts later are in it, too. Raises OSError."""
        for place in set(self.places.values()):
            write(place.folder / "cgroup.procs", pid)

    def bound(self, memory: int | None, processes: int | None) -> None:
        """Set the limits for the whole group. None changes nothing. Raises OSError."""
        if memory is not None and (place := self.places.get(MEMORY)) is not None:
            files = FILES[place.version]
            write(place.folder / files.memory_max, memory)
            # A kernel without swap has no such file. In version 1 the limit includes memory.
            with contextlib.suppress(OSError):
                write(place.folder / files.swap_max, memory if place.version == 1 else 0)
            if place.version == 1:
                with contextlib.suppress(OSError):
                    write(place.folder / TCP_MEMORY_FILE, memory // TCP_MEMORY_SHARE)
        if processes is not None and (place := self.places.get(PROCESSES)) is not None:
            write(place.folder / "pids.max", processes)

    def limit(self, controller: str) -> int | None:
        """Return the limit that is in force for memory or processes; None if there is none."""
        place = self.places[controller]
        name = FILES[place.version].memory_max if controller == MEMORY else "pids.max"
        text = processes.read(f"{place.folder}/{name}").strip()
        return int(text) if text.isdigit() else None

    def take_kills(self) -> bool:
        """Return whether the kernel has killed a process in it for lack of memory since the last call."""
        place = self.places.get(MEMORY)
        kills = _counted(place.folder / FILES[place.version].memory_events, b"oom_kill") if place is not None else 0
        seen, self._kills_seen = self._kills_seen, max(kills, self._kills_seen)
        return kills > seen

    def take_refusals(self) -> bool:
        """Return whether a process or thread was refused in it since the last call."""
        place = self.places.get(PROCESSES)
        refusals = _counted(place.folder / "pids.events", b"max") if place is not None else 0
        seen, self._refusals_seen = self._refusals_seen, max(refusals, self._refusals_seen)
        return refusals > seen

    def memory(self) -> int | None:
        """Return the bytes that the group uses now, including cached files."""
        place = self.places.get(MEMORY)
        if place is None:
            return None
        try:
            return int((place.folder / FILES[place.version].memory_used).read_bytes())
        except (OSError, ValueError):
            return None

    def remove(self) -> bool:
        """Remove the group. Return False while a process is left in it."""
        gone = True
        for folder in {place.folder for place in self.places.values()}:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class Groups:
    """The groups of this server. Without a place to make them in, `make` returns None."""

    def __init__(self, places: dict[str, Place] | None = None) -> None:
        self._places = places or {}
        self._own = {place.folder for place in self._places.values()}
        self._numbers = itertools.count(1)

    @classmethod
    def find(cls, root: Path = Path("/")) -> "Groups":
        """Make this server's own group wherever the system allows it, and remove those of dead servers."""
        name = f"{PREFIX}{_own_name(root)}-{next(_servers)}"
        places: dict[str, Place] = {}
        for controller, base in find_places(root).items():
            own = base.folder / name
            try:
                _clear_dead(base.folder, root)
                own.mkdir(exist_ok=True)
                if base.version == 2:
                    write(own / "cgroup.subtree_control", f"+{controller}")
                if controller == CPU:
                    # All sessions together count as much as one busy process on each processor.
                    files = FILES[base.version]
                    weight = min(files.max_cpu_weight, files.cpu_weight_of_one * (os.cpu_count() or 1))
                    write(own / files.cpu_weight, weight)
            except OSError:
                # In version 2 one folder serves all controllers, and another one may have it already.
                if Place(own, base.version) not in places.values():
                    with contextlib.suppress(OSError):
                        own.rmdir()
                continue
            places[controller] = Place(own, base.version)
        return cls(places)

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers whose limits the kernel enforces."""
        return frozenset(self._places)

    def make(self) -> Group | None:
        """Make a group without limits. Return None, from then on always, where that is not possible."""
        if not self._places:
            return None
        number = str(next(self._numbers))
        places: dict[str, Place] = {}
        try:
            for controller, place in self._places.items():
                folder = place.folder / number
                folder.mkdir(exist_ok=True)
                places[controller] = Place(folder, place.version)
        except OSError:
            self._places = {}
            Group(places).remove()
            return None
        return Group(places)

    def give_up(self) -> None:
        """Make no more groups: a process could not be attached, so this system does not really offer them."""
        self._places = {}

    def close(self) -> None:
        """Remove this server's groups, as far as no process is left in them."""
        for folder in self._own:
            _remove_tree(folder)


def _counted(file: Path, name: bytes) -> int:
    """Return a counter in a file of names and values; 0 if there is none."""
    try:
        for line in file.read_bytes().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        pass
    return 0


# --- groups of dead servers -------------------------------------------------------------------------------------------


_servers = itertools.count(1)
"""Numbers of the servers in this process. Each has a group of its own, which ends with it."""


def _own_name(root: Path) -> str:
    """Return the name of this process in groups: pid namespace, process id and start time, since ids are reused."""
    pid = os.getpid()
    return f"{_namespace(root)}-{pid}-{_began(root, pid)}"


def _namespace(root: Path) -> int:
    try:
        return os.stat(root / "proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _began(root: Path, pid: int) -> int:
    """Return the start time of a process, in clock ticks since the boot; 0 if it is gone."""
    try:
        return int((root / f"proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _clear_dead(folder: Path, root: Path) -> None:
    """Remove the groups of dead servers. A group with a process in it stays."""
    for each in folder.glob(f"{PREFIX}*-*-*"):
        try:
            namespace, pid, began, *_ = (int(part) for part in each.name.removeprefix(PREFIX).split("-"))
        except ValueError:
            continue
        if namespace == _namespace(root) and _began(root, pid) != began:
            _remove_tree(each)


def _remove_tree(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for below in folder.iterdir():
            if below.is_dir():
                with contextlib.suppress(OSError):
                    below.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
