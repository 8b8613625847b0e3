"""stdout and stderr of a session: real descriptors underneath, so that C code and children are captured too.

Python's own writes go straight to the descriptor, unbuffered: no flusher thread, and nothing is stranded when
the cell sleeps or dies. Two things are told to the host besides the bytes: when Python turns from one stream to
the other (so that the host can keep their order), and text of a thread or task that belongs to an earlier cell
while another one runs (it travels on the wire, so that it is never taken for the running cell's).
"""

import builtins
import fcntl
import io
import os
import struct
import sys
import termios
import threading
from _thread import get_ident, get_native_id
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import monotonic_ns, sleep
from typing import Any
from weakref import WeakSet

from ingle_worker.session.link import Link
from ingle_worker.wire.messages import Background, Look, Mark

CELL: ContextVar[int] = ContextVar("ingle_cell")
"""The cell that code was started by: tasks of the event loop inherit it, threads do not."""

_NO_BYTES = b"\0\0\0\0"
write_to = os.write

PIECE = 1 << 16
"""Bytes written in one go: between two of them it may become another cell's turn."""

WRITERS_PATIENCE = 1_000_000_000
"""Nanoseconds that a cell waits for a thread in the middle of a write; it may have put anything on descriptor 1."""


class Channel:
    """The two output streams as a pair: whose turn it is, and who is writing."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.turn: Out | None = None
        self.cell = 0
        self.crowded = False
        """There may be writers that do not belong to the running cell: look before each write."""
        self.looping = False
        self.alone = False
        """The cell's own thread is the only one: nobody can look while it writes."""
        self._older: frozenset[int] = frozenset()
        self._strays: WeakSet[threading.Thread] = WeakSet()
        """Threads that the background has started since the running cell began."""
        self._told_crowded = False
        self.stdout = Out(self, 1, "stdout")
        self.stderr = Out(self, 2, "stderr")

    def cell_begins(self, cell: int) -> None:
        CELL.set(cell)
        # Once told of threads, the host waits for the mark, whether they are gone by now or not.
        if self._told_crowded or len(sys._current_frames()) > 1:
            self._older = other_threads()
            self._strays.clear()
            self.crowded = True
            self.alone = False
            self._wait_for_writers()
            # Last: until here every thread is background because no cell runs, from here on because it is older.
            self.cell = cell
            self.link.send_made(lambda: self._mark(begin=cell))
        else:
            self._older = frozenset()
            self.crowded = self.looping
            self.alone = True
            self.cell = cell

    def cell_ended(self) -> bool:
        """True when threads are left that may write on."""
        self._told_crowded = len(sys._current_frames()) > 1
        # Between cells threads and tasks write on the wire: in the pipe it might pass for a cell's that just ended
        # or is about to begin.
        self.crowded = self._told_crowded or self.looping
        self.cell = 0
        return self._told_crowded

    def install(self) -> None:
        """Have lines printed in one piece, and threads that the background starts known as background."""
        start = threading.Thread.start

        def start_thread(thread: threading.Thread) -> None:
            self.alone = False
            if self.crowded and self.is_background():
                self._strays.add(thread)
            start(thread)

        builtins.print = self._make_print()
        threading.Thread.start = start_thread  # type: ignore[assignment, method-assign]

    def _make_print(self) -> Callable[..., None]:
        """Return a `print` that writes its text in one piece: half the system calls, and no thread tears a line."""
        original = builtins.print

        def print(
            *args: object, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
        ) -> None:
            out = sys.stdout if file is None else file
            if type(out) is Out and type(sep) is str and type(end) is str:
                text = str(args[0]) if len(args) == 1 else sep.join(map(str, args))
                out.write(text + end)
            else:
                original(*args, sep=sep, end=end, file=file, flush=flush)

        print.__doc__ = original.__doc__
        print.__module__ = "builtins"
        print.__qualname__ = "print"
        return print

    def forget(self) -> None:
        """As if nothing had been written yet."""
        self.turn = None
        self.stdout.forget()
        self.stderr.forget()

    def start_anew(self) -> None:
        """In a copy of the session's process: new pipes, and none of the threads."""
        self.forget()
        for out in (self.stdout, self.stderr):
            out.writers.clear()
        self.cell = 0
        self.crowded = self.looping = self._told_crowded = False
        self._older = frozenset()
        self._strays.clear()

    def is_background(self) -> bool:
        """Whether the caller belongs to another cell than the one that runs."""
        if not self.cell:
            return True
        cell = CELL.get(None)
        if cell is not None:
            return cell != self.cell
        return get_native_id() in self._older or self._is_stray()

    def _is_stray(self) -> bool:
        # Numbers of threads that have ended are given again.
        me = get_ident()
        return bool(self._strays) and any(each.ident == me and each.is_alive() for each in list(self._strays))

    def before_write(self, out: "Out", data: bytes) -> bool:
        """Tell the host what it has to know about this write. True when the text went on the wire instead."""
        if self.crowded and self.is_background():
            text = data.decode("utf-8", "backslashreplace")
            self.link.send_made(lambda: Background(out.stream, text, self._mark(out)))
            return True
        while self.turn is not out:  # more than once, if a signal handler writes to the other stream meanwhile
            before, self.turn = self.turn, out
            if before is not None:
                self.link.send_made(lambda: self._mark(out))
        return False

    def _wait_for_writers(self) -> None:
        """Until what threads of the last cell were about to put into the pipes is in there, before the mark."""
        end = monotonic_ns() + WRITERS_PATIENCE
        begun = [*self.stdout.writers, *self.stderr.writers]
        while begun and monotonic_ns() < end:
            sleep(0.0002)
            begun = [write for write in begun if write in self.stdout.writers or write in self.stderr.writers]

    def mark(self) -> Mark:
        """The place between what was written before and what will be written after this moment."""
        return self._mark()

    def _mark(self, out: "Out | None" = None, begin: int = 0) -> Mark:
        before = monotonic_ns()
        stdout, stderr = self.stdout.look(int(out is self.stdout)), self.stderr.look(int(out is self.stderr))
        return Mark(before, monotonic_ns(), stdout, stderr, begin)


