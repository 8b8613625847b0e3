"""Where this process may make cgroups: the mounted hierarchies, of version 2 or 1, and its own place in them.

Every function reads small files and blocks for a moment.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MEMORY, PROCESSES, CPU = "memory", "pids", "cpu"
CONTROLLERS = (MEMORY, PROCESSES, CPU)

PREFIX = "ingle-"


@dataclass(frozen=True)
class Place:
    """A folder of the cgroup file system in which groups can be made for a controller, and its version."""

    folder: Path
    version: int


class Mount(NamedTuple):
    """A mounted hierarchy: its version, its controllers, the part of the tree that is mounted, and the mount point."""

    version: int
    controllers: set[str]
    top: str
    point: str


def find_places(root: Path) -> dict[str, Place]:
    """Return for each controller the folder in which this process may make groups, as far as the files tell."""
    try:
        mounts = read_mounts((root / "proc/self/mountinfo").read_text())
        own = _own_paths((root / "proc/self/cgroup").read_text())
    except OSError:
        return {}
    found: dict[str, Place] = {}
    for mount in mounts:
        for controller in CONTROLLERS:
            if mount.version == 1 and controller in mount.controllers and controller in own:
                folder = _folder_of(root, mount, own[controller])
                if folder is not None:
                    found[controller] = Place(folder, 1)
    for mount in mounts:
        if mount.version == 2 and "" in own:
            folder = _folder_of(root, mount, own[""])
            wanted = [each for each in CONTROLLERS if each not in found]
            if folder is not None and wanted:
                base = _find_delegated(folder, root / mount.point.lstrip("/"), wanted)
                if base is not None:
                    found.update({controller: Place(base, 2) for controller in wanted})
    return found


def find_groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group for a controller and of all groups above it, as far as mounted."""
    try:
        mounts = read_mounts((root / "proc/self/mountinfo").read_text())
        own = _own_paths((root / "proc/self/cgroup").read_text())
    except OSError:
        return []
    found: list[Path] = []
    for mount in mounts:
        name = controller if mount.version == 1 else ""
        if name in own and (mount.version == 2 or controller in mount.controllers):
            folder, top = _folder_of(root, mount, own[name]), root / mount.point.lstrip("/")
            while folder is not None:
                found.append(folder)
                folder = folder.parent if folder not in (top, folder.parent) else None
    return found


def read_mounts(text: str) -> list[Mount]:
    """Return the cgroup hierarchies in the text of a mountinfo file."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options, *_ = [*after.split(), "", "", ""]
        fields = before.split()
        if kind in ("cgroup", "cgroup2") and len(fields) > 4:
            found.append(Mount(2 if kind == "cgroup2" else 1, set(options.split(",")), fields[3], fields[4]))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """Return this process's group for each controller; the group of version 2 has the name ''."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _folder_of(root: Path, mount: Mount, own: str) -> Path | None:
    """Return the folder of a group. A container may see only its own part of the tree, under another name."""
    within = own.removeprefix(mount.top) if mount.top != "/" and own.startswith(mount.top) else own
    for path in (within, ""):
        folder = root / mount.point.lstrip("/") / path.lstrip("/")
        if folder.is_dir():
            return folder
    return None


def _find_delegated(own: Path, top: Path, wanted: list[str]) -> Path | None:
    """Return the nearest group, at or above this process's own one, that can have groups with these controllers.

    In version 2 a group with processes in it can have no such groups below it. If this process is alone in its group,
    it moves into a group below.
    """
    base = own
    while True:
        try:
            if all(_delegates(base, controller) for controller in wanted):
                return base
            if base == own and (base / "cgroup.procs").read_text().split() == [str(os.getpid())]:
                leaf = own / f"{PREFIX}server"
                leaf.mkdir(exist_ok=True)
                write(leaf / "cgroup.procs", os.getpid())
                if all(_delegates(base, controller) for controller in wanted):
                    return base
        except OSError:
            pass
        if base in (top, base.parent):
            return None
        base = base.parent


def _delegates(folder: Path, controller: str) -> bool:
    """Return whether groups below this one can have the controller, and enable it there if need be."""
    control = folder / "cgroup.subtree_control"
    if controller in control.read_text().split():
        return os.access(folder, os.W_OK)
    if controller not in (folder / "cgroup.controllers").read_text().split():
        return False
    try:
        write(control, f"+{controller}")
    except OSError:
        return False
    return True


def write(file: Path, value: int | str) -> None:
    """Write a value to a file of the cgroup file system. Raises OSError."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)
