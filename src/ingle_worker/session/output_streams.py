"""stdout and stderr of a session. They write to real descriptors, so output of C code and children is captured too.

Python's writes are unbuffered: there is no flusher thread, and no text is lost if the cell sleeps or dies. The host
also gets a mark when Python switches between the streams, so that it can keep their order. Text of threads and tasks of
earlier cells goes over the wire, so that it is never taken for the running cell's.
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
"""The cell that started the code. Tasks of the event loop inherit it, threads do not."""

_NO_BYTES = b"\0\0\0\0"
write_fd = os.write

PIECE_BYTES = 1 << 16
"""Bytes written in one call. Between two calls another cell may start."""

WRITERS_WAIT_NS = 1_000_000_000
"""Nanoseconds that a cell waits for a thread in the middle of a write, which may block for ever."""


class OutputStreams:
    """The pair of output streams: which one was written last, and by whom."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.current: OutputStream | None = None
        self.cell = 0
        self.crowded = False
        """Code of other cells may write, so check before each write."""
        self.has_tasks = False
        self.only_thread = False
        """The cell's thread is the only one, so nobody takes a mark while it writes."""
        self._older_threads: frozenset[int] = frozenset()
        self._background_threads: WeakSet[threading.Thread] = WeakSet()
        """Threads that background code has started since the running cell began."""
        self._reported_crowded = False
        self.stdout = OutputStream(self, 1, "stdout")
        self.stderr = OutputStream(self, 2, "stderr")

    def cell_begins(self, cell: int) -> None:
        CELL.set(cell)
        # If the host was told of threads, it waits for the mark, even if they are gone now.
        if self._reported_crowded or len(sys._current_frames()) > 1:
            self._older_threads = other_threads()
            self._background_threads.clear()
            self.crowded = True
            self.only_thread = False
            self._wait_for_writers()
            # Last: until here all threads are background because no cell runs, then because they are older.
            self.cell = cell
            self.link.send_made(lambda: self._mark(begin=cell))
        else:
            self._older_threads = frozenset()
            self.crowded = self.has_tasks
            self.only_thread = True
            self.cell = cell

    def cell_ended(self) -> bool:
        """Return True if other threads are left that may write."""
        self._reported_crowded = len(sys._current_frames()) > 1
        # Between cells, threads and tasks write to the wire. In the pipe their text could be taken for a cell's.
        self.crowded = self._reported_crowded or self.has_tasks
        self.cell = 0
        return self._reported_crowded

    def install(self) -> None:
        """Replace `print` by one that writes a line at once, and track threads started by background code."""
        start = threading.Thread.start

        def start_thread(thread: threading.Thread) -> None:
            self.only_thread = False
            if self.crowded and self.is_background():
                self._background_threads.add(thread)
            start(thread)

        builtins.print = self._make_print()
        threading.Thread.start = start_thread  # type: ignore[assignment, method-assign]

    def _make_print(self) -> Callable[..., None]:
        """Return a `print` that writes its text in one piece: half the system calls, and no torn lines."""
        original = builtins.print

        def print(
            *args: object, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
        ) -> None:
            out = sys.stdout if file is None else file
            if type(out) is OutputStream and type(sep) is str and type(end) is str:
                text = str(args[0]) if len(args) == 1 else sep.join(map(str, args))
                out.write(text + end)
            else:
                original(*args, sep=sep, end=end, file=file, flush=flush)

        print.__doc__ = original.__doc__
        print.__module__ = "builtins"
        print.__qualname__ = "print"
        return print

    def forget(self) -> None:
        """Reset all counters, as if nothing had been written."""
        self.current = None
        self.stdout.forget()
        self.stderr.forget()

    def reset_in_copy(self) -> None:
        """Reset in a copy, which has new pipes and no other threads."""
        self.forget()
        for out in (self.stdout, self.stderr):
            out.writers.clear()
        self.cell = 0
        self.crowded = self.has_tasks = self._reported_crowded = False
        self._older_threads = frozenset()
        self._background_threads.clear()

    def is_background(self) -> bool:
        """Return whether the caller belongs to another cell than the running one."""
        if not self.cell:
            return True
        cell = CELL.get(None)
        if cell is not None:
            return cell != self.cell
        return get_native_id() in self._older_threads or self._is_background_thread()

    def _is_background_thread(self) -> bool:
        # Ids of ended threads are reused.
        me = get_ident()
        return bool(self._background_threads) and any(
            each.ident == me and each.is_alive() for each in list(self._background_threads)
        )

    def before_write(self, out: "OutputStream", data: bytes) -> bool:
        """Send the host all it needs to know about this write. Return True if the text went over the wire instead."""
        if self.crowded and self.is_background():
            text = data.decode("utf-8", "backslashreplace")
            self.link.send_made(lambda: Background(out.stream, text, self._mark(out)))
            return True
        while self.current is not out:  # more than once if a signal handler writes to the other stream meanwhile
            before, self.current = self.current, out
            if before is not None:
                self.link.send_made(lambda: self._mark(out))
        return False

    def _wait_for_writers(self) -> None:
        """Wait until pending writes of the last cell's threads are in the pipes, before the mark."""
        end = monotonic_ns() + WRITERS_WAIT_NS
        begun = [*self.stdout.writers, *self.stderr.writers]
        while begun and monotonic_ns() < end:
            sleep(0.0002)
            begun = [write for write in begun if write in self.stdout.writers or write in self.stderr.writers]

    def mark(self) -> Mark:
        """Return the position between all earlier and all later output."""
        return self._mark()

    def _mark(self, out: "OutputStream | None" = None, begin: int = 0) -> Mark:
        before = monotonic_ns()
        stdout, stderr = self.stdout.look(int(out is self.stdout)), self.stderr.look(int(out is self.stderr))
        return Mark(before, monotonic_ns(), stdout, stderr, begin)


