"""Copies by value, of a session that uses a GPU: no forked process can go on with the GPU's driver.

The session copies its GPU data to memory and forks. The forked copy is saved to a file, and workers that have run
nothing load it, on the GPU again.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ingle import errors
from ingle.events import Skipped
from ingle.sessions.persistence.transfer import Transfer
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.library import SessionLibrary
from ingle.snapshots import transfer
from ingle.snapshots.manifest import Summary
from ingle.snapshots.spool import Spool
from ingle.workers.copies import ForkOptions
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

BY_PROCESS, BY_VALUE = "process", "value"
"""How a copy was made: as a fork of the process, or by its values, in a new process."""

NOTICE = "copied by value, since the session uses a GPU: its variables were loaded in a new process"

NO_BLANK = "the session uses a GPU, and there is no process that its copy could begin in; save it and load it instead"

MAX_NAMED = 10
MAX_BYTES = 1 << 40
OUT_OF_MEMORY = "out of memory"

Taken = TypeVar("Taken")


def way(*, by_value: bool) -> str:
    return BY_VALUE if by_value else BY_PROCESS


@dataclass(frozen=True)
class SavedState:
    """All that a copy of a session held. The caller closes it."""

    summary: Summary
    chunks: Spool

    @property
    def notices(self) -> list[str]:
        """Return how the copy was made, and what it lacks."""
        return [NOTICE, *not_copied(self.summary.skipped)]

    async def load(
        self,
        calls: WorkerCalls,
        library: SessionLibrary,
        worker: Worker,
        *,
        random: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Load it into a worker that has run nothing. Return its names, and notices of what it lacks.

        Without `random`, the worker's random numbers are its own. Raise StartFailed if the GPU is too full for it.
        """
        await library.load(worker, run=False)
        summary = msgspec.json.encode(self.summary)
        with _thread() as executor:
            loaded = await calls.load(worker, summary, self._send, executor, random=random)
        return loaded.names, _check(loaded)

    async def fill(
        self, calls: WorkerCalls, library: SessionLibrary, worker: Worker
    ) -> tuple[list[str], list[str], errors.IngleError | None]:
        """Load it, and close it. If that fails, the worker has ended, and the error is the last that is returned."""
        try:
            return *await self.load(calls, library, worker), None
        except errors.IngleError as error:
            worker.kill("was ended: its variables could not be loaded")
            await worker.gone
            return [], [], error
        finally:
            self.close()

    def _send(self, connection: socket.socket) -> None:
        transfer.send(connection, self.chunks, self.summary.pieces())

    def close(self) -> None:
        self.chunks.close()


async def take(copy: Worker, folder: Path) -> SavedState:
    """Save a copy of a session to a file without a name in this folder. The copy has ended when this returns."""
    spool = await asyncio.to_thread(Spool, folder)
    try:
        return SavedState(await _receive(copy, lambda ours: transfer.receive(ours, spool, MAX_BYTES)), spool)
    except BaseException:
        spool.close()
        raise


async def find_missing(copy: Worker) -> list[str]:
    """Return notices of what cannot be saved of a copy, which has ended then."""
    summary = await _receive(copy, transfer.receive_list, only_list=True)
    return not_copied(summary.skipped)


async def _receive(copy: Worker, receive: Callable[[socket.socket], Summary], *, only_list: bool = False) -> Summary:
    with _thread() as executor:
        order = messages.Save(0, hashed=False, only_list=only_list)
        try:
            return await Transfer().save(copy, receive, executor, order)
        except errors.SaveFailed as error:
            raise errors.StartFailed(
                f"the session uses a GPU, and cannot be copied by value: {error.message}"
            ) from None


async def blank_copies(worker: Worker, count: int = 1, folder: str = "") -> list[Worker]:
    """Return workers that have run nothing, below the same init. Raise StartFailed.

    One that is rehomed leaves `folder`.
    """
    blank = worker.blank
    if blank is None or not blank.alive:
        raise errors.StartFailed(NO_BLANK)
    made = await (await blank.fork(count, ForkOptions(folder))).up()
    for each in made:
        each.blank = blank
    return made


def _check(loaded: messages.Loaded) -> list[str]:
    """Return notices of what could not be loaded. Raise StartFailed if the GPU is too full for it."""
    for each in loaded.failed:
        if OUT_OF_MEMORY in each.reason.lower():
            raise errors.StartFailed(
                f"the session uses a GPU, and its copy does not fit: {each.name} could not be loaded "
                f"({each.reason[:300]}); free memory of the GPU"
            )
    return [*not_copied([Skipped(each.name, each.type, each.reason) for each in loaded.failed]), *loaded.notices]


def not_copied(skipped: list[Skipped]) -> list[str]:
    named = [f"not copied: {each.name} ({each.type}: {each.reason[:300]})" for each in skipped[:MAX_NAMED]]
    return named if len(skipped) <= MAX_NAMED else [*named, f"not copied: {len(skipped) - MAX_NAMED} more variables"]


class _thread:
    """Executor with a thread of its own: a large copy must not keep others waiting, nor they it."""

    def __enter__(self) -> ThreadPoolExecutor:
        self._executor = ThreadPoolExecutor(1, "ingle-values")
        return self._executor

    def __exit__(self, *exc: object) -> None:
        self._executor.shutdown(wait=False)
