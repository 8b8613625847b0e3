"""Variables of copies before code runs in them, and which of them the code has changed.

A copy tells the hashes of most values by itself. The others are hashed by a copy of it, which ends afterwards: no code
of the user runs beside that of the cell in a process that may become the session's.
"""

import asyncio

import msgspec

from ingle import errors
from ingle.files import VariableDiff
from ingle.sessions.persistence import fingerprints
from ingle.sessions.persistence.fingerprints import Fingerprint
from ingle.sessions.process.calls import WorkerCalls
from ingle.workers.copies import Copies, ForkOptions
from ingle.workers.worker import Worker

COMPARE_SECONDS = 0.05
"""Time for hashing variables, before the cell and after it."""

MAX_BYTES = 32 * 1024**2
"""Size of a value that is hashed. There is no time for larger ones."""

OPTIONS = ForkOptions(live_only=True)
"""Data of a GPU would have to be copied to memory first."""


class VariablesBefore:
    """Variables of one moment, for all copies of it."""

    def __init__(self) -> None:
        self._told: dict[str, Fingerprint] | None = None
        self._copies: Copies | None = None
        self._hashing: asyncio.Task[dict[str, Fingerprint] | str] | None = None

    async def note(self, calls: WorkerCalls, worker: Worker) -> None:
        """Note the variables of a copy in which nothing has run yet. They may be hashed while its cell runs."""
        told = self._told = await calls.fingerprints(worker, COMPARE_SECONDS)
        if told is not None:
            names = _to_hash(told, [name for name, each in told.items() if not each.digest])
            self._copies = await _copy(worker) if names else None
            if self._copies is not None:
                self._hashing = asyncio.create_task(fingerprints.take_from(self._copies, COMPARE_SECONDS, names))

    async def compare(self, calls: WorkerCalls, worker: Worker) -> tuple[list[VariableDiff], list[str]] | None:
        """Return the variables that differ in a copy now, and those that cannot be told; None if it tells nothing."""
        before, after = self._told, await calls.fingerprints(worker, COMPARE_SECONDS)
        if before is None or after is None:
            return None
        changed, unknown = fingerprints.compare(before, after, related=True)
        names = _to_hash(after, unknown) if self._hashing is not None else []
        copies = await _copy(worker) if names else None
        if copies is None or self._hashing is None:
            return changed, unknown
        hashed = await fingerprints.take_from(copies, COMPARE_SECONDS, names)
        before = _with_hashes(before, await asyncio.shield(self._hashing))
        return fingerprints.compare(before, _with_hashes(after, hashed), related=True)

    async def close(self) -> None:
        """End what still hashes."""
        if self._copies is not None and self._hashing is not None:
            self._copies.kill()
            await asyncio.wait({self._hashing})


def _to_hash(told: dict[str, Fingerprint], names: list[str]) -> list[str]:
    return [name for name in names if (told[name].state.size or 0) <= MAX_BYTES]


async def _copy(worker: Worker) -> Copies | None:
    try:
        return await worker.fork(options=OPTIONS)
    except errors.StartFailed:
        return None  # what it would hash is told as unknown


def _with_hashes(told: dict[str, Fingerprint], hashed: dict[str, Fingerprint] | str) -> dict[str, Fingerprint]:
    found = {} if isinstance(hashed, str) else hashed
    return {
        name: msgspec.structs.replace(each, digest=found[name].digest) if name in found else each
        for name, each in told.items()
    }
