"""Views: namespaces in which a live copy of a session sees its own files at the path of the original's.

A confined process cannot mount. So a child of init, outside of the confinement, makes a user namespace and a mount
namespace as the session's user. That user owns them, and a copy of the session's process may enter them for that
reason. Init uses the mount namespace for the file agents and shell tasks of the copy.

Granted folders that the session may write appear in a view through an overlay: what the copy writes there lands in a
layer of its own. Where the kernel makes no overlay, they can only be read.
"""

import errno
import json
import os
import socket
from typing import Any

from ingle_worker.lockdown import kernel_calls, root_fs, session_mounts
from ingle_worker.wire import messages
from ingle_worker.wire.constants import HOMES, PROXY_PORT
from ingle_worker.wire.trees import LAYERS, UPPER

NAMESPACES = ("user", "mnt", "net")

NESTED = (
    "the kernel nests no more namespaces, since many trials were committed one after the other; "
    "save the session and load it anew"
)

WORK = "work"
"""Folder that an overlay needs beside its layer."""

AT_ROOT = "it lies directly in the root folder"
NOT_THERE = "it is not there"
HOLDS_OTHERS = "another folder is mounted in it"

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_users(pid: int) -> int:
    """Return the user namespace of a process, or -1 if it is that of this process."""
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(fd).st_ino == os.stat("/proc/self/ns/user").st_ino:
        os.close(fd)
        return -1
    return fd


def make(order: messages.MakeView, users: int, uid: int, gid: int) -> "dict[str, Any]":
    """Make the namespaces of a view and enter them. The process has the session's uid, and is not confined.

    `users` is the user namespace of the process that is to enter the view, unless it is that of this process. Its
    network, if it has its own, has loopback alone. Return what the host has to know of the layers: for each protected
    folder why it can only be read, or nothing if it has a layer, and the time on the clock of files.
    """
    own = order.own
    layers = [f"{own}/{LAYERS}/{number}" for number in range(len(order.protected))]
    folders = [own] if order.shown else [own, f"{own}/workspace"]
    folders += [f"{own}/{LAYERS}"] if layers else []
    for layer in layers:
        folders += (layer, f"{layer}/{UPPER}", f"{layer}/{WORK}")
    for folder in folders:
        os.mkdir(folder, 0o700)
    since = os.stat(folders[-1]).st_ctime_ns
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
        session_mounts.raise_loopback()
    _show(own, order.shown or f"{own}/workspace", order.target)
    reasons = [_cover(folder, layer) for folder, layer in zip(order.protected, layers, strict=True)]
    if layers:
        # Nothing may change a layer but its overlay.
        hidden = root_fs.SAFE | kernel_calls.MS_RDONLY
        kernel_calls.mount("ingle", f"{own}/{LAYERS}", "tmpfs", hidden, root_fs.SMALL_SIZE)
    return {"read_only": reasons, "since": since}


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


def _cover(folder: str, layer: str) -> str:
    """Mount an overlay over a folder. If that is impossible, make it read-only, and return why."""
    if not os.path.isdir(folder):
        return NOT_THERE
    try:
        reason = _why_not(folder)
        if not reason:
            _overlay(folder, layer)
            return ""
    except OSError as error:
        reason = str(error)
    kernel_calls.mount(folder, folder, flags=kernel_calls.MS_BIND | kernel_calls.MS_REC)
    kernel_calls.set_mount(folder, root_fs.READ_ONLY)
    return reason


def _why_not(folder: str) -> str:
    """Return why a folder cannot be covered by an overlay."""
    if os.path.dirname(folder) == "/":
        # Landlock looks at the folder above a mount point, and must not allow writes below the root.
        return AT_ROOT
    # An overlay shows what is below these mounts, such as the data of the server.
    return HOLDS_OTHERS if any(place.startswith(f"{folder}/") for place in _mount_points()) else ""


def _mount_points() -> "list[str]":
    with open("/proc/self/mountinfo", "rb") as file:
        places = [line.split()[4] for line in file]
    # Spaces, tabs, newlines and backslashes are written as octal numbers.
    return [os.fsdecode(place.decode("unicode_escape").encode("latin-1")) for place in places]


def _overlay(folder: str, layer: str) -> None:
    parts = {"lowerdir": folder, "upperdir": f"{layer}/{UPPER}", "workdir": f"{layer}/{WORK}"}
    opened = {name: os.open(path, _FOLDER) for name, path in parts.items()}
    try:
        upper = opened["upperdir"]
        os.chmod(f"/proc/self/fd/{upper}", os.stat(folder).st_mode & 0o777)
        # By descriptors, since commas and colons in a path would mean something else.
        options = ",".join(f"{name}=/proc/self/fd/{fd}" for name, fd in opened.items())
        kernel_calls.mount("ingle", folder, "overlay", root_fs.SAFE, f"{options},userxattr")
    finally:
        for fd in opened.values():
            os.close(fd)


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


def reply(channel: socket.socket, key: list[int], about: "dict[str, Any]", *, network: bool) -> None:
    """Send the host this process's namespaces, the listening socket of its network, and the key to enter them.

    `about` is what `make` has returned.
    """
    names = NAMESPACES if network else NAMESPACES[:2]
    fds = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    if network:
        fds.append(_listener().detach())
    socket.send_fds(channel, [json.dumps({"key": key, **about}).encode()], fds)


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", PROXY_PORT))
    listener.listen(64)
    return listener


def reply_failure(channel: socket.socket, error: OSError) -> None:
    channel.sendall(json.dumps({"reason": str(error)[:1000]}).encode())
