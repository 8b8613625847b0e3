"""Standard input of a session: every read that would block is announced, and the right reader gets the answer.

Descriptor 0 is a real pipe for child processes and raw reads, which the host detects itself. Python's readers use this
module. If several wait, a read of the running cell comes first, then reads of earlier cells' threads in order. Bytes
left over by a read of the running cell stay for its next read; others are dropped. An interrupt is deferred from the
first byte that a read takes to the moment when the rest is stored, so that no byte is lost uncounted.
"""

import getpass
import io
import os
import select
import sys
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.wire.constants import MAX_PROMPT_CHARS
from ingle_worker.wire.messages import InputTaken, InputWait

CHUNK_BYTES = 65536


class ReadCall:
    """One call of read or readline, while it lasts."""

    def __init__(self, cell: int, prompt: str | None, secret: bool) -> None:
        self.cell = cell
        self.prompt = prompt
        self.secret = secret
        self.local = bytearray()
        self.until_end = False
        self.wait = 0
        """Number of the last announced wait that is not over for the host, or 0."""
        self.wake = allocate_lock()
        self.wake.acquire()


class Input:
    """Owner of descriptor 0 among Python's readers."""

    def __init__(self, link: Link, output: OutputStreams, interrupts: Interrupts) -> None:
        self._link = link
        self._output = output
        self._interrupts = interrupts
        self._pending = bytearray()
        self._calls: list[ReadCall] = []
        self._waits = 0
        self.bytes = ByteInput(self)
        self.text = TextInput(self.bytes)
        self.announces = True
        """Whether the host is told of waits. In a process that user code forked, it finds blocked reads itself."""
        self.before_wait: Callable[[], None] | None = None
        """Called before a reader waits, while interrupts are possible."""

    # --- the cell's boundary ---

    def cell_ended(self) -> int:
        """Drop bytes that were taken from the pipe but not read, and return their number. The host empties the pipe."""
        dropped = len(self._pending)
        if dropped:
            self._pending.clear()
        if self._calls:
            self._wake_readers()
        return dropped

    def reset_in_copy(self) -> None:
        """Forget all waiting readers, in a copy: they wait in the original."""
        self._pending.clear()
        self._calls.clear()

    def forked(self) -> None:
        """Read without announcements, in a process that user code forked. Other threads' reads are not in it."""
        self.reset_in_copy()
        self.announces = False

    # --- one call ---

    def begin(self, prompt: str | None = None, secret: bool = False) -> ReadCall:
        """Begin a call. The caller has shielded it from interrupts, until after `end`."""
        cell = 0 if self._output.is_background() else self._output.cell
        call = ReadCall(cell, prompt, secret)
        if self._is_foreground(call):
            call.local += self._pending
            self._pending.clear()
        return call

    def end(self, call: ReadCall, taken: int) -> bytes:
        """Finish a call that consumes this many of its bytes."""
        got = bytes(call.local[:taken])
        if self._is_foreground(call):
            self._pending[:0] = call.local[taken:]
        if call.until_end:
            self._report_taken(call)
        return got

    def fill(self, call: ReadCall) -> bool:
        """Wait for more bytes for this call. Return False at end of input. Interrupts come through while it waits.

        Normally the host is told at once that the wait is over. A call that reads to the end reports it only when it
        ends or waits again. Until then the host must not drop input, because the call still has to read its end.
        """
        if not self.announces:
            data = self._read()
            call.local += data
            return bool(data)
        announced = goes_on = False
        if self.before_wait is not None:
            try:
                self._interrupts.unshield()
                self.before_wait()
            finally:
                self._interrupts.shield()
        self._calls.append(call)
        try:
            while True:
                if self._first() is call and self._readable(0):
                    data = self._read()
                    call.local += data
                    goes_on = bool(data) and call.until_end
                    return bool(data)
                # Answers end with a newline: in the middle of a line, the rest is on its way.
                if not announced and (not call.local or call.local.endswith(b"\n")):
                    announced = True
                    before = call.wait
                    self._waits += 1
                    call.wait = self._waits
                    background = not self._is_foreground(call)
                    prompt = call.prompt and call.prompt[-MAX_PROMPT_CHARS:]
                    self._link.send(InputWait(call.wait, background, prompt, call.secret))
                    if before:
                        # After the new wait, so that there is always one.
                        self._link.send(InputTaken(before))
                try:
                    self._interrupts.unshield()
                    if self._first() is call:
                        self._readable(None)
                    else:
                        call.wake.acquire()
                finally:
                    self._interrupts.shield()
        finally:
            self._calls.remove(call)
            self._wake_readers()
            if not goes_on:
                self._report_taken(call)

    def _report_taken(self, call: ReadCall) -> None:
        wait, call.wait = call.wait, 0
        if wait:
            self._link.send(InputTaken(wait))

    def _is_foreground(self, call: ReadCall) -> bool:
        return call.cell != 0 and call.cell == self._output.cell

    def _first(self) -> ReadCall:
        for call in self._calls:
            if self._is_foreground(call):
                return call
        return self._calls[0]

    def _wake_readers(self) -> None:
        for call in self._calls:
            try:
                call.wake.release()
            except RuntimeError:  # already released: the next acquire passes
                continue

    @staticmethod
    def _readable(milliseconds: int | None) -> bool:
        poller = select.poll()
        poller.register(0, select.POLLIN)
        ready = poller.poll(milliseconds)
        if ready and ready[0][1] & select.POLLNVAL:
            raise OSError(9, "standard input was closed in this session")
        return bool(ready)

    @staticmethod
    def _read() -> bytes:
        return os.read(0, CHUNK_BYTES)

    # --- what the streams are made of ---

    def read_line(self, limit: int = -1, prompt: str | None = None, secret: bool = False) -> bytes:
        self._interrupts.shield()
        try:
            return self._read_line(limit, self.begin(prompt, secret))
        finally:
            self._interrupts.unshield()

    def _read_line(self, limit: int, call: ReadCall) -> bytes:
        taken = 0
        seen = 0
        try:
            while True:
                newline = call.local.find(b"\n", seen)
                if newline >= 0:
                    taken = newline + 1
                    break
                seen = len(call.local)
                if 0 <= limit <= seen or not self.fill(call):
                    taken = len(call.local)
                    break
            if 0 <= limit < taken:
                taken = limit
        finally:
            got = self.end(call, taken)
        return got

    def read_some(self, size: int, *, whole: bool) -> bytes:
        """Return `size` bytes, or all up to the end if negative. Without `whole`, return the first bytes available."""
        self._interrupts.shield()
        try:
            return self._read_some(size, self.begin(), whole)
        finally:
            self._interrupts.unshield()

    def _read_some(self, size: int, call: ReadCall, whole: bool) -> bytes:
        call.until_end = size < 0
        taken = 0
        try:
            while size < 0 or len(call.local) < size:
                if call.local and not whole:
                    break
                if not self.fill(call):
                    break
            taken = len(call.local) if size < 0 else min(size, len(call.local))
        finally:
            got = self.end(call, taken)
        return got

    def get_secret(self, prompt: str = "Password: ", stream: Any = None, **options: Any) -> str:
        """Replace `getpass.getpass`: read an answer that is not shown."""
        out = stream if stream is not None else sys.stderr
        if out is not None:
            out.write(prompt)
            out.flush()
        line = self.read_line(prompt=prompt, secret=True)
        if not line:
            raise EOFError
        return _decode(line).rstrip("\n")

    def install(self) -> None:
        sys.stdin = sys.__stdin__ = self.text  # type: ignore[misc,assignment]
        getpass.getpass = self.get_secret


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


