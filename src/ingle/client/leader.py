"""Which thread of several reads a connection: the leader.

The leader carries out the call that it has read, and lends its place meanwhile. Most functions return before the next
message comes, and the leader goes on without a switch of threads. Such a switch takes longer than the call.
"""

import select
import socket
import threading


class Leader:
    """Place of the leader of a connection whose bytes a library reads: lent to the thread that waits, at once."""

    def __init__(self) -> None:
        self._place = threading.Lock()

    def wait(self) -> None:
        """Wait until this thread leads."""
        self._place.acquire()

    def lend(self, *, wanted: bool) -> None:
        """Let another thread lead. `wanted`: a message is there already, which no descriptor shows."""
        self._place.release()

    def take_back(self) -> bool:
        """Lead again, unless another thread may have begun to."""
        return False

    def close(self) -> None:
        """Free what it holds. No thread waits any more."""


class NearLeader(Leader):
    """Place of the leader of a socket: another thread takes it when a message comes that the leader does not read."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock
        self._free = True
        self._wanted = False
        self._hears, self._says = socket.socketpair()
        self._epoll = select.epoll()
        # Only for one event: otherwise the end of the connection would wake the threads again and again.
        self._epoll.register(sock.fileno(), select.EPOLLONESHOT)
        self._epoll.register(self._hears.fileno(), select.EPOLLIN)
        self._want()

    def _want(self) -> None:
        self._wanted = True
        self._says.send(b"\0")

    def _watch(self, events: int) -> bool:
        """Watch the socket for these events. Return False if this side has closed it."""
        try:
            self._epoll.modify(self._socket.fileno(), events | select.EPOLLONESHOT)
        except (OSError, ValueError):
            return False
        return True

    def wait(self) -> None:
        while True:
            self._epoll.poll()
            if self.take_back():
                return

    def lend(self, *, wanted: bool) -> None:
        with self._place:
            self._free = True
            if wanted or not self._watch(select.EPOLLIN):
                self._want()

    def take_back(self) -> bool:
        with self._place:
            if not self._free:
                return False
            self._free = False
            if self._wanted:
                self._wanted = False
                self._hears.recv(1)
            else:
                self._watch(0)
            return True

    def close(self) -> None:
        self._epoll.close()
        self._hears.close()
        self._says.close()
