"""The root file system of a sandbox: a read-only allow-list, plus a few mounts private to each session.

The process that starts the zygote builds the root once, and the zygote lives in it. No other file of the host is in
that mount namespace. Each session copies the namespace and mounts its own /proc, /tmp, /dev/shm, terminals and
workspace. Paths are the same as on the host.
"""

import _socket
import errno
import fcntl
import os
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ingle_worker.lockdown import kernel_calls
from ingle_worker.lockdown.real_paths import is_real, open_real
from ingle_worker.wire.constants import HOMES

if TYPE_CHECKING:
    # Not imported at run time: `boot` is on the critical path of a start.
    from ingle_worker.wire import messages

BUILD_POINT = "/tmp"
"""Any folder that always exists: the new root is mounted over it before it replaces `/`."""

STAGING = "/.ingle"
"""Mounts that an init needs before its session starts. It detaches them then."""

VAR_TMP, VAR_TMP_FOLDER = "/var/tmp", "/tmp/.other"
"""Where /var/tmp really is: inside /tmp, so that one size limit covers both."""

OLD_ROOT = STAGING + "/old"
STAGED_DATA = STAGING + "/data"
MOVED_MOUNTS = (("/proc", STAGING + "/proc"), (VAR_TMP, STAGING + "/other"), ("/tmp", STAGING + "/tmp"))
"""The zygote's own mounts, and where a session moves them until `detach_staging` detaches them."""

PRIVATE = ("/tmp", "/dev/shm", VAR_TMP)
"""Paths where each session has its own file system. Granted paths of the host below them are bound again one by one."""

HOME = "/home/session"
HOME_FOLDER = "/tmp/.home"
USER_NAME = "session"
ACCOUNTS_FOLDER = ".accounts"
"""Folder below the session's data folder that holds its `passwd` and `group`."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
BOUND = (
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
"""World-readable files that a session must not read."""

MAX_TMP_FILES = 200_000
"""Maximum number of files in a session's /tmp. Each uses kernel memory."""

MAX_TERMINALS = 128
"""Maximum number of terminals of one session. The machine has a few thousand for all of them."""

NOT_SPECIAL = kernel_calls.MOUNT_ATTR_NOSUID | kernel_calls.MOUNT_ATTR_NODEV
READ_ONLY = kernel_calls.MOUNT_ATTR_RDONLY | NOT_SPECIAL
SAFE = kernel_calls.MS_NOSUID | kernel_calls.MS_NODEV


TEMPLATE_SIZE = "mode=0755,size=16m,nr_inodes=20000"
SMALL_SIZE = "mode=0755,size=256k,nr_inodes=64"
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def interpreter_paths() -> list[str]:
    """Return the paths of this interpreter and the folders that it imports from."""
    return [*_own_paths(), *_search_paths()]


def _search_paths() -> list[str]:
    return [path for path in sys.path if path and os.path.exists(path)]


def _own_paths() -> list[str]:
    """Return the prefixes, the guest's own folder and the folders of all links to the executable."""
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


def _is_writable(path: str, granted: dict[str, bool]) -> bool:
    """Return whether sessions may write to `path`. The innermost granted folder decides; links are resolved."""
    for each in (os.path.abspath(path), os.path.realpath(path)):
        around = [folder for folder in granted if _is_below(each, folder)]
        if around and granted[max(around, key=len)]:
            return True
    return False


class BoundPath:
    """A file or folder of the host that is bound into the root at its own path."""

    def __init__(self, path: str, writable: bool, granted: bool = False) -> None:
        self.path = path
        self.real = path if granted else os.path.realpath(path)
        self.granted = granted
        """Whether it was granted, so that its path has no link but one of a session."""
        self.writable = writable
        self.staged = ""
        """Its path in the staging area if each session binds it itself, else empty."""

    @property
    def attributes(self) -> int:
        return NOT_SPECIAL if self.writable else READ_ONLY


