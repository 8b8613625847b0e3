"""A proxy that stands between a client and a server and cuts connections, at the byte it is told to."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

RESET = struct.pack("ii", 1, 0)
"""Close without a farewell: the other end sees a reset, as when a machine vanishes."""


class Cutter:
    """Passes bytes on both ways. `budget()` says how many bytes of an answer a new connection may carry before it is
    cut, or None for one that is left alone."""

    def __init__(self, port: int, budget: Callable[[], int | None]) -> None:
        self._target = ("127.0.0.1", port)
        self._budget = budget
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> Cutter:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A listener that is shut down wakes up who accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(10)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self._threads)

    def cut(self) -> None:
        """Every connection that there is."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.cuts += 1

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._carry, args=(client, self._budget()))
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket, budget: int | None) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            self._open |= {client, server}
            try:
                self._pass_on(client, server, budget)
            finally:
                self._open -= {client, server}

    def _pass_on(self, client: socket.socket, server: socket.socket, budget: int | None) -> None:
        while True:
            readable, _, _ = select.select([client, server], [], [])
            for source in readable:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    server.sendall(data)
                    continue
                if budget is not None and len(data) >= budget:
                    client.sendall(data[:budget])
                    self.cuts += 1
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    return
                client.sendall(data)
                if budget is not None:
                    budget -= len(data)
