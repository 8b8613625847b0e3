"""File agent: reads and writes files of a session's folder for the host, from inside the session's confinement.

The session's init forks one agent per request. The agent has the session's user, mounts, Landlock rules and limits. So
the kernel decides what it may reach, and the host never opens a path itself. No link is followed below the root. A file
is written under another name and renamed when it is complete.
"""

import errno
import json
import os
import socket
import stat
from typing import Any

from ingle_worker.archive.pack import Packer
from ingle_worker.archive.tar_format import Malformed
from ingle_worker.archive.unpack import Unpacker
from ingle_worker.processes import linux
from ingle_worker.trees.agent import TreeAgent
from ingle_worker.wire.files import (
    LENGTH,
    MALFORMED,
    MAX_CHUNK_BYTES,
    MAX_LISTED,
    MAX_REQUEST_BYTES,
    NOT_REGULAR,
    RANGE,
    SEND_BYTES,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def serve(fd: int) -> None:
    """Answer one request on this socket, until it is done or the host closes it."""
    linux.die_with_parent()
    with socket.socket(fileno=fd) as connection:
        try:
            request = json.loads(_receive_frame(connection, MAX_REQUEST_BYTES))
            try:
                _VERBS[request["verb"]](connection, request)
            except NotRegular:
                _reply(connection, {"errno": errno.EINVAL, "why": NOT_REGULAR})
            except UnicodeEncodeError:
                _reply(connection, {"errno": errno.EILSEQ})
            except OSError as error:
                _reply(connection, {"errno": error.errno or errno.EIO})
        except (OSError, EOFError):
            return  # the host is gone


class NotRegular(Exception):
    """The path names a pipe, a device or a socket."""


# --- framing ---


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _receive_frame(connection: socket.socket, limit: int) -> bytes:
    (length,) = LENGTH.unpack(_receive(connection, LENGTH.size))
    if length > limit:
        raise EOFError
    return _receive(connection, length)


def _reply(connection: socket.socket, reply: "dict[str, Any]") -> None:
    data = json.dumps(reply).encode()
    connection.sendall(LENGTH.pack(len(data)) + data)


# --- paths ---


def _open_root(request: "dict[str, Any]") -> int:
    flags = _FOLDER if request["fixed"] else _FOLDER & ~os.O_NOFOLLOW
    return os.open(request["root"], flags)


def _open_folder(request: "dict[str, Any]", parts: "list[str]", make: bool = False) -> int:
    """Open the folder reached by these names from the root."""
    fd = _open_root(request)
    try:
        for part in parts:
            if make:
                try:
                    os.mkdir(part, 0o755, dir_fd=fd)
                except FileExistsError:
                    pass
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            except NotADirectoryError:
                # With O_DIRECTORY the kernel reports a link as this, too.
                if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                raise
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def _info(name: str, about: os.stat_result) -> "list[Any]":
    plain = name.encode("utf-8", "backslashreplace").decode()
    return [
        plain,
        _KINDS.get(stat.S_IFMT(about.st_mode), "other"),
        about.st_size,
        about.st_mtime,
        stat.S_IMODE(about.st_mode),
    ]


# --- the verbs ---


def _list(connection: socket.socket, request: "dict[str, Any]") -> None:
    infos: list[list[Any]] = []
    truncated = False
    fd = _open_folder(request, request["path"])
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(infos) == MAX_LISTED:
                truncated = True
                break
            try:
                infos.append(_info(entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                pass
    os.close(fd)
    _reply(connection, {"files": infos, "truncated": truncated})


def _read(connection: socket.socket, request: "dict[str, Any]") -> None:
    *way, name = request["path"]
    folder = _open_folder(request, way)
    # Non-blocking: a pipe without a writer would block the open.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    about = os.fstat(fd)
    if stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):
        raise NotRegular
    tag = f"{about.st_ino:x}-{about.st_mtime_ns:x}-{about.st_size:x}"
    _reply(connection, {"size": about.st_size, "modified": about.st_mtime, "tag": tag})
    while True:
        start, count = RANGE.unpack(_receive(connection, RANGE.size))
        while count:
            data = os.pread(fd, min(SEND_BYTES, count), start)
            if not data:
                raise EOFError  # the file became shorter; the host sees the end of the socket
            connection.sendall(data)
            start, count = start + len(data), count - len(data)


def _write(connection: socket.socket, request: "dict[str, Any]") -> None:
    *way, name = request["path"]
    folder = _open_folder(request, way, make=True)
    draft = f".{os.urandom(8).hex()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, request["mode"], dir_fd=folder)
    try:
        _reply(connection, {})
        while chunk := _receive_frame(connection, MAX_CHUNK_BYTES):
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            new = False
        except FileNotFoundError:
            new = True
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        info = _info(name, os.fstat(fd))
        os.close(fd)  # before the reply: the file does not change after it
        _reply(connection, {"info": info, "new": new})
    finally:
        try:
            os.unlink(draft, dir_fd=folder)
        except OSError:
            pass  # already renamed or removed


def _pack(connection: socket.socket, request: "dict[str, Any]") -> None:
    """Send a file or a folder as a tar stream."""
    packer = Packer()
    if not request["path"]:
        stream = packer.folder(_open_root(request))
    else:
        *way, name = request["path"]
        folder = _open_folder(request, way)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            stream = packer.folder(fd)
        elif stat.S_ISREG(about.st_mode):
            stream = packer.file(name, fd, about)
        else:
            raise NotRegular
    _reply(connection, {})
    buffer = bytearray()
    for piece in stream:
        buffer += piece
        if len(buffer) >= SEND_BYTES:
            _send_chunk(connection, buffer)
            buffer.clear()
    if buffer:
        _send_chunk(connection, buffer)
    _send_chunk(connection, b"")


def _send_chunk(connection: socket.socket, data: "bytes | bytearray") -> None:
    connection.sendall(LENGTH.pack(len(data)))
    connection.sendall(data)


def _unpack(connection: socket.socket, request: "dict[str, Any]") -> None:
    """Unpack a tar stream into a folder, which is made if it is missing."""
    root = _open_folder(request, request["path"], make=True)
    unpacker = Unpacker(root)
    _reply(connection, {})
    answer: dict[str, Any]
    try:
        while chunk := _receive_frame(connection, MAX_CHUNK_BYTES):
            unpacker.feed(chunk)
        unpacker.finish()
        answer = {"files": unpacker.files, "bytes": unpacker.bytes}
    except Malformed as error:
        detail = str(error).encode("utf-8", "backslashreplace").decode()
        answer = {"errno": errno.EINVAL, "why": MALFORMED, "detail": detail}
    except OSError as error:
        name = unpacker.path.encode("utf-8", "backslashreplace").decode()
        answer = {"errno": error.errno or errno.EIO, "detail": name}
    finally:
        unpacker.close()
    _reply(connection, answer)  # only now: nothing incomplete is left


def _remove(connection: socket.socket, request: "dict[str, Any]") -> None:
    *way, name = request["path"]
    folder = _open_folder(request, way)
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
    elif request["whole"]:
        _remove_whole(folder, name)
    else:
        os.rmdir(name, dir_fd=folder)
    _reply(connection, {})


def _remove_whole(folder: int, name: str) -> None:
    for way, folders, files, fd in os.fwalk(name, topdown=False, dir_fd=folder, follow_symlinks=False):
        del way
        for each in files:
            os.unlink(each, dir_fd=fd)
        for each in folders:
            if stat.S_ISDIR(os.stat(each, dir_fd=fd, follow_symlinks=False).st_mode):
                os.rmdir(each, dir_fd=fd)
            else:
                os.unlink(each, dir_fd=fd)
    os.rmdir(name, dir_fd=folder)


def _stat(connection: socket.socket, request: "dict[str, Any]") -> None:
    if not request["path"]:
        about = os.fstat(_open_root(request))
        name = "."
    else:
        *way, name = request["path"]
        about = os.stat(name, dir_fd=_open_folder(request, way), follow_symlinks=False)
    _reply(connection, {"info": _info(name, about)})


def _make_folder(connection: socket.socket, request: "dict[str, Any]") -> None:
    *way, name = request["path"]
    folder = _open_folder(request, way, make=True)
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
        new = True
    except FileExistsError:
        new = False
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _reply(connection, {"info": _info(name, about), "new": new})


def _move(connection: socket.socket, request: "dict[str, Any]") -> None:
    *way, name = request["path"]
    source = _open_folder(request, way)
    *way, new_name = request["to_path"]
    target = _open_folder({"root": request["to_root"], "fixed": request["to_fixed"]}, way, make=True)
    os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    about = os.stat(new_name, dir_fd=target, follow_symlinks=False)
    _reply(connection, {"info": _info(new_name, about)})


def _tree(connection: socket.socket, request: "dict[str, Any]") -> None:
    """Serve requests about the whole folder, until the host closes the socket. With `make`, it may be missing."""
    for folder in request.get("make", []):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
    root = _open_root(request)
    _reply(connection, {})
    TreeAgent(connection, root).run()


_VERBS = {
    "list": _list,
    "read": _read,
    "write": _write,
    "remove": _remove,
    "stat": _stat,
    "make_folder": _make_folder,
    "move": _move,
    "pack": _pack,
    "unpack": _unpack,
    "tree": _tree,
}