class Layout:
    """All mounts of the root, computed before anything is mounted."""

    def __init__(self, data: str, granted: list[tuple[str, bool]], devices: list[tuple[str, str]]) -> None:
        self.data = data
        self.devices = [(f"/dev/{name}", f"/dev/{name}") for name in DEVICES] + devices
        self.real_data = os.path.realpath(data)
        wanted: dict[str, bool] = {path: writable for path, writable in granted if is_real(path)}
        folders = set(wanted)
        self.links = [(path, os.readlink(path)) for path in SYSTEM if os.path.islink(path)]
        own = _own_paths()
        self.search = _search_paths()
        self.unsafe_search = [path for path in self.search if _is_writable(path, wanted) and not _is_among(path, own)]
        """Import folders that sessions can write to. Unconfined processes must not import from them."""
        for path in [*own, *(path for path in self.search if path not in self.unsafe_search)]:
            for each in (os.path.abspath(path), os.path.realpath(path)):
                if not any(_is_below(each, link) for link, _ in self.links):
                    wanted[each] = False
        wanted.pop("/", None)
        self.shown: list[BoundPath] = []
        """Ordered: parents come first."""
        system = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
        for path in [*system, *BOUND, *sorted(wanted)]:
            writable = wanted.get(path, False)
            around = [each for each in self.shown if _is_below(path, each.path)]
            if os.path.exists(path) and (not around or around[-1].writable != writable):
                self.shown.append(BoundPath(path, writable, path in folders))
        written = [each.path for each in self.shown if each.writable]
        self.session_binds = [each for each in self.shown if _is_private(each.path) or _is_among(each.path, written)]
        """Paths that each session binds itself: writable ones, all below those, and all below `PRIVATE`."""
        for number, one in enumerate(self.session_binds):
            one.staged = f"{STAGING}/bind-{number}"

    def mount_plan(self) -> "MountPlan":
        session_binds = [(each.staged, each.path, each.writable) for each in self.session_binds]
        return MountPlan(self.data, session_binds, self.search if self.unsafe_search else [], self.unsafe_search)


class MountPlan:
    """The part of the layout that sessions need. It cannot be computed inside the new root."""

    def __init__(
        self, data: str, session_binds: list[tuple[str, str, bool]], search: list[str], unsafe_search: list[str]
    ) -> None:
        self.data = data
        self.session_binds = session_binds
        """Staging path, final path and whether it is writable. Ordered: parents come first."""
        self.search = search
        self.unsafe_search = unsafe_search
        self.writable = [path for _, path, writable in session_binds if writable]


def restore_search_path(plan: MountPlan) -> None:
    """Add the writable import folders to `sys.path`, in their original order. Call this in a confined session only."""
    for path in plan.unsafe_search:
        sys.path_importer_cache.pop(path, None)  # the zygote saw an empty folder
        if path not in sys.path:
            before = plan.search[: plan.search.index(path)]
            at = [sys.path.index(each) + 1 for each in before if each in sys.path]
            sys.path.insert(max(at, default=len(sys.path)), path)


