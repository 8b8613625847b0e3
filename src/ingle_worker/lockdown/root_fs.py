"""The root that a sandboxed session sees: an allow-list, read-only, with a few places of the session's own.

It is built once, by the process that the zygote is started from, and the zygote lives in it: nothing else of the
host's files is in its mount namespace, so there is nothing to leave out later. A session takes a copy of that
namespace and lays its own /proc, /tmp, /dev/shm, terminals and workspace into it. Paths are the host's, so that what
one side says of a file is true for the other.
"""

import _socket
import fcntl
import os
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ingle_worker.lockdown import kernel_calls

if TYPE_CHECKING:
    # Not for `boot`, whose whole start somebody waits for.
    from ingle_worker.wire import messages

BUILD = "/tmp"
"""Any folder that is surely there: the new root is mounted over it, and then takes the place of `/`."""

HIDDEN = "/.ingle"
"""What the inits use before a session begins, and take away then."""

OTHER_TMP, OTHER_FOLDER = "/var/tmp", "/tmp/.other"
"""Bounded together with /tmp: it is a folder of that, under its own path."""

OLD = HIDDEN + "/old"
DATA = HIDDEN + "/data"
OLD_PLACES = (("/proc", HIDDEN + "/proc"), (OTHER_TMP, HIDDEN + "/other"), ("/tmp", HIDDEN + "/tmp"))
"""What the zygote has for itself, and where a session's room has it until it is closed."""

PRIVATE = ("/tmp", "/dev/shm", OTHER_TMP)
"""Where every session has a file system of its own. What the host has below these is laid in again, one by one."""

HOME = "/home/session"
HOME_FOLDER = "/tmp/.home"
NAME = "session"
ACCOUNTS = ".accounts"
"""Below the data folder, which each session has one of its own for: who it is."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
SHOWN = (
    *("/etc/alternatives", "/etc/ssl/certs", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/ca-certificates"),
    *("/etc/fonts", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
COPIED = tuple(
    f"/etc/{name}"
    for name in (
        *("ld.so.cache", "ld.so.conf", "localtime", "timezone", "nsswitch.conf", "host.conf", "gai.conf", "hosts"),
        *("resolv.conf", "protocols", "services", "mime.types", "magic", "inputrc", "bash.bashrc", "profile"),
        *("os-release", "debian_version", "ssl/openssl.cnf", "login.defs"),
    )
)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
MASKED = ("/proc/cmdline", "/proc/keys", "/proc/key-users", "/proc/config.gz")
"""Readable by everybody, and nobody's business."""

INODES = 200_000
"""Files in a session's /tmp: each costs memory of the kernel's."""

TERMINALS = 128
"""Of one room. The machine has some thousand for all that is not its own."""

NOT_SPECIAL = kernel_calls.MOUNT_ATTR_NOSUID | kernel_calls.MOUNT_ATTR_NODEV
READ_ONLY = kernel_calls.MOUNT_ATTR_RDONLY | NOT_SPECIAL
SAFE = kernel_calls.MS_NOSUID | kernel_calls.MS_NODEV


TEMPLATE_SIZE = "mode=0755,size=16m,nr_inodes=20000"
SMALL_SIZE = "mode=0755,size=256k,nr_inodes=64"

SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def interpreter_paths() -> list[str]:
    """What this interpreter is made of, where it may be asked for, and the folders it imports from."""
    return [*_own_paths(), *_search_paths()]


def _search_paths() -> list[str]:
    return [path for path in sys.path if path and os.path.exists(path)]


def _own_paths() -> list[str]:
    """Prefixes, the guest's own folder, links."""
    paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    paths.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    link = os.path.abspath(sys.executable)
    while os.path.islink(link):
        paths.append(os.path.dirname(link))
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    paths.append(os.path.dirname(link))
    return paths


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_among(path: str, folders: Iterable[str]) -> bool:
    return any(_is_below(path, folder) for folder in folders)


def _is_private(path: str) -> bool:
    return _is_among(path, PRIVATE)


def _is_written(path: str, granted: dict[str, bool]) -> bool:
    """Whether sessions may, by the innermost folder that was granted; where links lead there, too."""
    for each in (os.path.abspath(path), os.path.realpath(path)):
        around = [folder for folder in granted if _is_below(each, folder)]
        if around and granted[max(around, key=len)]:
            return True
    return False


