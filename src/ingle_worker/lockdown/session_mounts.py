"""The mounts of one session in a sandbox: its own /proc, /tmp, /dev/shm, terminals, accounts and folders."""

import _socket
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from ingle_worker.lockdown import kernel_calls, root_fs

if TYPE_CHECKING:
    # Not imported at run time: `boot` is on the critical path of a start.
    from ingle_worker.wire import messages

MASKED = ("/proc/cmdline", "/proc/keys", "/proc/key-users", "/proc/config.gz")
"""World-readable files that a session must not read."""

MAX_TERMINALS = 128
"""Maximum number of terminals of one session. The machine has a few thousand for all of them."""

SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def isolate(*, network: bool) -> None:
    """Create the session's namespaces, except that of its mounts. Runs in the first process of its pid namespace."""
    kernel_calls.unshare(kernel_calls.CLONE_NEWIPC | kernel_calls.CLONE_NEWUTS, "ipc or uts")
    if not network:
        kernel_calls.unshare(kernel_calls.CLONE_NEWNET, "network")
        raise_loopback()
    kernel_calls.set_host_name(root_fs.USER_NAME.encode())


def mount_private(plan: root_fs.MountPlan, *, tmp_size: int) -> None:
    """Create the session's private mounts, in a mount namespace of their own."""
    kernel_calls.unshare(kernel_calls.CLONE_NEWNS, "mount")
    # Move the zygote's /proc and /tmp away so that they do not lie underneath. Unmounting each one would make the
    # kernel wait for all processors, 1 or 2 ms; `detach_staging` detaches them together.
    for place, staged in root_fs.MOVED_MOUNTS:
        kernel_calls.mount(place, staged, flags=kernel_calls.MS_MOVE)
    kernel_calls.mount("proc", "/proc", "proc", root_fs.SAFE | kernel_calls.MS_NOEXEC)
    for path in MASKED:
        if os.path.exists(path):
            kernel_calls.mount("/dev/null", path, flags=kernel_calls.MS_BIND)
    root_fs.mount_tmp(plan, f"size={tmp_size}")
    kernel_calls.mount(
        "shm", "/dev/shm", "tmpfs", root_fs.SAFE, f"mode=1777,size={tmp_size},nr_inodes={root_fs.MAX_TMP_FILES}"
    )
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_TERMINALS}"
    kernel_calls.mount("devpts", "/dev/pts", "devpts", kernel_calls.MS_NOSUID | kernel_calls.MS_NOEXEC, terminals)
    os.makedirs(plan.data, 0o755, exist_ok=True)
    kernel_calls.mount("ingle", plan.data, "tmpfs", root_fs.SAFE, root_fs.SMALL_SIZE)
    os.mkdir(f"{plan.data}/{root_fs.ACCOUNTS_FOLDER}", 0o755)


def resize_tmp(size: int) -> None:
    """Change the size of the session's own file systems for temporary files."""
    for place in ("/tmp", "/dev/shm"):
        kernel_calls.mount("", place, flags=kernel_calls.MS_REMOUNT | root_fs.SAFE, data=f"size={size}")


def raise_loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))
    any_socket.close()


def write_accounts(plan: root_fs.MountPlan, uid: int, gid: int) -> None:
    """Write `passwd` and `group`, and give the home folder to the session's user."""
    folder, name = f"{plan.data}/{root_fs.ACCOUNTS_FOLDER}", root_fs.USER_NAME
    users = f"root:x:0:0::/:/bin/sh\n{name}:x:{uid}:{gid}::{root_fs.HOME}:/bin/sh\n"
    root_fs.write_file(f"{folder}/passwd", users.encode())
    root_fs.write_file(f"{folder}/group", f"root:x:0:\n{name}:x:{gid}:\n".encode())
    if os.geteuid() != uid:
        os.chown(root_fs.HOME_FOLDER, uid, gid)
    _bind_writable(plan, uid, gid)


def make_mount_points(plan: root_fs.MountPlan, order: "messages.Enter") -> None:
    """Create the mount points of the session's folders, and make the folder around them read-only.

    While a process writes there, or reads something for the first time, the kernel refuses that (EBUSY).
    """
    for folder in order.own:
        make_folder(f"{plan.data}/{folder}", 0o755)
    for folder in order.shared:
        root_fs.make_mount_point(f"{plan.data}/{folder}", f"{root_fs.STAGED_DATA}/{folder}")
    for folder in order.shown:
        make_folder(f"{root_fs.STAGED_DATA}/{folder}", 0o711)
        make_folder(f"{plan.data}/{folder}", 0o755)
    kernel_calls.set_mount(plan.data, root_fs.READ_ONLY, recursive=False)


def mount_session_folders(plan: root_fs.MountPlan, order: "messages.Enter", uid: int, gid: int) -> None:
    """Mount the session's folders, named relative to the data folder. Its own folders are created if missing."""
    _bind_own_folders(plan, order.own, uid, gid, root_fs.STAGED_DATA, order.sources)
    if order.home:
        kernel_calls.mount(f"{plan.data}/{order.own[0]}", order.home, flags=kernel_calls.MS_BIND)
    for folder in order.shared:
        _bind_shared(f"{root_fs.STAGED_DATA}/{folder}", f"{plan.data}/{folder}", uid, gid)
    for folder in order.shown:
        root_fs.bind(f"{root_fs.STAGED_DATA}/{folder}", f"{plan.data}/{folder}", root_fs.READ_ONLY)


def _bind_own_folders(
    plan: root_fs.MountPlan, folders: list[str], uid: int, gid: int, base: str, sources: "dict[str, str]"
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
    root_fs.make_mount_point(target, source)
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


def rehearse(plan: root_fs.MountPlan, uid: int, gid: int) -> None:
    """Run the code of `mount_session_folders` once without effect, so that its memory pages are copied before a session
    waits for them."""
    _bind_own_folders(plan, [".rehearsal/own"], uid, gid, "/tmp", {})
    kernel_calls.unmount(f"{plan.data}/.rehearsal/own")
    for base in ("/tmp", plan.data):
        os.rmdir(f"{base}/.rehearsal/own")
        os.rmdir(f"{base}/.rehearsal")


def detach_staging() -> None:
    """Detach the staging area."""
    kernel_calls.unmount(root_fs.STAGING)


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


def _bind_writable(plan: root_fs.MountPlan, uid: int, gid: int) -> None:
    """Bind the writable folders, and bind read-only paths inside them over their part.

    A mount point cannot be moved, but a folder above it can. Code could then put another file in its place, also for
    the host. So every folder in between is mounted on itself.
    """
    pinned: set[str] = set()
    for staged, path, writable in plan.session_binds:
        if writable:
            _bind_shared(staged, path, uid, gid)
        elif root_fs.is_among(path, plan.writable):
            for folder in _folders_between(path, plan.writable):
                if folder not in pinned:
                    pinned.add(folder)
                    kernel_calls.mount(folder, folder, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
            root_fs.bind(staged, path)


def _folders_between(path: str, writable: list[str]) -> list[str]:
    """Return the folders between `path` and the outermost writable folder around it, outermost first."""
    within = [each for each in writable if path != each and root_fs.is_below(path, each)]
    if not within:
        return []
    outermost = min(within, key=len)
    found: list[str] = []
    above = os.path.dirname(path)
    while above != outermost:
        found.insert(0, above)
        above = os.path.dirname(above)
    return [folder for folder in found if folder not in writable]