def _make_mount_point(path: str, like: str) -> None:
    """Create an empty file or folder to mount on, of the same kind as `like`."""
    if os.path.isdir(like):
        os.makedirs(path, 0o755, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def _bind(source: str, target: str, attributes: int = 0) -> None:
    _make_mount_point(target, source)
    kernel_calls.bind(source, target, attributes)


def _bind_granted(source: str, target: str, attributes: int) -> None:
    """Bind a granted folder. A session may put a link in its place at any moment, which is not followed."""
    try:
        fd = open_real(source)
    except OSError as error:
        raise kernel_calls.Refused(
            f"a granted folder that is a link now ({source})", error.errno or errno.ELOOP
        ) from None
    try:
        os.fchdir(fd)
        _bind(".", target, attributes)
    finally:
        os.chdir("/")
        os.close(fd)


def _copy(source: str, target: str) -> None:
    """Copy a small file. Skip it if it is missing or unreadable."""
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


# --- the root that all sessions share ----------------------------------------------------------------------


def build(layout: Layout) -> None:
    """Build the new root and make it `/`. The old root is then at OLD_ROOT. Needs a mount namespace of its own."""
    copies = {path: os.path.realpath(path) for path in COPIED}
    kernel_calls.mount("none", "/", flags=kernel_calls.MS_REC | kernel_calls.MS_PRIVATE)
    kernel_calls.mount("ingle", BUILD_POINT, "tmpfs", SAFE, TEMPLATE_SIZE)
    os.mkdir(BUILD_POINT + STAGING, 0o700)
    kernel_calls.mount("ingle", BUILD_POINT + STAGING, "tmpfs", SAFE, "mode=0700,size=256k,nr_inodes=1000")
    os.mkdir(BUILD_POINT + OLD_ROOT, 0o700)
    kernel_calls.pivot_root(BUILD_POINT, BUILD_POINT + OLD_ROOT)
    os.chdir("/")
    for place in ("/etc", "/proc", "/tmp", "/run", VAR_TMP, *HOMES, "/dev/pts", "/dev/shm", STAGED_DATA):
        os.makedirs(place, 0o755, exist_ok=True)
    for _, place in MOVED_MOUNTS:
        os.mkdir(place, 0o700)
    os.symlink(HOME_FOLDER, HOME)
    for path, target in layout.links:
        os.symlink(target, path)
    for path, real in copies.items():
        _copy(OLD_ROOT + real, path)
    for name in ("passwd", "group"):
        os.symlink(f"{layout.data}/{ACCOUNTS_FOLDER}/{name}", f"/etc/{name}")
    for each in layout.shown:
        bind = _bind_granted if each.granted else _bind
        bind(OLD_ROOT + each.real, each.staged or each.path, each.attributes)
    for source, path in layout.devices:
        _bind(OLD_ROOT + source, path, kernel_calls.MOUNT_ATTR_RDONLY | kernel_calls.MOUNT_ATTR_NOSUID)
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")
    _bind(OLD_ROOT + layout.real_data, STAGED_DATA, NOT_SPECIAL)
    if not _is_private(layout.data):
        os.makedirs(layout.data, 0o755, exist_ok=True)


def finish(plan: MountPlan) -> None:
    """Unmount the old root and make the new one read-only. Runs in the first process of the zygote's pid namespace."""
    # Mount /proc first: without a visible /proc, an ordinary user cannot mount a new one.
    kernel_calls.mount("proc", "/proc", "proc", SAFE | kernel_calls.MS_NOEXEC)
    kernel_calls.unmount(OLD_ROOT)
    _mount_tmp(plan, "size=64m")
    for number, (staged, path, writable) in enumerate(plan.session_binds):
        if writable:
            # The zygote must not import files that sessions wrote, so it sees an empty folder instead.
            cover = f"{STAGING}/cover-{number}"
            os.mkdir(cover)
            _bind(cover, path)
        elif _is_among(path, plan.writable):
            _bind(staged, path)
    kernel_calls.set_mount("/", READ_ONLY, recursive=False)


def _mount_tmp(plan: MountPlan, size: str) -> None:
    """Mount a private /tmp and bind the granted paths below it again."""
    kernel_calls.mount("tmp", "/tmp", "tmpfs", SAFE, f"mode=1777,{size},nr_inodes={MAX_TMP_FILES}")
    os.mkdir(HOME_FOLDER, 0o700)
    os.mkdir(VAR_TMP_FOLDER)
    os.chmod(VAR_TMP_FOLDER, 0o1777)
    kernel_calls.mount(VAR_TMP_FOLDER, VAR_TMP, flags=kernel_calls.MS_BIND)
    for staged, path, _ in plan.session_binds:
        if not _is_among(path, plan.writable):
            _bind(staged, path)


def _bind_writable(plan: MountPlan, uid: int, gid: int) -> None:
    """Bind the writable folders, and bind read-only paths inside them over their part.

    A mount point cannot be moved, but a folder above it can. Code could then put another file in its place, also for
    the host. So every folder in between is mounted on itself.
    """
    pinned: set[str] = set()
    for staged, path, writable in plan.session_binds:
        if writable:
            _bind_shared(staged, path, uid, gid)
        elif _is_among(path, plan.writable):
            for folder in _folders_between(path, plan.writable):
                if folder not in pinned:
                    pinned.add(folder)
                    kernel_calls.mount(folder, folder, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
            _bind(staged, path)


def _folders_between(path: str, writable: list[str]) -> list[str]:
    """Return the folders between `path` and the outermost writable folder around it, outermost first."""
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


# --- the mounts of one session -----------------------------------------------------------------------------


def isolate(*, network: bool) -> None:
    """Create the session's namespaces, except that of its mounts. Runs in the first process of its pid namespace."""
    kernel_calls.unshare(kernel_calls.CLONE_NEWIPC | kernel_calls.CLONE_NEWUTS, "ipc or uts")
    if not network:
        kernel_calls.unshare(kernel_calls.CLONE_NEWNET, "network")
        raise_loopback()
    kernel_calls.set_host_name(USER_NAME.encode())


def mount_private(plan: MountPlan, *, tmp_size: int) -> None:
    """Create the session's private mounts, in a mount namespace of their own."""
    kernel_calls.unshare(kernel_calls.CLONE_NEWNS, "mount")
    # Move the zygote's /proc and /tmp away so that they do not lie underneath. Unmounting each one would make the
    # kernel wait for all processors, 1 or 2 ms; `detach_staging` detaches them together.
    for place, staged in MOVED_MOUNTS:
        kernel_calls.mount(place, staged, flags=kernel_calls.MS_MOVE)
    kernel_calls.mount("proc", "/proc", "proc", SAFE | kernel_calls.MS_NOEXEC)
    for path in MASKED:
        if os.path.exists(path):
            kernel_calls.mount("/dev/null", path, flags=kernel_calls.MS_BIND)
    _mount_tmp(plan, f"size={tmp_size}")
    kernel_calls.mount("shm", "/dev/shm", "tmpfs", SAFE, f"mode=1777,size={tmp_size},nr_inodes={MAX_TMP_FILES}")
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_TERMINALS}"
    kernel_calls.mount("devpts", "/dev/pts", "devpts", kernel_calls.MS_NOSUID | kernel_calls.MS_NOEXEC, terminals)
    os.makedirs(plan.data, 0o755, exist_ok=True)
    kernel_calls.mount("ingle", plan.data, "tmpfs", SAFE, SMALL_SIZE)
    os.mkdir(f"{plan.data}/{ACCOUNTS_FOLDER}", 0o755)


def resize_tmp(size: int) -> None:
    """Change the size of the session's own file systems for temporary files."""
    for place in ("/tmp", "/dev/shm"):
        kernel_calls.mount("", place, flags=kernel_calls.MS_REMOUNT | SAFE, data=f"size={size}")


def raise_loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))
    any_socket.close()