class Shown:
    """A file or folder of the host's that is bound into the root at its own path."""

    def __init__(self, path: str, writable: bool) -> None:
        self.path = path
        self.real = os.path.realpath(path)
        self.writable = writable
        self.hidden = ""
        """Where it waits for a session, if that binds it itself."""

    @property
    def attributes(self) -> int:
        return NOT_SPECIAL if self.writable else READ_ONLY


class Layout:
    """What lies where: worked out once, before anything is mounted."""

    def __init__(self, data: str, granted: list[tuple[str, bool]]) -> None:
        self.data = data
        self.real_data = os.path.realpath(data)
        wanted: dict[str, bool] = {os.path.abspath(path): writable for path, writable in granted}
        self.links = [(path, os.readlink(path)) for path in SYSTEM if os.path.islink(path)]
        own = _own_paths()
        self.search = _search_paths()
        self.aside = [path for path in self.search if _is_written(path, wanted) and not _is_among(path, own)]
        """Of the folders with modules, those that sessions write: what lies there may be anything, and nothing of it is
        loaded by who is not held."""
        for path in [*own, *(path for path in self.search if path not in self.aside)]:
            for each in (os.path.abspath(path), os.path.realpath(path)):
                if not any(_is_below(each, link) for link, _ in self.links):
                    wanted[each] = False
        wanted.pop("/", None)
        self.shown: list[Shown] = []
        """Parents first."""
        system = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
        for path in [*system, *SHOWN, *sorted(wanted)]:
            writable = wanted.get(path, False)
            around = [each for each in self.shown if _is_below(path, each.path)]
            if os.path.exists(path) and (not around or around[-1].writable != writable):
                self.shown.append(Shown(path, writable))
        written = [each.path for each in self.shown if each.writable]
        self.later = [each for each in self.shown if _is_private(each.path) or _is_among(each.path, written)]
        """What every session binds itself: where it may write, what lies inside of that, and what lies in a place where
        it has a file system of its own."""
        for number, one in enumerate(self.later):
            one.hidden = f"{HIDDEN}/later-{number}"

    def places(self) -> "Places":
        later = [(each.hidden, each.path, each.writable) for each in self.later]
        return Places(self.data, later, self.search if self.aside else [], self.aside)


class Places:
    """What of the layout is still of interest inside: it cannot be worked out again there."""

    def __init__(self, data: str, later: list[tuple[str, str, bool]], search: list[str], aside: list[str]) -> None:
        self.data = data
        self.later = later
        """Where each waits, where it belongs, and whether it may be written. Parents first."""
        self.search = search
        self.aside = aside
        self.writable = [path for _, path, writable in later if writable]


def search_all(places: Places) -> None:
    """As a session that is held: look for modules also in what sessions write, in the order that there was."""
    for path in places.aside:
        sys.path_importer_cache.pop(path, None)  # in the zygote there was nothing
        if path not in sys.path:
            before = places.search[: places.search.index(path)]
            at = [sys.path.index(each) + 1 for each in before if each in sys.path]
            sys.path.insert(max(at, default=len(sys.path)), path)


