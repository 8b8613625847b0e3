"""Standard input of a session: every read that would block is announced, and the right reader gets the answer.

Descriptor 0 is a real pipe, so children and raw reads work (the host notices those by itself). Python's own
readers come through here. Each call of a reader is a `Call`; when several wait, one of the running cell goes
first, then those of earlier cells' threads in the order they came. What a call of the running cell leaves over
stays for the next read of that cell; what a call of an earlier cell's thread leaves over is dropped.
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
from ingle_worker.session.output_streams import Channel
from ingle_worker.wire.constants import MAX_PROMPT_CHARS
from ingle_worker.wire.messages import InputTaken, InputWait

CHUNK = 65536


class Call:
    """One call of read or readline, for as long as it takes."""

    def __init__(self, cell: int, prompt: str | None, secret: bool) -> None:
        self.cell = cell
        self.prompt = prompt
        self.secret = secret
        self.local = bytearray()
        self.until_end = False
        self.wait = 0
        """The wait that was announced for it last, and is not over for the host."""
        self.gate = allocate_lock()
        self.gate.acquire()


class Input:
    """The one owner of descriptor 0 among Python's readers."""

    def __init__(self, link: Link, channel: Channel, interrupts: Interrupts) -> None:
        self._link = link
        self._channel = channel
        self._interrupts = interrupts
        self._pending = bytearray()
        self._calls: list[Call] = []
        self._waits = 0
        self.bytes = ByteIn(self)
        self.text = TextIn(self.bytes)
        self.before_wait: Callable[[], None] | None = None
        """Called before a reader waits, while it can still be interrupted."""

    # --- the cell's boundary ---

    def cell_ended(self) -> int:
        """Drop what was taken from the pipe and not read. How many bytes that was; the host empties the pipe."""
        dropped = len(self._pending)
        if dropped:
            self._pending.clear()
        if self._calls:
            self._open_gates()
        return dropped

    def start_anew(self) -> None:
        """In a copy of the session's process: whoever waited, waits in the original."""
        self._pending.clear()
        self._calls.clear()

    # --- one call ---

    def begin(self, prompt: str | None = None, secret: bool = False) -> Call:
        cell = 0 if self._channel.is_background() else self._channel.cell
        call = Call(cell, prompt, secret)
        if self._is_foreground(call):
            call.local += self._pending
            self._pending.clear()
        return call

    def end(self, call: Call, taken: int) -> bytes:
        """Finish a call that takes this many of the bytes it has."""
        got = bytes(call.local[:taken])
        if self._is_foreground(call):
            self._pending[:0] = call.local[taken:]
        if call.until_end:
            # Last: an interrupt that was held back while this is sent is raised here.
            self._tell_taken(call)
        return got

    def fill(self, call: Call) -> bool:
        """Wait for more bytes for this call. False at the end of input.

        The host is told that a wait is over; but for a call that reads up to the end only when the call is, or waits
        again: in between the host must leave the input as it is, for its end is what the call still has to read.
        """
        announced = goes_on = False
        if self.before_wait is not None:
            self.before_wait()
        self._interrupts.shield()
        self._calls.append(call)
        try:
            while True:
                if self._first() is call and self._readable(0):
                    data = self._read()
                    call.local += data
                    goes_on = bool(data) and call.until_end
                    return bool(data)
                # Answers end with a newline: in the middle of a line, the rest of it is on its way.
                if not announced and (not call.local or call.local.endswith(b"\n")):
                    announced = True
                    before = call.wait
                    self._waits += 1
                    call.wait = self._waits
                    background = not self._is_foreground(call)
                    prompt = call.prompt and call.prompt[-MAX_PROMPT_CHARS:]
                    self._link.send(InputWait(call.wait, background, prompt, call.secret))
                    if before:
                        # After the new one, so that at no time there seems to be none.
                        self._link.send(InputTaken(before))
                self._interrupts.unshield()
                try:
                    if self._first() is call:
                        self._readable(None)
                    else:
                        call.gate.acquire()
                finally:
                    self._interrupts.shield()
        finally:
            self._calls.remove(call)
            self._open_gates()
            if not goes_on:
                self._tell_taken(call)
            self._interrupts.unshield()

    def _tell_taken(self, call: Call) -> None:
        wait, call.wait = call.wait, 0
        if wait:
            self._link.send(InputTaken(wait))

    def _is_foreground(self, call: Call) -> bool:
        return call.cell != 0 and call.cell == self._channel.cell

    def _first(self) -> Call:
        for call in self._calls:
            if self._is_foreground(call):
                return call
        return self._calls[0]

    def _open_gates(self) -> None:
        for call in self._calls:
            try:
                call.gate.release()
            except RuntimeError:  # open already: whoever comes next passes
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
        return os.read(0, CHUNK)

    # --- what the streams are made of ---

    def read_line(self, limit: int = -1, prompt: str | None = None, secret: bool = False) -> bytes:
        call = self.begin(prompt, secret)
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
        """`size` bytes, or all up to the end with a negative size; without `whole`, what is there first."""
        call = self.begin()
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
        """`getpass.getpass`: the answer is not to be shown."""
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


class ByteIn(io.BufferedIOBase):
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
        return self.source.read_some(CHUNK if size < 0 else size, whole=False)

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


class TextIn(io.TextIOBase):
    """`sys.stdin`. Closing it does nothing: `exit()` closes it, and a cell may catch that exit."""

    def __init__(self, source: ByteIn) -> None:
        self._source = source

    @property
    def buffer(self) -> ByteIn:
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
        # By characters, so that a limit never cuts one in two.
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
        """Accepted and without effect."""

    def close(self) -> None: ...
