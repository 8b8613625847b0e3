"""Checkpoints of a session: live copies of its worker that run nothing, until one of them is forked to go on from.

They are few: past the limit the oldest goes, and with automatic checkpoints there is one more, of the moment before the
last cell. A copy costs what has changed since: its memory is told as its share of what it has in common with others.
"""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ingle import errors
from ingle.events import CheckpointInfo
from ingle.render.phrases import duration
from ingle.support import processes
from ingle.workers.worker import Worker

AUTO = ".auto"
"""The automatic one; no name that a user gives begins with a dot."""

REMEMBERED = 100
"""Checkpoints that are gone of which it is known why."""


@dataclass(frozen=True)
class Moment:
    """What the host knows of a session between two cells, beside its process."""

    cell: int
    """The last that had run."""
    names: frozenset[str]
    cwd: str
    tmp: str
    """The folder for temporary files."""


class Owner(Protocol):
    """The session whose checkpoints these are."""

    id: str

    def own_turn(self) -> AbstractAsyncContextManager[Worker]: ...

    @property
    def moment(self) -> Moment: ...

    async def go_on_with(self, parked: "Parked", text: str) -> None: ...


@dataclass(frozen=True, eq=False)
class Parked:
    """A worker that is kept as it is, and what the session was then."""

    name: str
    worker: Worker
    moment: Moment
    notices: list[str] = field(default_factory=list)
    """What of the session it does not have."""
    created_at: float = field(default_factory=time.time)

    @property
    def what(self) -> str:
        cell = self.moment.cell
        if self.name == AUTO:
            return f"the state before cell {cell + 1}"
        return f"checkpoint {self.name!r} {f'of cell {cell}' if cell else 'before any cell'}"

    @property
    def description(self) -> str:
        """To be put behind "rolled back to"."""
        return f"{self.what}, {duration(max(0.0, time.time() - self.created_at))} ago"


class Checkpoints:
    def __init__(self, owner: Owner, limit: int, *, auto: bool) -> None:
        self._owner = owner
        self._limit = limit
        self.auto = auto
        self._parked: dict[str, Parked] = {}
        self._why_gone: dict[str, str] = {}
        self._closed = False

    @property
    def any(self) -> bool:
        return bool(self._parked)

    @property
    def way_back(self) -> str:
        """After a worker was lost: what can be done about it, to be put behind a sentence."""
        try:
            return f"; roll back to have {self.find(None).what} again"
        except errors.CheckpointNotFound:
            return ""

    async def make(self, name: str) -> CheckpointInfo:
        """Park a copy of the session as it is now. Busy while a cell runs."""
        async with self._owner.own_turn() as worker:
            moment, copies = self._owner.moment, await worker.fork()
        (copy,) = await copies.up()
        parked = Parked(name, copy, moment, copies.notices)
        dropped = self._add(parked)
        return msgspec.structs.replace(self._info(parked, None), notices=[*parked.notices, *dropped])

    async def make_auto(self, worker: Worker) -> str | None:
        """Before a cell, in its turn; why there is none, if so."""
        moment = self._owner.moment
        try:
            copies = await worker.fork()
        except errors.StartFailed as error:
            self.drop(AUTO)
            return f"there is no checkpoint of the state before this cell: {error.message}"
        # The cell does not wait until the copy says that it is there; one that never does is gone when it is asked for.
        self._add(Parked(AUTO, copies.workers[0], moment, copies.notices))
        return None

    async def roll_back(self, name: str | None) -> tuple[CheckpointInfo, str]:
        """Go on from a checkpoint, which stays; without a name from before the last cell, or where that is not kept
        from the newest. Busy while a cell runs. The sentence says where the session is now."""
        # Told before anything is waited for: a mistake in the name should not have to wait.
        parked = self.find(name)
        async with self._owner.own_turn():
            parked = self.find(name)
            text = f"rolled back to {parked.description}"
            try:
                await self._owner.go_on_with(parked, text)
            except errors.StartFailed:
                if not parked.worker.alive:
                    await parked.worker.gone
                    await asyncio.sleep(0)  # for `_on_gone`
                    self.find(parked.name)
                raise
        return self._info(parked, None), text

    def _add(self, parked: Parked) -> list[str]:
        """Keep this one, in place of one of its name; notices of what had to go."""
        if self._closed:
            parked.worker.kill()
            raise errors.SessionNotFound(self._owner.id)
        self.drop(parked.name)
        self._why_gone.pop(parked.name, None)
        self._parked[parked.name] = parked
        parked.worker.gone.add_done_callback(lambda gone: self._on_gone(parked, gone.result().message or "ended"))
        named = [name for name in self._parked if name != AUTO]
        notices = []
        for name in named[: max(0, len(named) - self._limit)]:
            self.drop(name)
            self._remember(name, f"it was dropped when there were more than {self._limit}")
            notices.append(f"checkpoint {name!r} was dropped: a session keeps {self._limit}, and it was the oldest")
        return notices

    async def remove(self, name: str) -> None:
        """Give one up: its process is gone, and its memory free, when this returns."""
        worker = self.find(name).worker
        self.drop(name)
        self._remember(name, "it was dropped")
        await worker.gone

    def drop(self, name: str) -> None:
        parked = self._parked.pop(name, None)
        if parked is not None:
            parked.worker.kill()

    def _on_gone(self, parked: Parked, how: str) -> None:
        if self._parked.get(parked.name) is parked:
            del self._parked[parked.name]
            self._remember(parked.name, f"its process {how}")

    def _remember(self, name: str, why: str) -> None:
        self._why_gone[name] = why
        if len(self._why_gone) > REMEMBERED:
            del self._why_gone[next(iter(self._why_gone))]

    def find(self, name: str | None) -> Parked:
        """By name; without one, the state before the last cell, or where there are no automatic ones the newest."""
        if name is None:
            if self.auto:
                name = AUTO
            else:
                name = next(reversed(self._parked), None)
        if name is None or name not in self._parked:
            raise errors.CheckpointNotFound(self._owner.id, name, sorted(self._parked), self._why_gone.get(name or ""))
        return self._parked[name]

    def uses(self, tmp: str) -> bool:
        return any(parked.moment.tmp == tmp for parked in self._parked.values())

    async def list(self) -> list[CheckpointInfo]:
        """From the oldest to the newest, the automatic one last."""
        parked = sorted(self._parked.values(), key=lambda each: (each.name == AUTO, each.created_at))
        memory = await asyncio.to_thread(lambda: [processes.proportional_memory(each.worker.pid) for each in parked])
        return [self._info(each, used) for each, used in zip(parked, memory, strict=True)]

    @staticmethod
    def _info(parked: Parked, memory: int | None) -> CheckpointInfo:
        name = parked.name
        return CheckpointInfo(name, parked.moment.cell, parked.created_at, memory, name == AUTO, parked.notices)

    async def close(self) -> None:
        """The session ends, and they with it."""
        self._closed = True
        workers = [parked.worker for parked in self._parked.values()]
        self._parked.clear()
        for worker in workers:
            worker.kill()
        for worker in workers:
            await worker.gone