def _make_place(path: str, like: str) -> None:
    """Something to mount on, of the same kind."""
    if os.path.isdir(like):
        os.makedirs(path, 0o755, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def _bind(source: str, target: str, attributes: int = 0) -> None:
    _make_place(target, source)
    kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
    if attributes:
        kernel_calls.set_mount(target, attributes)


def _copy(source: str, target: str) -> None:
    """A small file, as it is now; none where there is none, or where it may not be read."""
    try:
        with open(source, "rb") as file:
            data = file.read()
    except OSError:
        return
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    _write(target, data)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


# --- the root that all share -------------------------------------------------------------------------------


def build(layout: Layout) -> None:
    """The new root, in a mount namespace of one's own; afterwards `/` is it, and the old one is at OLD."""
    copies = {path: os.path.realpath(path) for path in COPIED}
    kernel_calls.mount("none", "/", flags=kernel_calls.MS_REC | kernel_calls.MS_PRIVATE)
    kernel_calls.mount("ingle", BUILD, "tmpfs", SAFE, TEMPLATE_SIZE)
    os.mkdir(BUILD + HIDDEN, 0o700)
    kernel_calls.mount("ingle", BUILD + HIDDEN, "tmpfs", SAFE, "mode=0700,size=256k,nr_inodes=1000")
    os.mkdir(BUILD + OLD, 0o700)
    kernel_calls.pivot_root(BUILD, BUILD + OLD)
    os.chdir("/")
    for place in ("/etc", "/proc", "/tmp", "/run", OTHER_TMP, "/home", "/dev/pts", "/dev/shm", DATA):
        os.makedirs(place, 0o755, exist_ok=True)
    for _, place in OLD_PLACES:
        os.mkdir(place, 0o700)
    os.symlink(HOME_FOLDER, HOME)
    for path, target in layout.links:
        os.symlink(target, path)
    for path, real in copies.items():
        _copy(OLD + real, path)
    for name in ("passwd", "group"):
        os.symlink(f"{layout.data}/{ACCOUNTS}/{name}", f"/etc/{name}")
    for each in layout.shown:
        _bind(OLD + each.real, each.hidden or each.path, each.attributes)
    for name in DEVICES:
        _bind(f"{OLD}/dev/{name}", f"/dev/{name}", kernel_calls.MOUNT_ATTR_RDONLY | kernel_calls.MOUNT_ATTR_NOSUID)
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")
    _bind(OLD + layout.real_data, DATA, NOT_SPECIAL)
    if not _is_private(layout.data):
        os.makedirs(layout.data, 0o755, exist_ok=True)


def finish(places: Places) -> None:
    """As the first process of the zygote's pid namespace: let go of the old root. Nothing can be added from now on."""
    # While the host's own is still there: without one in sight, an ordinary user gets no new one.
    kernel_calls.mount("proc", "/proc", "proc", SAFE | kernel_calls.MS_NOEXEC)
    kernel_calls.unmount(OLD)
    _lay_tmp(places, "size=64m")
    for number, (hidden, path, writable) in enumerate(places.later):
        if writable:
            # What sessions write is not for the zygote, which would load it: an empty folder is in its place.
            cover = f"{HIDDEN}/cover-{number}"
            os.mkdir(cover)
            _bind(cover, path)
        elif _is_among(path, places.writable):
            _bind(hidden, path)
    kernel_calls.set_mount("/", READ_ONLY, recursive=False)


def _lay_tmp(places: Places, size: str) -> None:
    """A /tmp of one's own, and in it what the host has there for us."""
    kernel_calls.mount("tmp", "/tmp", "tmpfs", SAFE, f"mode=1777,{size},nr_inodes={INODES}")
    os.mkdir(HOME_FOLDER, 0o700)
    os.mkdir(OTHER_FOLDER)
    os.chmod(OTHER_FOLDER, 0o1777)
    kernel_calls.mount(OTHER_FOLDER, OTHER_TMP, flags=kernel_calls.MS_BIND)
    for hidden, path, _ in places.later:
        if not _is_among(path, places.writable):
            _bind(hidden, path)


def _lay_written(places: Places, uid: int, gid: int) -> None:
    """Folders that may be written, and what in them may not be: that covers its part, and is kept where it is.

    Nothing that is mounted on can be moved. But a folder above it could, and with it what is mounted there: then
    something else would stand in its place, for the host too. So every folder on the way is mounted on itself.
    """
    pinned: set[str] = set()
    for hidden, path, writable in places.later:
        if writable:
            _share(hidden, path, uid, gid)
        elif _is_among(path, places.writable):
            for folder in _ways(path, places.writable):
                if folder not in pinned:
                    pinned.add(folder)
                    kernel_calls.mount(folder, folder, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
            _bind(hidden, path)


def _ways(path: str, writable: list[str]) -> list[str]:
    """The folders between one that may be written and what lies in it, from above."""
    within = [each for each in writable if path != each and _is_below(path, each)]
    if not within:
        return []
    outermost = min(within, key=len)
    found: list[str] = []
    above = os.path.dirname(path)
    while above != outermost:
        found.insert(0, above)
        above = os.path.dirname(above)
    return [folder for folder in found if folder not in writable]


# --- the session's own -------------------------------------------------------------------------------------


def furnish(places: Places, *, network: bool, tmp_size: int) -> None:
    """As the first process of a session's pid namespace: its own namespaces, and its own places in the root."""
    kernel_calls.unshare(kernel_calls.CLONE_NEWNS, "mount")
    kernel_calls.unshare(kernel_calls.CLONE_NEWIPC | kernel_calls.CLONE_NEWUTS, "ipc or uts")
    if not network:
        kernel_calls.unshare(kernel_calls.CLONE_NEWNET, "network")
        _raise_loopback()
    kernel_calls.set_host_name(NAME.encode())
    # The zygote's /proc and /tmp must not lie underneath. Nor are they unmounted one by one: each time the kernel would
    # wait for all processors, a millisecond or two. They go with the way in, at once (see `close`).
    for place, aside in OLD_PLACES:
        kernel_calls.mount(place, aside, flags=kernel_calls.MS_MOVE)
    kernel_calls.mount("proc", "/proc", "proc", SAFE | kernel_calls.MS_NOEXEC)
    for path in MASKED:
        if os.path.exists(path):
            kernel_calls.mount("/dev/null", path, flags=kernel_calls.MS_BIND)
    _lay_tmp(places, f"size={tmp_size}")
    kernel_calls.mount("shm", "/dev/shm", "tmpfs", SAFE, f"mode=1777,size={tmp_size},nr_inodes={INODES}")
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={TERMINALS}"
    kernel_calls.mount("devpts", "/dev/pts", "devpts", kernel_calls.MS_NOSUID | kernel_calls.MS_NOEXEC, terminals)
    os.makedirs(places.data, 0o755, exist_ok=True)
    kernel_calls.mount("ingle", places.data, "tmpfs", SAFE, SMALL_SIZE)
    os.mkdir(f"{places.data}/{ACCOUNTS}", 0o755)


def _raise_loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))
    any_socket.close()


