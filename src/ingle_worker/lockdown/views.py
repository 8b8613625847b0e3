"""Views: namespaces in which a live copy of a session sees its own files at the path of the original's.

A confined process cannot mount. So a child of init, outside of the confinement, makes a user namespace and a mount
namespace as the session's user. That user owns them, and a copy of the session's process may enter them for that
reason. Init uses the mount namespace for the file agents and shell tasks of the copy.
"""

import errno
import json
import os
import socket

from ingle_worker.lockdown import kernel_calls, root_fs
from ingle_worker.wire import messages
from ingle_worker.wire.constants import HOMES, PROXY_PORT

NAMESPACES = ("user", "mnt", "net")

NESTED = (
    "the kernel nests no more namespaces, since many trials were committed one after the other; "
    "save the session and load it anew"
)

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_users(pid: int) -> int:
    """Return the user namespace of a process, or -1 if it is that of this process."""
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(fd).st_ino == os.stat("/proc/self/ns/user").st_ino:
        os.close(fd)
        return -1
    return fd


def make(order: messages.MakeView, users: int, uid: int, gid: int) -> None:
    """Make the namespaces of a view and enter them. The process has the session's uid, and is not confined.

    `users` is the user namespace of the process that is to enter the view, unless it is that of this process. Its
    network, if it has its own, has loopback alone.
    """
    own = order.own
    for folder in (own,) if order.shown else (own, f"{own}/workspace"):
        os.mkdir(folder, 0o700)
    # Or the files about its own namespaces belong to root.
    kernel_calls.set_dumpable(True)
    if users >= 0:
        # A process may enter a user namespace only from the one around it.
        kernel_calls.setns(users, kernel_calls.CLONE_NEWUSER)
    try:
        kernel_calls.unshare(kernel_calls.CLONE_NEWUSER | kernel_calls.CLONE_NEWNS, "user or mount")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EUSERS):
            # Each commit nests the session's process one level deeper: it can only enter a child of its own namespace.
            raise OSError(error.errno, NESTED) from None
        raise
    kernel_calls.map_self(uid, gid)
    if order.network:
        kernel_calls.unshare(kernel_calls.CLONE_NEWNET, "network")
        root_fs.raise_loopback()
    _show(own, order.shown or f"{own}/workspace", order.target)
    for folder in order.protected:
        kernel_calls.mount(folder, folder, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
        kernel_calls.set_mount(folder, root_fs.READ_ONLY)


def _show(own: str, shown: str, target: str) -> None:
    """Have `target` and the homes that show it show another folder. Nothing is seen of the folders beside `own`."""
    inside = os.open(own, _FOLDER)
    workspace = os.open(shown, _FOLDER)
    around = os.path.dirname(own)
    kernel_calls.mount("ingle", around, "tmpfs", root_fs.SAFE, root_fs.SMALL_SIZE)
    os.mkdir(own, 0o700)
    kernel_calls.mount(f"/proc/self/fd/{inside}", own, flags=kernel_calls.MS_BIND)
    for place in (*_homes(target), target):
        kernel_calls.mount(f"/proc/self/fd/{workspace}", place, flags=kernel_calls.MS_BIND)
    kernel_calls.set_mount(around, root_fs.READ_ONLY, recursive=False)
    os.close(inside)
    os.close(workspace)


def _homes(folder: str) -> list[str]:
    """Return the homes that show this folder."""
    shown = os.stat(folder)
    return [home for home in HOMES if os.path.samestat(os.stat(home), shown)]


def close(order: messages.CloseView) -> None:
    """Undo the mounts of `make`, inside of the view. Then show the files of the session, if that is a fork."""
    places = (*_homes(order.target), order.target)
    for folder in (*reversed(order.protected), *places, os.path.dirname(order.own)):
        kernel_calls.unmount(folder)
    if order.fork:
        _show(order.fork, order.shown, order.target)


KINDS = (kernel_calls.CLONE_NEWUSER, kernel_calls.CLONE_NEWNS, kernel_calls.CLONE_NEWNET)


def enter(key: list[int], namespaces: list[int]) -> None:
    """Enter a view from inside of the confinement, and give up the rights that this brings."""
    for namespace, kind in zip(namespaces, KINDS, strict=False):
        kernel_calls.setns_with(key, namespace, kind)
    kernel_calls.drop_bounding_set()
    kernel_calls.drop_capabilities()
    # New rights clear the flag, and then the session could not read its own /proc/self.
    kernel_calls.set_dumpable(True)


def reply(channel: socket.socket, key: list[int], *, network: bool) -> None:
    """Send the host this process's namespaces, the listening socket of its network, and the key to enter them."""
    names = NAMESPACES if network else NAMESPACES[:2]
    fds = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    if network:
        fds.append(_listener().detach())
    socket.send_fds(channel, [json.dumps({"key": key}).encode()], fds)


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", PROXY_PORT))
    listener.listen(64)
    return listener


def reply_failure(channel: socket.socket, error: OSError) -> None:
    channel.sendall(json.dumps({"reason": str(error)[:1000]}).encode())
