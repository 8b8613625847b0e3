"""Moments of failure: copies of a session's process, each made when a cell had failed, with its live frames.

A copy runs nothing until it is asked. The session goes on meanwhile. A bounded number of copies is kept, and a bounded
share of memory. When memory is short, the kernel ends these copies before others, and a notice tells of it.
"""

import asyncio
import time
from typing import Any

from ingle import errors
from ingle.events import Exit
from ingle.render.phrases import some
from ingle.sessions.cells.journal import Journal
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.spec import SessionSpec
from ingle.support import processes
from ingle.trials import FailureFrame, FailureInfo, Inspected
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states

FRAMES_SECONDS = 5.0
"""Limit for listing the frames."""

MAX_MESSAGE_CHARS = 1000


class _Copy:
    """A kept copy, and the listener of its process."""

    def __init__(self, worker: Worker, cell: int, error: str, calls: WorkerCalls) -> None:
        self.worker = worker
        self.cell = cell
        self.error = error
        self.calls = calls
        self.lock = asyncio.Lock()
        self.created_at = time.time()

    def on_message(self, message: Any) -> None:
        self.calls.on_message(message)

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        """Drop what is not printed by Python."""

    def on_gone(self, exit: Exit) -> None:
        self.calls.on_gone()

    async def ask(self, expression: str, frame: int, seconds: float) -> messages.FrameAsked:
        """Return the answer of the copy. Raise VariableUntold if it has none in time."""
        async with self.lock:
            answer = await self.calls.ask(
                self.worker,
                lambda ticket, until: messages.AskFrame(ticket, until, expression, frame),
                messages.FrameAsked,
                seconds,
            )
        if answer is None or answer.interrupted or answer.error:
            why = "its process ended or was blocked" if answer is None else answer.error[:MAX_MESSAGE_CHARS]
            raise errors.VariableUntold(
                f"the expression has no value: {why or f'it took longer than {seconds:g} s, or was interrupted'}"
            )
        return answer


class Failures:
    def __init__(self, spec: SessionSpec, journal: Journal, most_bytes: int, grace_seconds: float) -> None:
        """`most_bytes` is what all copies together may use."""
        self._spec = spec
        self._journal = journal
        self._most_bytes = most_bytes
        self._grace_seconds = grace_seconds
        self._copies: dict[int, _Copy] = {}
        """By cell, the oldest first."""
        self._closed = False

    @property
    def any(self) -> bool:
        return bool(self._copies)

    @property
    def workers(self) -> list[Worker]:
        """The copies."""
        return [copy.worker for copy in self._copies.values()]

    def wants(self, done: messages.Done) -> bool:
        """Return whether the moment in which a cell has ended is to be kept."""
        return (
            self._spec.keep_failures > 0
            and done.error is not None
            and not done.needs_more_input
            and done.status in (states.ERROR, states.INTERRUPTED)
        )

    async def keep(self, worker: Worker, done: messages.Done) -> list[str]:
        """Keep a copy of the worker, whose cell has failed. Return notices for its result."""
        assert done.error is not None
        error = f"{done.error.name}: {done.error.value}"[:MAX_MESSAGE_CHARS]
        made: Worker | None = None
        try:
            (made,) = await (await worker.fork()).up()
            calls = WorkerCalls(self._spec.session_id, self._grace_seconds)
            copy = made.owner = _Copy(made, done.cell, error, calls)
            frames = (await copy.ask("", -1, FRAMES_SECONDS)).count
        except errors.IngleError as why:
            if made is not None:
                made.kill()
            return [f"the moment of this failure is not kept: {why.message}"]
        if not frames or self._closed:
            # A syntax error, for one, has no frame.
            made.kill()
            return []
        self._copies[done.cell] = copy
        made.gone.add_done_callback(lambda gone: self._on_gone(copy, gone.result()))
        if made.pid is not None:
            await asyncio.to_thread(processes.kill_first, made.pid)
        while len(self._copies) > self._spec.keep_failures:
            self._drop(next(iter(self._copies)))
        return ["the moment of this failure is kept: inspect_failure evaluates expressions in its frames"]

    def _drop(self, cell: int) -> None:
        self._copies.pop(cell).worker.kill()

    def _on_gone(self, copy: _Copy, exit: Exit) -> None:
        if self._copies.get(copy.cell) is copy:
            del self._copies[copy.cell]
            self._journal.notify(f"the failure of cell {copy.cell} is not kept any more: its process {exit.message}")

    def drop_all(self, why: str) -> bool:
        """Drop all copies, and tell why. Return whether there were any."""
        cells = list(self._copies)
        for cell in cells:
            self._drop(cell)
        if cells:
            which = "cell" if len(cells) == 1 else "cells"
            self._journal.notify(f"the failures of {which} {some(list(map(str, cells)))} were dropped: {why}")
        return bool(cells)

    async def check(self) -> None:
        """Drop the oldest copies as long as all of them together use too much memory."""
        pids = {cell: copy.worker.pid for cell, copy in self._copies.items()}
        used = await asyncio.to_thread(lambda: {cell: processes.proportional_memory(pid) for cell, pid in pids.items()})
        total = sum(each or 0 for each in used.values())
        for cell, size in used.items():
            if total <= self._most_bytes:
                return
            if cell in self._copies:
                self._drop(cell)
                self._journal.notify(f"the failure of cell {cell} was dropped: kept failures use too much memory")
            total -= size or 0

    async def list(self) -> list[FailureInfo]:
        """Return all moments that are kept, the oldest first."""
        copies = list(self._copies.values())
        memory = await asyncio.to_thread(lambda: [processes.proportional_memory(each.worker.pid) for each in copies])
        found = []
        for copy, used in zip(copies, memory, strict=True):
            answer = await copy.ask("", -1, FRAMES_SECONDS)
            found.append(FailureInfo(copy.cell, copy.error, copy.created_at, used, _frames(answer)))
        return found

    async def inspect(self, cell: int | None, expression: str, frame: int, seconds: float) -> Inspected:
        """Evaluate an expression in a frame of a failed cell. Default: of the last one that is kept."""
        if cell is None:
            cell = next(reversed(self._copies), None)
        if cell is None or cell not in self._copies:
            raise errors.FailureNotFound(
                self._spec.session_id, cell, list(self._copies), kept=self._spec.keep_failures > 0
            )
        answer = await self._copies[cell].ask(expression, frame, seconds)
        if answer.missing or not answer.frames:
            raise errors.InvalidRequest(
                f"there is no frame {frame}: cell {cell} has {answer.count}; 0 is the cell's own and -1 the innermost"
            )
        return Inspected(
            cell,
            _frames(answer)[0],
            expression,
            answer.type[:MAX_MESSAGE_CHARS] or None,
            None if answer.raised else answer.value,
            answer.output,
            answer.raised or None,
        )

    async def close(self) -> None:
        """End all copies, with the session."""
        self._closed = True
        copies, self._copies = list(self._copies.values()), {}
        for copy in copies:
            copy.worker.kill()
        for copy in copies:
            await copy.worker.gone


def _frames(answer: messages.FrameAsked) -> list[FailureFrame]:
    return [FailureFrame(each.index, each.function, each.file, each.line, each.names) for each in answer.frames]
