"""The command's standard streams, read and written without blocking the event loop or the exit."""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ingle import errors
from ingle.cli.echo import TextPieces
from ingle.cli.foreground import Foreground

CHUNK = 65536


class CallThread:
    """Thread that makes blocking calls in order, and does not delay the exit.

    asyncio joins its threads at exit, and one that reads a terminal would keep the process alive.
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
            except RuntimeError:  # the loop is closed
                return


def _settle(made: "asyncio.Future[Any]", value: Any, failure: OSError | None) -> None:
    if made.done():
        return
    if failure is not None:
        made.set_exception(failure)
    else:
        made.set_result(value)


class Output:
    """The command's standard output and standard error."""

    def __init__(self, *, raw: bool = False) -> None:
        """With `raw`, a command gets this terminal as its own, control sequences included."""
        self._thread_calls = CallThread()
        self._raw = raw
        self._streams: dict[int, TextPieces] = {}

    async def write(self, fd: int, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape") if self._raw else self._stream(fd).encode(text)
        await self._thread_calls.call(lambda: _write_all(fd, data))

    def _stream(self, fd: int) -> TextPieces:
        if fd not in self._streams:
            self._streams[fd] = TextPieces(fd)
        return self._streams[fd]


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Lines:
    """Lines of a descriptor, read on request only."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread_calls = CallThread()
        self._reading: asyncio.Future[bytes] | None = None
        self._buffer = bytearray()
        self._ended = False

    async def next(self) -> tuple[str, bool]:
        """Return the next line with its newline, and whether the input ends with it. Cancelling loses nothing."""
        while b"\n" not in self._buffer and not self._ended:
            if self._reading is None:
                self._reading = self._thread_calls.call(lambda: os.read(self._fd, CHUNK))
            await asyncio.wait({self._reading})
            # A terminal that was closed raises an error and has no more input.
            data = b"" if self._reading.exception() is not None else self._reading.result()
            self._reading = None
            self._buffer += data
            # A terminal can be read again after end of file, but one end is enough for one cell.
            self._ended = not data
        line, newline, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return (line + newline).decode("utf-8", "surrogateescape"), not newline

    def put_back(self, text: str) -> None:
        """Make a line that was not used the next one again."""
        self._buffer[:0] = text.encode("utf-8", "surrogateescape")


class Answers:
    """Answers to reads of a cell: each is a line of standard input, or the end of it."""

    def __init__(self, front: Foreground, send: Callable[[str, bool], Awaitable[object]], *, takes_stdin: bool) -> None:
        """`send` gives the session a text, and says whether the input ends with it."""
        self._front = front
        self._send = send
        self._lines = Lines(0) if takes_stdin else None
        self._answering: asyncio.Task[None] | None = None

    def begin(self, *, secret: bool) -> None:
        """Answer a cell that waits, unless that is under way."""
        if self._answering is None or self._answering.done():
            self._answering = self._front.help(self._answer(secret))

    def stop(self) -> None:
        """Give up the answer: the cell has ended."""
        if self._answering is not None:
            self._answering.cancel()

    async def _answer(self, secret: bool) -> None:
        text, eof = "", True
        if self._lines is not None:
            with no_echo(0) if secret else contextlib.nullcontext():
                text, eof = await self._lines.next()
        try:
            await self._send(text, eof)
        except errors.NotWaiting:
            # The cell was interrupted, or another reader came first; the next one gets the line.
            if self._lines is not None:
                self._lines.put_back(text)
        except errors.SessionNotFound:
            return


@contextlib.contextmanager
def no_echo(fd: int) -> Iterator[None]:
    """Hide typed text inside the context, if this is a terminal."""
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
        # The newline that ended the answer was hidden too.
        with contextlib.suppress(OSError):
            os.write(2, b"\n")
