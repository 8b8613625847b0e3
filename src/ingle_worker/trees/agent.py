"""The part of a file agent that serves requests about a whole folder."""

import array
import errno
import json
import os
import socket
from typing import Any

from ingle_worker.trees import listing, steps
from ingle_worker.trees.paths import Paths
from ingle_worker.wire.files import LENGTH
from ingle_worker.wire.trees import MAX_FILES_PER_MESSAGE, MAX_MESSAGE_BYTES, WRITE_FILE

FD_BYTES = array.array("i").itemsize
FDS_SPACE = socket.CMSG_SPACE(MAX_FILES_PER_MESSAGE * FD_BYTES)
READ_BYTES = 1 << 16


class TreeAgent:
    """Serves requests about one open folder, until the host closes the socket."""

    def __init__(self, connection: socket.socket, root: int) -> None:
        self._connection = connection
        self._root = root
        self._paths = Paths(root)
        self._data = bytearray()
        self._fds: list[int] = []

    def run(self) -> None:
        while True:
            request = json.loads(self._receive())
            fds, self._fds = self._fds, []
            try:
                self._serve(request, fds)
            finally:
                self._paths.forget()
                for fd in fds:
                    os.close(fd)

    def _serve(self, request: "dict[str, Any]", fds: "list[int]") -> None:
        if request["do"] == "list":
            ignoring = listing.Ignoring(request["rules"]) if request["tracked"] else None
            for part in listing.entries(self._root, ignoring, layer=request["layer"]):
                self._send(part)
            self._send([])
        elif request["do"] == "find":
            for part in listing.find(self._root, self._paths, request["paths"]):
                self._send(part)
            self._send([])
        elif request["do"] == "fetch":
            found = [self._fetch(path, limit, fd) for (path, limit), fd in zip(request["files"], fds, strict=True)]
            # Before the reply: from then on, no other process writes to the host's files.
            while fds:
                os.close(fds.pop())
            self._send(found)
        else:
            sources, draft = iter(fds), request["draft"]
            done = [
                self._apply(each, next(sources) if each[0] == WRITE_FILE else None, draft) for each in request["steps"]
            ]
            self._send(done)

    def _fetch(self, path: str, limit: int, target: int) -> "list[Any]":
        try:
            return [0, *steps.fetch(self._paths, path, limit, target)]
        except OSError as error:
            return [error.errno or errno.EIO, 0, 0, 0, 0, 0, False]

    def _apply(self, step: "list[Any]", source: "int | None", draft: str) -> "list[int]":
        try:
            about = steps.apply(self._paths, step, source, draft)
        except OSError as error:
            return [error.errno or errno.EIO, 0, 0, 0, 0]
        if about is None:
            return [0, 0, 0, 0, 0]
        return [0, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]

    # --- framing ---

    def _receive(self) -> bytes:
        """Return the next message. Its descriptors are in `_fds` then."""
        self._fill(LENGTH.size)
        (length,) = LENGTH.unpack_from(self._data)
        if length > MAX_MESSAGE_BYTES:
            raise EOFError
        self._fill(LENGTH.size + length)
        message = bytes(self._data[LENGTH.size : LENGTH.size + length])
        del self._data[: LENGTH.size + length]
        return message

    def _fill(self, count: int) -> None:
        while len(self._data) < count:
            data, extra, _, _ = self._connection.recvmsg(READ_BYTES, FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
            for _, _, payload in extra:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % FD_BYTES])
                self._fds += fds
            if not data:
                raise EOFError
            self._data += data

    def _send(self, reply: "list[Any]") -> None:
        data = json.dumps(reply).encode()
        self._connection.sendall(LENGTH.pack(len(data)) + data)
