"""System calls of the lockdown: namespaces, mounts, credentials.

Every function raises `Refused`, which names the step and the kernel's reason. Tables and buffers are created at import,
so that sessions share their memory.
"""

import ctypes
import errno
import os
import platform
import socket
import struct

from ingle_worker.processes import linux

MACHINE = platform.machine()

NUMBERS = {
    "x86_64": {
        "pivot_root": 155,
        "seccomp": 317,
        "capget": 125,
        "capset": 126,
        "setresuid": 117,
        "setresgid": 119,
        "setns": 308,
    },
    "aarch64": {
        "pivot_root": 41,
        "seccomp": 277,
        "capget": 90,
        "capset": 91,
        "setresuid": 147,
        "setresgid": 149,
        "setns": 268,
    },
}.get(MACHINE, {})
# Calls added since Linux 5.1 have the same number on every machine.
NUMBERS.update(
    {
        "open_tree": 428,
        "move_mount": 429,
        "mount_setattr": 442,
        "landlock_create_ruleset": 444,
        "landlock_add_rule": 445,
        "landlock_restrict_self": 446,
    }
)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_IDMAP = 0x00100000
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4
LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = (ctypes.c_long,) * 7
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
# Looked up once at import: a lookup in each session would copy memory pages.
_unmount, _set_host_name, _set_groups = _libc.umount2, _libc.sethostname, _libc.setgroups
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)

_CAP_HEADER = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
_NO_CAPABILITIES = ctypes.create_string_buffer(24)


