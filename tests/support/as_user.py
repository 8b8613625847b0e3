"""`as_user.py HOME COMMAND...`, as root: run it as an ordinary user who has no account, no rights and no groups.

The interpreter of the tests may lie where other users cannot go, below /root for one. So in a mount namespace of this
process's own, what keeps them from it is covered by a folder that can be passed, and what they need is shown in that.
"""

import ctypes
import os
import sys
from pathlib import Path

USER = 54321
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
NEEDED = (sys.prefix, sys.base_prefix, Path(__file__).resolve().parents[2])

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    if libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, b"mode=0755" if kind else None):
        raise OSError(ctypes.get_errno(), f"mounting {source} at {target}")


def obstacle(path: Path) -> Path | None:
    """The first folder on the way that others cannot pass."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


def open_ways() -> None:
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a new mount namespace")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    needed = [Path(each).resolve() for each in NEEDED]
    held = {each: os.open(each, os.O_PATH) for each in needed if obstacle(each) is not None}
    for covered in {obstacle(each) for each in held}:
        mount("cover", str(covered), "tmpfs", 0)
    for each, fd in held.items():
        each.mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{fd}", str(each), None, MS_BIND | MS_REC)
        os.close(fd)


def main() -> None:
    open_ways()
    home, *command = sys.argv[1:]
    os.chown(home, USER, USER)
    os.environ.update(HOME=home, TMPDIR=home)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.execvp(command[0], command)


main()
