"""Output and messages of one worker, in the order in which the worker wrote them.

It reads two output pipes and the wire, and puts them in order with `Merger`. It yields what it finds: the caller
handles each item before the next one is computed.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ingle.workers.io.output_order import STDERR, STDOUT, Merger, Note, Piece
from ingle.workers.io.output_pipes import OutputPipes
from ingle.workers.io.wire import Wire
from ingle_worker.wire import messages

MAX_READS = 16
"""Reads of the pipes in one turn because messages arrived meanwhile: a bound for a worker that floods the wire."""

REST_FACTOR = 2
MAX_REST_SECONDS = 1.0
"""A worker that had the loop for too long is not read for `REST_FACTOR` times as long, up to `MAX_REST_SECONDS`."""

UNORDERED = (messages.Ready, messages.NotCopied, messages.EndsWanted, messages.Holding, messages.Copied)
"""Messages about the process itself, which are yielded as soon as they arrive."""


class Output(NamedTuple):
    """Bytes that a worker wrote to one of its streams. `background`: they belong to no cell."""

    stream: int
    data: bytes
    background: bool


class OrderedOutput:
    """Reader of a worker's pipes and wire. Its iterators yield `Output` and messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wire: Wire, on_readable: Callable[[], None]) -> None:
        """Create the pipes. The descriptors `children` go to the worker; the caller closes them.

        `on_readable` is called when the pipes were read, for the caller to iterate over `read()`.
        """
        self._loop = loop
        self._wire = wire
        self._merger = Merger()
        self._pipes = OutputPipes(loop, self._merger, on_readable)
        self.children = self._pipes.children
        self._paused = False
        self._rest_timer: asyncio.TimerHandle | None = None
        self._expected_cell = 0
        self._unplaced: list[Any] = []
        """Messages without a mark: their place is behind all that was written before them."""
        self._must_read = False
        """An unplaced message arrived after the pipes were last read."""

    def watch(self) -> None:
        """Start to read."""
        self._wire.watch()
        self._pipes.watch()

    def expect_cell(self, cell: int) -> None:
        """Treat output as background output until the mark that begins this cell."""
        self._expected_cell = cell

    @property
    def quiet(self) -> bool:
        """Whether nothing was written that is not yet yielded, and reading does not pause."""
        held = self._unplaced or not self._merger.idle or self._paused or self.resting
        return not held and self._pipes.quiet

    def release(self) -> list[int]:
        """Stop reading and return the descriptors of the pipes, for the caller to give away."""
        return self._pipes.release()

    def restore(self, fds: list[int]) -> None:
        """Go on with the descriptors of `release`. The wire is restored by the caller, before."""
        self._pipes.restore(fds)
        if self._paused:
            self._wire.pause()

    # --- back-pressure ---

    def pause(self) -> None:
        """Stop reading, because the consumer is behind. The worker waits."""
        self._paused = True
        self._stop()

    def resume(self) -> None:
        """Read again after a pause."""
        if self._paused:
            self._paused = False
            if self._rest_timer is None:
                self._start()

    def _stop(self) -> None:
        self._pipes.pause()
        self._wire.pause()

    def _start(self) -> None:
        self._wire.resume()
        self._pipes.resume()

    @property
    def resting(self) -> bool:
        """Whether the worker is not read because it has kept others from the loop."""
        return self._rest_timer is not None

    def _rest(self) -> None:
        """Stop reading for a while: this worker has kept others from the loop."""
        if self._rest_timer is None:
            self._stop()
            seconds = self._wire.busy_nanoseconds * REST_FACTOR / 1e9
            self._rest_timer = self._loop.call_later(min(seconds, MAX_REST_SECONDS), self._end_rest)

    def _end_rest(self) -> None:
        self._rest_timer = None
        if not self._paused:
            self._start()

    # --- reading ---

    def read(self) -> Iterator[Any]:
        """Read the wire and yield what can be put in order."""
        self._wire.begin_turn()
        yield from self._receive()
        yield from self._in_order()
        if self._wire.overran:
            self._rest()

    def read_before_cell(self) -> Iterator[Any]:
        """Yield output that is there before a cell starts. It belongs to no cell."""
        if self._pipes.read():
            yield from self._receive()
            yield from self._in_order(background=True)

    def drain(self) -> Iterator[Any]:
        """Yield all that is left after the end of the worker."""
        self._pipes.read()
        self._wire.begin_turn()
        yield from self._receive()
        yield from self._in_order()
        self._place_messages()
        self._merger.give_up_cuts()
        yield from self._take()

    def _receive(self) -> list[Any]:
        """Give the messages on the wire to the merger, which knows their places. Return those that have none."""
        unordered: list[Any] = []
        for message in self._wire.receive():
            kind = type(message)
            if kind is messages.Mark or kind is messages.Background or kind is messages.Display:
                self._place_messages()
                if kind is messages.Mark:
                    self._merger.cut(message, message if message.begin else None)
                else:
                    texts = message.data.values() if kind is messages.Display else (message.text,)
                    self._merger.cut(message.mark, message, sum(map(len, texts)))
            elif kind in UNORDERED:
                unordered.append(message)
            else:
                self._unplaced.append(message)
                self._must_read = True
        return unordered

    def _place_messages(self) -> None:
        """Place the messages so far before the next one, which has a mark."""
        for message in self._unplaced:
            self._merger.note(message)
        self._unplaced.clear()

    def _in_order(self, background: bool = False) -> Iterator[Any]:
        """Yield output and messages, each in its place.

        The wire is always read after the pipes. Marks are sent before the bytes they describe, so the marks of all
        bytes that were read are known. Bytes behind a mark can wait for the next read. A message cannot: the bytes
        written before it are read now, and then their marks.
        """
        for number in range(MAX_READS):
            if not self._must_read or (number and self._wire.overran):
                break
            self._must_read = False
            if not self._pipes.read():
                break
            yield from self._receive()
        if self._unplaced:
            unplaced, self._unplaced = self._unplaced, []
            if self._merger.idle:
                # The common case: no output, so nothing to put in order.
                yield from unplaced
                return
            for message in unplaced:
                self._merger.note(message)
        if self._merger.idle:
            return
        yield from self._take(background)
        if (self._merger.holds_notes and not self._must_read) or self._merger.overfull:
            # All bytes before the message were read, so a mark was placed too far; or too many bytes wait for one.
            self._merger.give_up_cuts()
            yield from self._take(background)

    def _take(self, background: bool = False) -> Iterator[Any]:
        """Yield what the merger has in order."""
        taken = deque(self._merger.take())
        while taken:
            item = taken.popleft()
            if isinstance(item, Piece):
                yield Output(item.stream, item.data, background or bool(self._expected_cell))
            elif isinstance(item.content, messages.Mark):
                if item.content.begin == self._expected_cell:
                    self._expected_cell = 0
            elif isinstance(item.content, messages.Background):
                yield _join(item.content, taken)
            else:
                yield item.content

    def close(self) -> None:
        """Stop reading and close the pipes."""
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        self._pipes.close()

    def close_both(self) -> None:
        """Close both ends of the pipes, where the child's were not given away."""
        for fd in self.children:
            os.close(fd)
        self.close()


def _join(first: messages.Background, taken: "deque[Piece | Note]") -> Output:
    """Join messages of one stream that follow each other: a thread that writes all the time sends thousands."""
    texts = [first.text]
    while taken and isinstance(taken[0], Note) and isinstance(taken[0].content, messages.Background):
        if taken[0].content.stream != first.stream:
            break
        texts.append(taken[0].content.text)
        taken.popleft()
    stream = STDERR if first.stream == "stderr" else STDOUT
    return Output(stream, "".join(texts).encode("utf-8", "replace"), True)