def other_threads() -> frozenset[int]:
    """Return the native ids of all other threads."""
    me = get_native_id()
    try:
        return frozenset(int(name) for name in os.listdir("/proc/self/task")) - {me}
    except OSError:
        return frozenset(t.native_id for t in threading.enumerate() if t.native_id) - {me}


class ByteOutput(io.BufferedIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, out: "OutputStream") -> None:
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


class OutputStream(io.TextIOWrapper):
    """`sys.stdout` and `sys.stderr`. Closing has no effect: the next cell needs the stream."""

    def __init__(self, output: OutputStreams, number: int, stream: str) -> None:
        self._output = output
        self._number = number
        self.pipe = number
        """Another descriptor of the same pipe, to count unread bytes: code may redirect the usual one."""
        self.stream = stream
        self._written = 0
        self.writers: list[object] = []
        """One object per write that is pending, or done and not yet counted."""
        super().__init__(ByteOutput(self), "utf-8", "backslashreplace", "\n", write_through=True)
        self.mode = "w"  # type: ignore[misc]

    def write(self, text: str) -> int:
        if type(text) is not str and not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode("utf-8", "backslashreplace")
        output = self._output
        # The usual case: the next write on the same stream, with no other writer.
        if output.only_thread and output.current is self and not output.crowded and len(data) <= PIECE_BYTES:
            sent = write_fd(self._number, data)
            self._written += sent
            if sent == len(data):
                return len(text)
            data = data[sent:]
        self.write_bytes(data)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        while len(data) > PIECE_BYTES:
            cut = PIECE_BYTES
            while data[cut] & 0xC0 == 0x80 and cut > PIECE_BYTES - 4:  # not inside a character
                cut -= 1
            self._write_piece(data[:cut])
            data = data[cut:]
        self._write_piece(data)

    def _write_piece(self, data: bytes) -> None:
        output = self._output
        write = object()
        # First: a writer that is not in the list yet sees all that `cell_begins` set before it read the list.
        self.writers.append(write)
        try:
            if (output.current is not self or output.crowded) and output.before_write(self, data):
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
        """Return the state of the pipe. `writers` is the number of writers if only the caller writes."""
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
        """Accept options without effect: the encoding is always UTF-8."""
