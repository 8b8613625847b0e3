"""Groups of processes whose memory, number and share of the CPU the kernel bounds: cgroups, version 2 or 1.

One group for each session's tree, below one of this server's own, which is made where this process itself is. A
process is in before it runs anybody's code, so whatever it starts is in the group too. Where the system gives no
group, or not all controllers, `Groups` says which bounds hold, and the watchdog does the rest. Groups of servers that
died are removed by the next one. Every function here blocks, for a moment: to move a process may take 20 ms.
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
"""The file, what one busy process counts, and the most there is."""

MEMORY_FILES = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max", "memory.swap.max")}
CONNECTIONS, CONNECTIONS_SHARE = "memory.kmem.tcp.limit_in_bytes", 4
KILLS = {1: "memory.oom_control", 2: "memory.events"}
USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass(frozen=True)
class Place:
    """Where groups can be made for one controller: a folder of the cgroup file system, and its version."""

    folder: Path
    version: int


@dataclass
class Group:
    """One group. Several workers of one tree may share it; the last that lets go removes it."""

    places: dict[str, Place]
    _kills_told: int = 0
    _refusals_told: int = 0
    _holders: int = field(default=1)
    outside: int = 0
    """An init whose worker was born into the group, and which is not in it itself."""

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> bool:
        """True for the last who holds it."""
        self._holders -= 1
        return self._holders == 0

    def open(self) -> list[int]:
        """Descriptors by which an init brings its worker in. Raises OSError.

        To move a process, with all its threads, the kernel holds every fork of the machine still and waits until all
        processors have noticed: 10 ms and more. Two ways need none of that. In version 1 a thread can move itself, by
        writing `0` to `tasks`. In version 2 a process can be forked into a group, by the group's folder.
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
        """This init has brought its worker in, by what `open` gave it."""
        if any(place.version == 2 for place in self.places.values()):
            self.outside = init

    def complete(self) -> None:
        """Before an init starts anything but its worker: that is to be in the group, too. Raises OSError."""
        if self.outside:
            self.attach(self.outside)
            self.outside = 0

    def attach(self, pid: int) -> None:
        """Put a process in; those that it starts from now on are in, too. Raises OSError."""
        for place in set(self.places.values()):
            _write(place.folder / "cgroup.procs", pid)

    def bound(self, memory: int | None, processes: int | None) -> None:
        """Set the bounds for all of the group together; None changes nothing. Raises OSError."""
        if memory is not None and (place := self.places.get(MEMORY)) is not None:
            most, with_swap = MEMORY_FILES[place.version]
            _write(place.folder / most, memory)
            # Without swap in the kernel there is no such file.
            with contextlib.suppress(OSError):
                _write(place.folder / with_swap, memory if place.version == 1 else 0)
            if place.version == 1:
                # What connections hold is counted apart there, and only where it is bounded.
                with contextlib.suppress(OSError):
                    _write(place.folder / CONNECTIONS, memory // CONNECTIONS_SHARE)
        if processes is not None and (place := self.places.get(PROCESSES)) is not None:
            _write(place.folder / "pids.max", processes)

    def take_kills(self) -> bool:
        """Whether the kernel has killed something in it for want of memory since this was last asked."""
        place = self.places.get(MEMORY)
        kills = _counted(place.folder / KILLS[place.version], b"oom_kill") if place is not None else 0
        told, self._kills_told = self._kills_told, max(kills, self._kills_told)
        return kills > told

    def take_refusals(self) -> bool:
        """Whether a process or thread was refused in it since this was last asked."""
        place = self.places.get(PROCESSES)
        refusals = _counted(place.folder / "pids.events", b"max") if place is not None else 0
        told, self._refusals_told = self._refusals_told, max(refusals, self._refusals_told)
        return refusals > told

    def memory(self) -> int | None:
        """Bytes that all of it uses now, files it has read or written included."""
        place = self.places.get(MEMORY)
        if place is None:
            return None
        try:
            return int((place.folder / USED[place.version]).read_bytes())
        except (OSError, ValueError):
            return None

    def remove(self) -> bool:
        """Whether it is gone; as long as a process is left in it, it is not."""
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
    """The groups of this server. Without a place to make them in, `make` gives None."""

    def __init__(self, places: dict[str, Place] | None = None) -> None:
        self._places = places or {}
        self._numbers = itertools.count(1)

    @classmethod
    def find(cls, root: Path = Path("/")) -> "Groups":
        """Make this server's own group wherever the system allows it."""
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
                    # All sessions together count as much as one busy process on each processor.
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
        """What is bounded by the kernel."""
        return frozenset(self._places)

    def make(self) -> Group | None:
        """A new group without bounds; None where there can be none, which is then so for good."""
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
        """A process could not be attached: this system does not really give groups."""
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


# --- where ------------------------------------------------------------------------------------------------------------


def _bases(root: Path) -> dict[str, Place]:
    """For each controller the folder in which this process may make groups, as far as the files tell."""
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
    """Version, controllers, the part of the tree that is mounted, and where."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options, *_ = [*after.split(), "", "", ""]
        fields = before.split()
        if kind in ("cgroup", "cgroup2") and len(fields) > 4:
            found.append((2 if kind == "cgroup2" else 1, set(options.split(",")), fields[3], fields[4]))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """This process's group for each controller; that of version 2 has the name ''."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _below(root: Path, point: str, top: str, own: str) -> Path | None:
    """The folder of a group. A container may see only its own part of the tree, under the same or another name."""
    within = own.removeprefix(top) if top != "/" and own.startswith(top) else own
    for path in (within, ""):
        folder = root / point.lstrip("/") / path.lstrip("/")
        if folder.is_dir():
            return folder
    return None


def _unified(own: Path, top: Path, wanted: list[str]) -> dict[str, Place]:
    """Version 2: a group with processes in it can have no bounded groups below it, so one above may have to do."""
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
    """Who we are: the namespace of our number, our number, and when we began, since numbers come again."""
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
    """Remove what servers left that are gone. A group with a process in it stays, whoever it belongs to."""
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