def write_accounts(plan: MountPlan, uid: int, gid: int) -> None:
    """Write `passwd` and `group`, and give the home folder to the session's user."""
    folder = f"{plan.data}/{ACCOUNTS_FOLDER}"
    _write(f"{folder}/passwd", f"root:x:0:0::/:/bin/sh\n{USER_NAME}:x:{uid}:{gid}::{HOME}:/bin/sh\n".encode())
    _write(f"{folder}/group", f"root:x:0:\n{USER_NAME}:x:{gid}:\n".encode())
    if os.geteuid() != uid:
        os.chown(HOME_FOLDER, uid, gid)
    _bind_writable(plan, uid, gid)


def make_mount_points(plan: MountPlan, order: "messages.Enter") -> None:
    """Create the mount points of the session's folders, and make the folder around them read-only.

    While a process writes there, or reads something for the first time, the kernel refuses that (EBUSY).
    """
    for folder in order.own:
        make_folder(f"{plan.data}/{folder}", 0o755)
    for folder in order.shared:
        _make_mount_point(f"{plan.data}/{folder}", f"{STAGED_DATA}/{folder}")
    for folder in order.shown:
        make_folder(f"{STAGED_DATA}/{folder}", 0o711)
        make_folder(f"{plan.data}/{folder}", 0o755)
    kernel_calls.set_mount(plan.data, READ_ONLY, recursive=False)


