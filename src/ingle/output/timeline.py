"""The timeline: every event of a session, numbered from 1, stored until the session ends.

Memory is bounded: the oldest events go to disk. Reading deletes nothing, and any number of readers may follow.
A lasting timeline goes to disk as it grows, and the next server goes on with it.
If the disk is slower than the output, the timeline reports that it is full. The session then stops reading its worker's
output until there is capacity. This back-pressure loses nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ingle.events import (
    AnyEvent,
    DisplayShown,
    Done,
    ErrorRaised,
    InputWanted,
    Note,
    Notice,
    ResultShown,
    StateChanged,
    Stderr,
    Stdout,
)
from ingle.output.disk_log import READ_EVENTS, DiskLog
from ingle.output.kept_timeline import Found

EVENT_COST = 300
"""Assumed bytes of an event in memory without its text."""

READ_AT_ONCE = READ_EVENTS
"""Events read at once. Each has at most 64 KiB of text, so memory is bounded."""

WRITE_AT_ONCE = 2048
"""Events written to disk at once; few enough not to block the event loop."""

HEAD_SHARE = 0.35

FLUSH_SECONDS = 0.1
"""Time after which new events of a lasting timeline are written to disk."""

SPARE_NUMBERS = 1000
"""Numbers that are left out after a server was killed, beside those of events that memory may have held."""


def _done_size(event: Done) -> int:
    # The event shares value and error with earlier events, but may be the last to hold them.
    value, error = event.result.result, event.result.error
    size = sum(map(len, value.values())) if value else 0
    size += sum(len(text) for shown in event.result.displays for text in shown.values())
    return size + (len(error.value) + len(error.traceback) if error is not None else 0)


_SIZES: dict[type, Callable[[Any], int]] = {
    Stdout: lambda event: len(event.text),
    Stderr: lambda event: len(event.text),
    Notice: lambda event: len(event.text),
    Note: lambda event: len(event.text),
    StateChanged: lambda event: len(event.code) if event.code else 0,
    ResultShown: lambda event: sum(map(len, event.data.values())),
    DisplayShown: lambda event: sum(map(len, event.data.values())),
    InputWanted: lambda event: len(event.prompt or ""),
    ErrorRaised: lambda event: len(event.value) + len(event.traceback),
    Done: _done_size,
}


def cost(event: AnyEvent) -> int:
    """Return the approximate bytes of an event in memory."""
    size = _SIZES.get(type(event))
    return EVENT_COST + (size(event) if size is not None else 0)


class Timeline:
    def __init__(
        self,
        path: str | Path,
        memory_limit: int,
        disk_limit: int,
        on_capacity: Callable[[], None],
        *,
        lasting: bool = False,
    ) -> None:
        self._lasting = lasting
        self._disk_log = DiskLog(path)
        self._memory_limit = memory_limit
        self._disk_limit = disk_limit
        self._on_capacity = on_capacity
        self._events: list[AnyEvent] = []
        self._weights: list[int] = []
        self._base = 1
        self._written = 0
        """How many of the oldest events in memory are on disk too."""
        self._flush: asyncio.TimerHandle | None = None
        self.next_seq = 1
        """Number of the next event."""
        self._memory = 0
        self._writing: asyncio.Task[None] | None = None
        self._readers: list[asyncio.Future[None]] = []
        self._closed = False
        self._kept = False
        """Whether it is read after its end, so that it still goes to disk then."""
        self.broken: str | None = None

    @property
    def full(self) -> bool:
        """Whether memory holds more than the disk could take so far, so that the session must stop adding."""
        return self.broken is None and self._memory > 2 * self._memory_limit

    @property
    def exhausted(self) -> bool:
        """Whether the disk limit is reached or the disk failed, so that text is dropped."""
        return self.broken is not None or self._disk_log.size + self._memory >= self._disk_limit + self._memory_limit

    def append(self, event: AnyEvent, size: int | None = None) -> None:
        """Add the event with the number `next_seq`. `size` is the length of its text, if known."""
        weight = cost(event) if size is None else EVENT_COST + size
        self.next_seq += 1
        self._events.append(event)
        self._weights.append(weight)
        self._memory += weight
        if self._memory > self._memory_limit and self._writing is None and self.broken is None:
            self._begin_writing()
        elif self._lasting and self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._begin_writing)
        if self._readers:
            readers, self._readers = self._readers, []
            for reader in readers:
                if not reader.done():
                    reader.set_result(None)

    def resume(self, found: Found, owner: str) -> None:
        """Go on after the events of an earlier server, as the timeline of the session of that name.

        A client may have seen events that a killed server did not write. Their numbers are not used again.
        """
        self._disk_log.resume(found.firsts, found.starts, found.last, found.size, owner)
        lost = 0 if found.complete else 2 * self._memory_limit // EVENT_COST + SPARE_NUMBERS
        self.next_seq = self._base = found.last + 1 + (lost if found.last else 0)

    def _begin_writing(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._writing is None and self.broken is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_oldest())

    async def flush(self) -> None:
        """Write all events of a lasting timeline to disk."""
        self._begin_writing()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    @property
    def _must_write(self) -> bool:
        if self._closed and not self._kept:
            return False
        unwritten = self._written < len(self._events)
        return unwritten and (self._lasting or self._memory > self._memory_limit // 2)

    async def _write_oldest(self) -> None:
        try:
            while self._must_write:
                batch: list[AnyEvent] = []
                weight, start = 0, self._written
                new = slice(start, start + WRITE_AT_ONCE)
                for event, its_weight in zip(self._events[new], self._weights[new], strict=False):
                    if weight > self._memory_limit // 2:
                        break
                    batch.append(event)
                    weight += its_weight
                try:
                    await asyncio.to_thread(self._disk_log.append, batch)
                except OSError as error:
                    # A full disk loses older output of this session, but must not end the server.
                    if self._memory > self._memory_limit:
                        self.broken = f"older output could not be written to disk ({error.strerror}) and is lost"
                    return
                self._written += len(batch)
                self._drop_written()
            if self._lasting:
                # Many sessions are idle, and each would hold a descriptor.
                await asyncio.to_thread(self._disk_log.rest)
        finally:
            self._writing = None
            self._on_capacity()

    def _drop_written(self) -> None:
        """Drop events that are on disk, until memory has capacity."""
        count = 0
        while count < self._written and (not self._lasting or self._memory > self._memory_limit // 2):
            self._memory -= self._weights[count]
            count += 1
        del self._events[:count]
        del self._weights[:count]
        self._base += count
        self._written -= count

    # --- reading ---

    def in_memory(self, first: int, last: int) -> list[AnyEvent] | None:
        """Return the events `first` to `last` if all of them are in memory."""
        if first < self._base:
            return None
        return self._events[first - self._base : last + 1 - self._base]

    async def read(self, first: int, last: int) -> list[AnyEvent]:
        """Return the existing events from `first` to `last`, both included, up to a fixed number."""
        first, last = max(first, 1), min(last, self.next_seq - 1)
        while first < self._base and first <= last:
            base = self._base
            events = await asyncio.to_thread(self._disk_log.read, first, min(last, base - 1))
            if events:
                return events
            # Events may have moved to disk during the read; then read again. Otherwise the numbers were left out.
            first = first if self._base != base else base
        if last < first:
            return []
        return self._events[first - self._base : min(last + 1, first + READ_AT_ONCE) - self._base]

    async def follow(self, first: int) -> AsyncIterator[AnyEvent]:
        """Yield the events from `first` on, and future ones, until the timeline is closed."""
        seq = max(first, 1)
        while True:
            while seq < self.next_seq:
                some = await self.read(seq, self.next_seq - 1)
                for event in some:
                    yield event
                    seq = event.seq + 1
                if not some:
                    seq = self._base  # the numbers before it were left out
            if self._closed:
                return
            more = asyncio.get_running_loop().create_future()
            self._readers.append(more)
            await more

    async def text(
        self, stream: type[Stdout] | type[Stderr], first: int, last: int, total: int, limit: int
    ) -> tuple[str, str | None]:
        """Return the text of one stream between two events: whole, or its head and its tail."""

        def parts(events: list[AnyEvent]) -> list[str]:
            return [event.text for event in events if isinstance(event, stream) and not event.background]

        if total == 0:
            return "", None
        if total <= limit:
            events = self.in_memory(first, last)
            if events is not None:
                return "".join(parts(events)), None
            pieces: list[str] = []
            while first <= last:
                some = await self.read(first, last)
                if not some:
                    break
                pieces += parts(some)
                first = some[-1].seq + 1
            return "".join(pieces), None
        head_size = int(limit * HEAD_SHARE)
        tail_size = limit - head_size
        head, tail = "", ""
        seq = first
        while len(head) < head_size and seq <= last:
            some = await self.read(seq, last)
            if not some:
                break
            head += "".join(parts(some))
            seq = some[-1].seq + 1
        seq = last
        while len(tail) < tail_size and seq >= first:
            begin = at = max(first, seq - READ_AT_ONCE // 4 + 1)
            block: list[AnyEvent] = []
            while at <= seq:  # twice if the block starts on disk and ends in memory
                some = await self.read(at, seq)
                if not some:
                    break
                block += some
                at = some[-1].seq + 1
            tail = "".join(parts(block)) + tail
            seq = begin - 1
        return head[:head_size], tail[-tail_size:]

    # --- the end ---

    async def close(self, *, keep: bool = False) -> None:
        """End the timeline and its readers. The file is closed when the last reader drops it.

        With `keep` it is read later: what memory has no place for goes to disk first, of a lasting one everything.
        """
        self._kept = keep
        self._closed = True
        if self._flush is not None:
            self._flush.cancel()
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
        if self._writing is not None:
            await asyncio.wait({self._writing})
        if keep and self._lasting and self.broken is None:
            await self._write_oldest()
        self._on_capacity = _nothing

    @property
    def on_disk(self) -> Found | None:
        """What a lasting timeline has on disk; None if that is not all of it."""
        if self.next_seq != self._disk_log.last + 1 or self.broken is not None:
            return None
        log = self._disk_log
        return Found(log.last, log.size, True, log.firsts, log.starts)

    async def rest(self) -> None:
        """Close the descriptor of a file that stays after `close`, because it may never be read again."""
        await asyncio.to_thread(self._disk_log.rest)


def _nothing() -> None:
    """Replace the callback of a closed timeline, so that readers do not keep its owner alive."""