def other_threads() -> frozenset[int]:
    """Native ids of all threads of this process but the calling one."""
    me = get_native_id()
    try:
        return frozenset(int(name) for name in os.listdir("/proc/self/task")) - {me}
    except OSError:
        return frozenset(t.native_id for t in threading.enumerate() if t.native_id) - {me}


class ByteOut(io.BufferedIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, out: "Out") -> None:
        self._out = out

    @property
    def name(self) -> str:
        return f"<{self._out.stream}>"

    @property
    def mode(self) -> str:
        return "wb"

    @property
    def raw(self) -> Any:
        return self

    def write(self, data: Any) -> int:
        blob = bytes(data)
        self._out.write_bytes(blob)
        return len(blob)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def fileno(self) -> int:
        return self._out.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


class Out(io.TextIOWrapper):
    """`sys.stdout` and `sys.stderr`. Closing it does nothing: the session needs it for the next cell."""

    def __init__(self, channel: Channel, number: int, stream: str) -> None:
        self._channel = channel
        self._number = number
        self.pipe = number
        """Another descriptor of the session's pipe, for looking: code may point the usual one elsewhere."""
        self.stream = stream
        self._written = 0
        self.writers: list[object] = []
        """One for each write that is about to be made, or is made and not yet counted; each is told from the next."""
        super().__init__(ByteOut(self), "utf-8", "backslashreplace", "\n", write_through=True)
        self.mode = "w"  # type: ignore[misc]

    def write(self, text: str) -> int:
        if type(text) is not str and not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode("utf-8", "backslashreplace")
        channel = self._channel
        # What nearly every write is: the next on the same stream, and nobody else about.
        if channel.alone and channel.turn is self and not channel.crowded and len(data) <= PIECE:
            sent = write_to(self._number, data)
            self._written += sent
            if sent == len(data):
                return len(text)
            data = data[sent:]
        self.write_bytes(data)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        while len(data) > PIECE:
            cut = PIECE
            while data[cut] & 0xC0 == 0x80 and cut > PIECE - 4:  # not within a character
                cut -= 1
            self._write_piece(data[:cut])
            data = data[cut:]
        self._write_piece(data)

    def _write_piece(self, data: bytes) -> None:
        channel = self._channel
        write = object()
        # First: for whoever looks at the writers, those not among them will see what he has set before.
        self.writers.append(write)
        try:
            if (channel.turn is not self or channel.crowded) and channel.before_write(self, data):
                return
            sent = os.write(self._number, data)
            self._written += sent
            while sent < len(data):
                more = os.write(self._number, data[sent:])
                self._written += more
                sent += more
        finally:
            self.writers.remove(write)

    def forget(self) -> None:
        self._written = 0

    def look(self, writers: int) -> Look:
        """`writers` is how many there are if none but the caller is at it."""
        written, alone = self._written, len(self.writers) == writers
        try:
            unread = fcntl.ioctl(self.pipe, termios.FIONREAD, _NO_BYTES)
        except OSError:
            unread = _NO_BYTES
        certain = alone and len(self.writers) == writers and written == self._written
        return Look(struct.unpack("i", unread)[0], written, certain)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    @property
    def closed(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"<{self.stream}>"

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **options: Any) -> None:
        """Accepted and without effect: the wire speaks UTF-8."""