def mount_session_folders(plan: MountPlan, order: "messages.Enter", uid: int, gid: int) -> None:
    """Mount the session's folders, named relative to the data folder. Its own folders are created if missing."""
    _bind_own_folders(plan, order.own, uid, gid, STAGED_DATA, order.sources)
    if order.home:
        kernel_calls.mount(f"{plan.data}/{order.own[0]}", order.home, flags=kernel_calls.MS_BIND)
    for folder in order.shared:
        _bind_shared(f"{STAGED_DATA}/{folder}", f"{plan.data}/{folder}", uid, gid)
    for folder in order.shown:
        _bind(f"{STAGED_DATA}/{folder}", f"{plan.data}/{folder}", READ_ONLY)


def _bind_own_folders(
    plan: MountPlan, folders: list[str], uid: int, gid: int, base: str, sources: "dict[str, str]"
) -> None:
    for folder in folders:
        source, target = f"{base}/{sources.get(folder, folder)}", f"{plan.data}/{folder}"
        if make_folder(source, 0o700):
            os.chown(source, uid, gid)
        elif os.stat(source).st_uid != uid:
            change_owner(source, uid, gid)
        make_folder(target, 0o755)
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND)


def _bind_shared(source: str, target: str, uid: int, gid: int) -> None:
    """Bind a folder that the session does not own. Files of the folder's owner appear as the session's."""
    about = os.stat(source)
    _make_mount_point(target, source)
    if about.st_uid == uid or os.geteuid() != 0:
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
        return
    ids = (about.st_uid, about.st_gid, uid, gid)
    if ids not in _mappings:
        _mappings[ids] = kernel_calls.users_mapping(*ids)
    try:
        kernel_calls.bind(source, target, users=_mappings[ids], recursive=False)
    except kernel_calls.Refused:
        # The file system has no ID-mapped mounts: the session then has the permissions of others.
        kernel_calls.mount(source, target, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)


_mappings: dict[tuple[int, int, int, int], int] = {}
"""User namespaces of ID-mapped mounts. An init keeps them, because each takes a fork of the loaded interpreter."""


def close_mappings() -> None:
    """Close the user namespaces, in a process of a session."""
    for fd in _mappings.values():
        os.close(fd)
    _mappings.clear()


def rehearse(plan: MountPlan, uid: int, gid: int) -> None:
    """Run the code of `mount_session_folders` once without effect, so that its memory pages are copied before a session
    waits for them."""
    _bind_own_folders(plan, [".rehearsal/own"], uid, gid, "/tmp", {})
    kernel_calls.unmount(f"{plan.data}/.rehearsal/own")
    for base in ("/tmp", plan.data):
        os.rmdir(f"{base}/.rehearsal/own")
        os.rmdir(f"{base}/.rehearsal")


def detach_staging() -> None:
    """Detach the staging area."""
    kernel_calls.unmount(STAGING)


def make_folder(path: str, mode: int) -> bool:
    """Create a folder and its parents, which stay the server's. Return True if it is new."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    except FileNotFoundError:
        make_folder(os.path.dirname(path), mode)
        os.mkdir(path, mode)
    return True


def change_owner(folder: str, uid: int, gid: int) -> None:
    """Change the owner of a folder and all its contents. An earlier worker or server may have used another uid.

    No process uses the folder now. Links are not followed, and hard links cannot cross the border of its mount.
    """
    for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, uid, gid)
