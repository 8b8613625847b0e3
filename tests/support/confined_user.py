"""Run a program as a user, apart from this machine: `confined_user.py UID FOLDER PROGRAM ARG...`, as root.

It gets a mount namespace of its own. In it, what an attack aims at (`/tmp`, `/dev/shm`, `/etc/cron.d`, the modules that
the interpreter has, ingle's own code) is a copy below FOLDER, so that an attack that works changes nothing else.
And the interpreter is in everybody's reach: it may lie in a folder that only root can enter, which is then an empty one
with nothing in it but the interpreter and the project.
"""

import ctypes
import os
import shutil
import stat
import sys
import sysconfig

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_DUMPABLE = 4

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUEST = os.path.join(PROJECT, "src", "ingle_worker")
OPEN_TO_ALL = ("/tmp", "/var/tmp")
ROOTS = ("/etc/cron.d", "/etc/profile.d")

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def bind(source: str, target: str) -> None:
    check(libc.mount(source.encode(), target.encode(), None, MS_BIND | MS_REC, None))


def first_closed(path: str) -> str | None:
    """The first folder on the way there that others cannot enter."""
    way = "/"
    for part in path.strip("/").split("/"):
        way = os.path.join(way, part)
        if not os.stat(way).st_mode & stat.S_IXOTH:
            return way
    return None


def open_ways(paths: list[str]) -> None:
    held = {path: (os.open(path, os.O_PATH), first_closed(path)) for path in sorted(set(paths))}
    for closed in {closed for _, closed in held.values() if closed is not None}:
        check(libc.mount(b"tmpfs", closed.encode(), b"tmpfs", 0, b"mode=755"))
    for path, (fd, closed) in held.items():
        if closed is not None and not os.path.exists(path):
            os.makedirs(path)
            bind(f"/proc/self/fd/{fd}", path)
        os.close(fd)


def shield(folder: str) -> None:
    """Copies in the place of what is attacked."""
    installed = sysconfig.get_path("purelib", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    for number, path in enumerate((*OPEN_TO_ALL, *ROOTS, installed, GUEST)):
        if not os.path.isdir(path):
            continue
        copy = os.path.join(folder, "shield", str(number))
        if path == GUEST:
            shutil.copytree(path, copy)
        else:
            os.makedirs(copy)
        os.chmod(copy, 0o1777 if path in OPEN_TO_ALL else 0o755)
        # What the test itself needs stays, should it lie there: a checkout below /tmp, for one.
        needed = {os.path.realpath(each) for each in (folder, PROJECT, sys.prefix, sys.base_prefix)}
        kept = {each: os.open(each, os.O_PATH) for each in sorted(needed) if each.startswith(path + "/")}
        bind(copy, path)
        for each, fd in kept.items():
            os.makedirs(each, exist_ok=True)
            bind(f"/proc/self/fd/{fd}", each)
            os.close(fd)
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777,size=1g"))


def main(uid: int, folder: str, program: list[str]) -> None:
    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    open_ways([os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, PROJECT)])
    shield(folder)
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # A new user clears it, and with it this process's access to its own /proc/self.
        check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
