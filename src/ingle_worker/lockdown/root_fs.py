"""The root file system of a sandbox: a read-only allow-list, plus a few mounts private to each session.

The process that starts the zygote builds the root once, and the zygote lives in it. No other file of the host is in
that mount namespace. Each session copies the namespace and mounts its own /proc, /tmp, /dev/shm, terminals and
workspace. Paths are the same as on the host.
"""

import errno
import os
import sys
from collections.abc import Iterable

from ingle_worker.lockdown import kernel_calls
from ingle_worker.lockdown.real_paths import is_real, open_real
from ingle_worker.wire.constants import HOMES

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
MAX_TMP_FILES = 200_000
"""Maximum number of files in a session's /tmp. Each uses kernel memory."""

NOT_SPECIAL = kernel_calls.MOUNT_ATTR_NOSUID | kernel_calls.MOUNT_ATTR_NODEV
READ_ONLY = kernel_calls.MOUNT_ATTR_RDONLY | NOT_SPECIAL
SAFE = kernel_calls.MS_NOSUID | kernel_calls.MS_NODEV


TEMPLATE_SIZE = "mode=0755,size=16m,nr_inodes=20000"
SMALL_SIZE = "mode=0755,size=256k,nr_inodes=64"


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


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_among(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _is_private(path: str) -> bool:
    return is_among(path, PRIVATE)


def _is_writable(path: str, granted: dict[str, bool]) -> bool:
    """Return whether sessions may write to `path`. The innermost granted folder decides; links are resolved."""
    for each in (os.path.abspath(path), os.path.realpath(path)):
        around = [folder for folder in granted if is_below(each, folder)]
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
        self.unsafe_search = [path for path in self.search if _is_writable(path, wanted) and not is_among(path, own)]
        """Import folders that sessions can write to. Unconfined processes must not import from them."""
        for path in [*own, *(path for path in self.search if path not in self.unsafe_search)]:
            for each in (os.path.abspath(path), os.path.realpath(path)):
                if not any(is_below(each, link) for link, _ in self.links):
                    wanted[each] = False
        wanted.pop("/", None)
        self.shown: list[BoundPath] = []
        """Ordered: parents come first."""
        system = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
        for path in [*system, *BOUND, *sorted(wanted)]:
            writable = wanted.get(path, False)
            around = [each for each in self.shown if is_below(path, each.path)]
            if os.path.exists(path) and (not around or around[-1].writable != writable):
                self.shown.append(BoundPath(path, writable, path in folders))
        written = [each.path for each in self.shown if each.writable]
        self.session_binds = [each for each in self.shown if _is_private(each.path) or is_among(each.path, written)]
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


def make_mount_point(path: str, like: str) -> None:
    """Create an empty file or folder to mount on, of the same kind as `like`."""
    if os.path.isdir(like):
        os.makedirs(path, 0o755, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def bind(source: str, target: str, attributes: int = 0) -> None:
    make_mount_point(target, source)
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
        bind(".", target, attributes)
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
    write_file(target, data)


def write_file(path: str, data: bytes) -> None:
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
        show = _bind_granted if each.granted else bind
        show(OLD_ROOT + each.real, each.staged or each.path, each.attributes)
    for source, path in layout.devices:
        bind(OLD_ROOT + source, path, kernel_calls.MOUNT_ATTR_RDONLY | kernel_calls.MOUNT_ATTR_NOSUID)
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")
    bind(OLD_ROOT + layout.real_data, STAGED_DATA, NOT_SPECIAL)
    if not _is_private(layout.data):
        os.makedirs(layout.data, 0o755, exist_ok=True)


def finish(plan: MountPlan) -> None:
    """Unmount the old root and make the new one read-only. Runs in the first process of the zygote's pid namespace."""
    # Mount /proc first: without a visible /proc, an ordinary user cannot mount a new one.
    kernel_calls.mount("proc", "/proc", "proc", SAFE | kernel_calls.MS_NOEXEC)
    kernel_calls.unmount(OLD_ROOT)
    mount_tmp(plan, "size=64m")
    for number, (staged, path, writable) in enumerate(plan.session_binds):
        if writable:
            # The zygote must not import files that sessions wrote, so it sees an empty folder instead.
            cover = f"{STAGING}/cover-{number}"
            os.mkdir(cover)
            bind(cover, path)
        elif is_among(path, plan.writable):
            bind(staged, path)
    kernel_calls.set_mount("/", READ_ONLY, recursive=False)


def mount_tmp(plan: MountPlan, size: str) -> None:
    """Mount a private /tmp and bind the granted paths below it again."""
    kernel_calls.mount("tmp", "/tmp", "tmpfs", SAFE, f"mode=1777,{size},nr_inodes={MAX_TMP_FILES}")
    os.mkdir(HOME_FOLDER, 0o700)
    os.mkdir(VAR_TMP_FOLDER)
    os.chmod(VAR_TMP_FOLDER, 0o1777)
    kernel_calls.mount(VAR_TMP_FOLDER, VAR_TMP, flags=kernel_calls.MS_BIND)
    for staged, path, _ in plan.session_binds:
        if not is_among(path, plan.writable):
            bind(staged, path)
