"""This command's own streams: written and read without ever holding up the loop, or the end of the process."""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

CHUNK = 65536


class Hand:
    """Makes blocking calls, one after another, in a thread that nobody waits for at the end.

    The threads of asyncio are joined when the process ends; one that reads a terminal would keep it alive.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        made: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((function, made))
        return made

    def _work(self) -> None:
        while True:
            function, made = self._calls.get()
            value, failure = None, None
            try:
                value = function()
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(_settle, made, value, failure)
            except RuntimeError:  # the loop is closed: nobody asks any more
                return


def _settle(made: "asyncio.Future[Any]", value: Any, failure: OSError | None) -> None:
    if made.done():
        return
    if failure is not None:
        made.set_exception(failure)
    else:
        made.set_result(value)


class Output:
    def __init__(self) -> None:
        self._hand = Hand()

    async def write(self, fd: int, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        await self._hand.call(lambda: _write_all(fd, data))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Lines:
    """Lines of a descriptor, read only when somebody asks for one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._hand = Hand()
        self._reading: asyncio.Future[bytes] | None = None
        self._buffer = bytearray()
        self._ended = False

    async def next(self) -> tuple[str, bool]:
        """The next line, with its end if it has one, and whether the input ends with it. Cancelling loses nothing."""
        while b"\n" not in self._buffer and not self._ended:
            if self._reading is None:
                self._reading = self._hand.call(lambda: os.read(self._fd, CHUNK))
            await asyncio.wait({self._reading})
            # A terminal that went away reads as an error; there is no more to come from it.
            data = b"" if self._reading.exception() is not None else self._reading.result()
            self._reading = None
            self._buffer += data
            # On a terminal the end of file is an event, not a state, but one is enough for one cell.
            self._ended = not data
        line, newline, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return (line + newline).decode("utf-8", "surrogateescape"), not newline

    def put_back(self, text: str) -> None:
        """The line was not taken; it is the next one again."""
        self._buffer[:0] = text.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def no_echo(fd: int) -> Iterator[None]:
    """What is typed meanwhile is not shown, if this is a terminal."""
    import termios

    try:
        before = termios.tcgetattr(fd)
    except (termios.error, OSError):
        yield
        return
    silent = termios.tcgetattr(fd)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        # The newline that ended the answer was not shown either.
        with contextlib.suppress(OSError):
            os.write(2, b"\n")
