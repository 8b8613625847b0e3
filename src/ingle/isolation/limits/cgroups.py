"""cgroups, version 2 or 1: groups of processes whose memory, number and CPU share the kernel limits.

Each session's tree has a group below one of this server. A process joins before it runs user code, so its children are
in the group too. `Groups` reports which controllers are available; the watchdog does the rest. A server removes the
groups of dead servers. Every function blocks for a moment: moving a process may take 20 ms.
"""

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

MEMORY, PROCESSES, CPU = "memory", "pids", "cpu"
CONTROLLERS = (MEMORY, PROCESSES, CPU)

PREFIX = "ingle-"

CPU_WEIGHT = {1: ("cpu.shares", 1024, 262144), 2: ("cpu.weight", 100, 10000)}
"""By version: the file, the weight of one busy process, and the maximum."""

MEMORY_FILES = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max", "memory.swap.max")}
CONNECTIONS, CONNECTIONS_SHARE = "memory.kmem.tcp.limit_in_bytes", 4
KILLS = {1: "memory.oom_control", 2: "memory.events"}
USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass(frozen=True)
class Place:
    """Folder of the cgroup file system in which groups of one controller are made, and its version."""

    folder: Path
    version: int


@dataclass
class Group:
    """One group. Several workers of one tree may share it; the last holder removes it."""

    places: dict[str, Place]
    _kills_told: int = 0
    _refusals_told: int = 0
    _holders: int = field(default=1)
    outside: int = 0
    """Pid of an init whose worker was forked into the group while the init itself is outside."""

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> bool:
        """Drop one hold. Return True for the last one."""
        self._holders -= 1
        return self._holders == 0

    def open(self) -> list[int]:
        """Return descriptors with which an init puts its worker into the group. Raises OSError.

        Moving a whole process stops every fork on the machine for 10 ms and more. These two ways do not. In version 1
        a thread moves itself by writing `0` to `tasks`. In version 2 a process is forked into the group's folder.
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

    def opened_to(self, init: int) -> None:
        """Record that this init has put its worker into the group with the descriptors of `open`."""
        if any(place.version == 2 for place in self.places.values()):
            self.outside = init

    def complete(self) -> None:
        """Move the init in too, before it starts anything but its worker. Raises OSError."""
        if self.outside:
            self.attach(self.outside)
            self.outside = 0

    def attach(self, pid: int) -> None:
        """Move a process into the group; its later children will be in it too. Raises OSError."""
        for place in set(self.places.values()):
            _write(place.folder / "cgroup.procs", pid)

    def bound(self, memory: int | None, processes: int | None) -> None:
        """Set limits for the whole group; None changes nothing. Raises OSError."""
        if memory is not None and (place := self.places.get(MEMORY)) is not None:
            most, with_swap = MEMORY_FILES[place.version]
            _write(place.folder / most, memory)
            # The file does not exist if the kernel has no swap.
            with contextlib.suppress(OSError):
                _write(place.folder / with_swap, memory if place.version == 1 else 0)
            if place.version == 1:
                # Version 1 counts buffers of connections separately, and only if they have a limit.
                with contextlib.suppress(OSError):
                    _write(place.folder / CONNECTIONS, memory // CONNECTIONS_SHARE)
        if processes is not None and (place := self.places.get(PROCESSES)) is not None:
            _write(place.folder / "pids.max", processes)

    def take_kills(self) -> bool:
        """Return whether the kernel killed a process for memory since the last call."""
        place = self.places.get(MEMORY)
        kills = _counted(place.folder / KILLS[place.version], b"oom_kill") if place is not None else 0
        told, self._kills_told = self._kills_told, max(kills, self._kills_told)
        return kills > told

    def take_refusals(self) -> bool:
        """Return whether a process or thread was refused since the last call."""
        place = self.places.get(PROCESSES)
        refusals = _counted(place.folder / "pids.events", b"max") if place is not None else 0
        told, self._refusals_told = self._refusals_told, max(refusals, self._refusals_told)
        return refusals > told

    def memory(self) -> int | None:
        """Return the bytes that the group uses now, page cache included."""
        place = self.places.get(MEMORY)
        if place is None:
            return None
        try:
            return int((place.folder / USED[place.version]).read_bytes())
        except (OSError, ValueError):
            return None

    def remove(self) -> bool:
        """Remove the group if it has no processes, and return whether it is gone."""
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
    """The groups of this server. `make` returns None if no group can be made."""

    def __init__(self, places: dict[str, Place] | None = None) -> None:
        self._places = places or {}
        self._numbers = itertools.count(1)

    @classmethod
    def find(cls, root: Path = Path("/")) -> "Groups":
        """Create this server's own group wherever the system allows it."""
        name = f"{PREFIX}{_own_name(root)}"
        places: dict[str, Place] = {}
        for controller, base in _bases(root).items():
            own = base.folder / name
            try:
                _clear_dead(base.folder, root)
                own.mkdir(exist_ok=True)
                if base.version == 2:
                    _write(own / "cgroup.subtree_control", f"+{controller}")
                if controller == CPU:
                    # All sessions together weigh as much as one busy process on each CPU.
                    file, one, most = CPU_WEIGHT[base.version]
                    _write(own / file, min(most, one * (os.cpu_count() or 1)))
            except OSError:
                with contextlib.suppress(OSError):
                    own.rmdir()
                continue
            places[controller] = Place(own, base.version)
        return cls(places)

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that the kernel enforces."""
        return frozenset(self._places)

    def make(self) -> Group | None:
        """Return a new group without limits. After a first failure, return None for ever."""
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
        """Stop making groups, because a process could not be attached."""
        self._places = {}

    def close(self) -> None:
        for folder in {place.folder for place in self._places.values()}:
            _remove_tree(folder)


def _write(file: Path, value: int | str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _counted(file: Path, name: bytes) -> int:
    try:
        for line in file.read_bytes().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        pass
    return 0


# --- finding the folders ----------------------------------------------------------------------------------------------


def _bases(root: Path) -> dict[str, Place]:
    """Return by controller the folder in which this process may make groups, according to /proc."""
    try:
        mounts = _mounts((root / "proc/self/mountinfo").read_text())
        own = _own_paths((root / "proc/self/cgroup").read_text())
    except OSError:
        return {}
    found: dict[str, Place] = {}
    for controller in CONTROLLERS:
        for version, names, top, point in mounts:
            if version == 1 and controller in names and controller in own:
                folder = _below(root, point, top, own[controller])
                if folder is not None:
                    found[controller] = Place(folder, 1)
    for version, _, top, point in mounts:
        if version == 2 and "" in own:
            folder = _below(root, point, top, own[""])
            if folder is not None:
                wanted = [each for each in CONTROLLERS if each not in found]
                found.update(_unified(folder, root / point.lstrip("/"), wanted))
    return found


def _mounts(text: str) -> list[tuple[int, set[str], str, str]]:
    """Return version, controllers, mounted part of the tree and mount point of each cgroup mount."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options, *_ = [*after.split(), "", "", ""]
        fields = before.split()
        if kind in ("cgroup", "cgroup2") and len(fields) > 4:
            found.append((2 if kind == "cgroup2" else 1, set(options.split(",")), fields[3], fields[4]))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """Return this process's group for each controller; version 2 has the name ''."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _below(root: Path, point: str, top: str, own: str) -> Path | None:
    """Return the folder of a group. A container may see only its part of the tree, under another name."""
    within = own.removeprefix(top) if top != "/" and own.startswith(top) else own
    for path in (within, ""):
        folder = root / point.lstrip("/") / path.lstrip("/")
        if folder.is_dir():
            return folder
    return None


def _unified(own: Path, top: Path, wanted: list[str]) -> dict[str, Place]:
    """Find a folder of version 2. A group with processes cannot have limited children, so a parent may be needed."""
    base = own
    while wanted:
        try:
            if all(_delegated(base, controller) for controller in wanted):
                return {controller: Place(base, 2) for controller in wanted}
            if base == own and _alone_in(own):
                leaf = own / f"{PREFIX}server"
                leaf.mkdir(exist_ok=True)
                _write(leaf / "cgroup.procs", os.getpid())
                if all(_delegated(base, controller) for controller in wanted):
                    return {controller: Place(base, 2) for controller in wanted}
        except OSError:
            pass
        if base in (top, base.parent):
            break
        base = base.parent
    return {}


def _delegated(folder: Path, controller: str) -> bool:
    control = folder / "cgroup.subtree_control"
    if controller in control.read_text().split():
        return os.access(folder, os.W_OK)
    if controller not in (folder / "cgroup.controllers").read_text().split():
        return False
    try:
        _write(control, f"+{controller}")
    except OSError:
        return False
    return True


def _alone_in(folder: Path) -> bool:
    return (folder / "cgroup.procs").read_text().split() == [str(os.getpid())]


# --- groups of dead servers -------------------------------------------------------------------------------------------


def _own_name(root: Path) -> str:
    """Return a unique name of this process: pid namespace, pid, and start time, because pids are reused."""
    pid = os.getpid()
    return f"{_namespace(root)}-{pid}-{_began(root, pid)}"


def _namespace(root: Path) -> int:
    try:
        return os.stat(root / "proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _began(root: Path, pid: int) -> int:
    try:
        return int((root / f"proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _clear_dead(folder: Path, root: Path) -> None:
    """Remove groups of dead servers. A group that has a process stays."""
    for each in folder.glob(f"{PREFIX}*-*-*"):
        try:
            namespace, pid, began = (int(part) for part in each.name.removeprefix(PREFIX).split("-"))
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