class ByteInput(io.BufferedIOBase):
    """`sys.stdin.buffer`."""

    def __init__(self, source: Input) -> None:
        self.source = source

    @property
    def name(self) -> str:
        return "<stdin>"

    @property
    def mode(self) -> str:
        return "rb"

    @property
    def raw(self) -> Any:
        return self

    def read(self, size: int | None = -1) -> bytes:
        return self.source.read_some(-1 if size is None else size, whole=True)

    def read1(self, size: int = -1) -> bytes:
        return self.source.read_some(CHUNK_BYTES if size < 0 else size, whole=False)

    def readline(self, size: int | None = -1) -> bytes:
        return self.source.read_line(-1 if size is None else size)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.source.read_some(len(view), whole=True)
        view[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return False

    def close(self) -> None: ...


class TextInput(io.TextIOBase):
    """`sys.stdin`. Closing has no effect: `exit()` closes it, and a cell may catch that exit."""

    def __init__(self, source: ByteInput) -> None:
        self._source = source

    @property
    def buffer(self) -> ByteInput:
        return self._source

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "surrogateescape"

    @property
    def name(self) -> str:
        return "<stdin>"

    @property
    def mode(self) -> str:
        return "r"

    @property
    def line_buffering(self) -> bool:
        return False

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        limit = -1 if size is None else size
        if limit < 0:
            return _decode(self._source.readline())
        # By characters, so that a limit never splits one.
        text = ""
        while len(text) < limit and not text.endswith("\n"):
            char = self._char()
            if not char:
                break
            text += char
        return text

    def read(self, size: int | None = -1) -> str:
        if size is None or size < 0:
            return _decode(self._source.read())
        text = ""
        while len(text) < size:
            char = self._char()
            if not char:
                break
            text += char
        return text

    def _char(self) -> str:
        data = self._source.source.read_some(1, whole=True)
        more = 0
        if data and data[0] >= 0xC2:
            more = 1 + (data[0] >= 0xE0) + (data[0] >= 0xF0)
        if more:
            data += self._source.source.read_some(more, whole=True)
        return _decode(data)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **options: Any) -> None:
        """Accept options without effect."""

    def close(self) -> None: ...