def introduce(places: Places, uid: int, gid: int) -> None:
    """Give the session's user a name and a home."""
    folder = f"{places.data}/{ACCOUNTS}"
    _write(f"{folder}/passwd", f"root:x:0:0::/:/bin/sh\n{NAME}:x:{uid}:{gid}::{HOME}:/bin/sh\n".encode())
    _write(f"{folder}/group", f"root:x:0:\n{NAME}:x:{gid}:\n".encode())
    if os.geteuid() != uid:
        os.chown(HOME_FOLDER, uid, gid)
    _lay_written(places, uid, gid)


def lay(places: Places, order: "messages.Enter", uid: int, gid: int) -> None:
    """Lay a session's folders, by their names in the data folder, into its room.

    Its own are made where they are not there yet; those it shares with others are as they are.
    """
    _lay_own(places, order.own, uid, gid, DATA)
    for folder in order.shared:
        _share(f"{DATA}/{folder}", f"{places.data}/{folder}", uid, gid)
    for folder in order.shown:
        make_folder(f"{DATA}/{folder}", 0o711)
        _bind(f"{DATA}/{folder}", f"{places.data}/{folder}", READ_ONLY)


def _lay_own(places: Places, folders: list[str], uid: int, gid: int, base: str) -> None:
    for folder in folders:
        source, target = f"{base}/{folder}", f"{places.data}/{folder}"
        if make_folder(source, 0o700):
            os.chown(source, uid, gid)
        elif os.stat(source).st_uid != uid:
            give(source, uid, gid)
        make_folder(target, 0o755)
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND)


def _share(source: str, target: str, uid: int, gid: int) -> None:
    """A folder that is not the session's own, to work in: what belongs to the folder's owner is the session's there."""
    about = os.stat(source)
    _make_place(target, source)
    if about.st_uid == uid or os.geteuid() != 0:
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
        return
    users = kernel_calls.users_mapping(about.st_uid, about.st_gid, uid, gid)
    try:
        kernel_calls.mount_mapped(source, target, users)
    except kernel_calls.Refused:
        # Its file system cannot do that: then it is as its permissions are for others.
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
    finally:
        os.close(users)


def rehearse(places: Places, uid: int, gid: int) -> None:
    """Do once, in vain, what `lay` will do: the memory that this copies is copied before anybody waits for it."""
    _lay_own(places, [".rehearsal/own"], uid, gid, "/tmp")
    kernel_calls.unmount(f"{places.data}/.rehearsal/own")
    for base in ("/tmp", places.data):
        os.rmdir(f"{base}/.rehearsal/own")
        os.rmdir(f"{base}/.rehearsal")


def close(places: Places) -> None:
    """Take away the way by which folders came into the room, and what the zygote had where the session has its own."""
    kernel_calls.set_mount(places.data, READ_ONLY, recursive=False)
    kernel_calls.unmount(HIDDEN)


def make_folder(path: str, mode: int) -> bool:
    """True when it is new. Whatever is above it is made too, and stays the server's."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    except FileNotFoundError:
        make_folder(os.path.dirname(path), mode)
        os.mkdir(path, mode)
    return True


def give(folder: str, uid: int, gid: int) -> None:
    """Everything in a folder to another user: an earlier worker of the session, or another server, had other numbers.

    Nobody is in that folder now, and nothing outside can be reached from it: links are not followed, and a hard link
    cannot have come in over the border of its mount.
    """
    for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, uid, gid)