class Refused(OSError):
    """The kernel refused a step of the lockdown."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step
        self.code = errno.errorcode.get(number, str(number))

    def __str__(self) -> str:
        return f"{self.step}: {self.strerror} ({self.code})"


def check(result: int, step: str) -> int:
    if result < 0:
        raise Refused(step, ctypes.get_errno())
    return result


def system_call(name: str, *args: int) -> int:
    number = NUMBERS.get(name)
    if number is None:
        raise Refused(f"{name} on {MACHINE}", errno.ENOSYS)
    return check(_libc.syscall(number, *args, *(0,) * (6 - len(args))), name)


def unshare(flags: int, what: str) -> None:
    check(_libc.unshare(flags), f"a new {what} namespace")


def setns(fd: int, kind: int) -> None:
    check(_libc.setns(fd, kind), "return to the own namespace")


def setns_with(key: list[int], fd: int, kind: int) -> None:
    """Enter a namespace from inside of a seccomp filter, with the key that the filter asks for."""
    system_call("setns", fd | key[0] << 32, kind | key[1] << 32)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source) or None,
        os.fsencode(target),
        kind.encode() or None,
        flags,
        data.encode() or None,
    )
    check(result, f"mounting {kind or source} at {target}")


def unmount(target: str) -> None:
    check(_unmount(os.fsencode(target), MNT_DETACH), f"unmounting {target}")


def set_mount(path: str, attributes: int, *, recursive: bool = True) -> None:
    """Add attributes to a mount and to all mounts below it."""
    _set_mount(AT_FDCWD, path, AT_RECURSIVE if recursive else 0, struct.pack("QQQQ", attributes, 0, 0, 0))


def bind(source: str, target: str, attributes: int = 0, *, users: int = -1, recursive: bool = True) -> None:
    """Bind a file or folder elsewhere.

    It has its attributes before a process can reach it. With `users`, its owners are mapped by this user namespace.
    """
    deep = AT_RECURSIVE if recursive else 0
    name = ctypes.create_string_buffer(os.fsencode(source))
    tree = system_call("open_tree", AT_FDCWD, ctypes.addressof(name), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | deep)
    try:
        if users >= 0:
            attributes |= MOUNT_ATTR_IDMAP
        if attributes:
            _set_mount(tree, "", AT_EMPTY_PATH | deep, struct.pack("QQQQ", attributes, 0, 0, max(users, 0)))
        nothing, place = ctypes.create_string_buffer(b""), ctypes.create_string_buffer(os.fsencode(target))
        args = (tree, ctypes.addressof(nothing), AT_FDCWD, ctypes.addressof(place), MOVE_MOUNT_F_EMPTY_PATH)
        system_call("move_mount", *args)
    finally:
        os.close(tree)


def users_mapping(uid: int, gid: int, seen_uid: int, seen_gid: int) -> int:
    """Return the descriptor of a user namespace that shows one user and group as another. Other ids stay the same."""
    here, there = socket.socketpair()
    # A bare fork: fork hooks of loaded libraries would report a fork that the session never made.
    child = linux.fork_bare()
    if child == 0:
        here.close()
        try:
            unshare(CLONE_NEWUSER, "user")
            # Without CAP_SYS_PTRACE, as in most containers, only the process itself may open its namespace.
            socket.send_fds(there, [b"1"], [os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)])
            there.recv(1)
        finally:
            os._exit(0)
    there.close()
    try:
        _, users, _, _ = socket.recv_fds(here, 1, 1)
        if not users:
            raise Refused("a new user namespace", errno.EPERM)
        try:
            _write(f"/proc/{child}/uid_map", _mapping(uid, seen_uid))
            _write(f"/proc/{child}/gid_map", _mapping(gid, seen_gid))
        except BaseException:
            os.close(users[0])
            raise
        os.set_inheritable(users[0], False)
        return users[0]
    finally:
        here.close()
        os.waitpid(child, 0)


USUAL_IDS = 65536


def _mapping(number: int, seen: int) -> bytes:
    lines = [(0, 0, min(number, USUAL_IDS)), (number, seen, 1), (number + 1, number + 1, USUAL_IDS - number - 1)]
    return b"".join(b"%d %d %d\n" % line for line in lines if line[2] > 0)


def _set_mount(folder: int, path: str, flags: int, packed: bytes) -> None:
    name = ctypes.create_string_buffer(os.fsencode(path))
    attributes = ctypes.create_string_buffer(packed, len(packed))
    system_call("mount_setattr", folder, ctypes.addressof(name), flags, ctypes.addressof(attributes), len(packed))


def pivot_root(new: str, old: str) -> None:
    first, second = ctypes.create_string_buffer(os.fsencode(new)), ctypes.create_string_buffer(os.fsencode(old))
    system_call("pivot_root", ctypes.addressof(first), ctypes.addressof(second))


def set_host_name(name: bytes) -> None:
    check(_set_host_name(name, len(name)), "the host name")


def prctl(option: int, value: int, step: str, third: int = 0) -> None:
    check(_libc.prctl(option, value, third, 0, 0), step)


def set_dumpable(yes: bool) -> None:
    """Set whether processes of the same user may trace this one, and who owns its folder in /proc."""
    prctl(PR_SET_DUMPABLE, int(yes), "dumpable")


def no_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")


def drop_bounding_set() -> None:
    for capability in range(LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:
                break  # the kernel has no more capabilities
            raise Refused("dropping the bounding set", ctypes.get_errno())


def keep_capabilities() -> None:
    """Make all capabilities survive an exec, also for a user who is not root in the namespace."""
    sets = ctypes.create_string_buffer(24)
    system_call("capget", ctypes.addressof(_CAP_HEADER), ctypes.addressof(sets))
    effective, permitted, _, effective_high, permitted_high, _ = struct.unpack("6I", sets.raw)
    packed = struct.pack("6I", effective, permitted, permitted, effective_high, permitted_high, permitted_high)
    sets = ctypes.create_string_buffer(packed, 24)
    system_call("capset", ctypes.addressof(_CAP_HEADER), ctypes.addressof(sets))
    for capability in range(LAST_CAPABILITY + 1):
        if (permitted | permitted_high << 32) >> capability & 1:
            _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def drop_capabilities() -> None:
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    system_call("capset", ctypes.addressof(_CAP_HEADER), ctypes.addressof(_NO_CAPABILITIES))


def become(uid: int, gid: int) -> None:
    """Change the user for good. Not by `os`: after a bare fork, libc could wait for a lock without an owner."""
    check(_set_groups(0, None), "dropping groups")
    system_call("setresgid", gid, gid, gid)
    system_call("setresuid", uid, uid, uid)


def map_self(uid: int, gid: int) -> None:
    """Map the own uid and gid to themselves in a new user namespace. No other user exists there."""
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    _write("/proc/self/gid_map", b"%d %d 1" % (gid, gid))


SO_PASSRIGHTS = 83


def can_refuse_descriptors() -> bool:
    """Return whether a socket can refuse descriptors from others (Linux 6.16 and later)."""
    with socket.socket(socket.AF_UNIX) as any_socket:
        try:
            any_socket.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            return False
    return True


def read_number(path: str) -> int:
    """Return the number in a file, or 0 if it cannot be read."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def limit_user(name: str, most: int) -> None:
    """Set a per-user maximum in a new user namespace, if the kernel counts it."""
    try:
        _write(f"/proc/sys/user/{name}", b"%d" % most)
    except Refused:
        pass


def _write(path: str, data: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        raise Refused(f"writing {path}", error.errno or errno.EIO) from None
