"""Checkpoints of a session: live copies of its worker that run nothing. The session forks one to roll back to it.

Above the limit the oldest is dropped. With automatic checkpoints there is one more, of the state before the last cell.
A copy costs the memory that has changed since. Its reported memory is its share of the pages that it has in common with
others.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ingle import errors
from ingle.events import CheckpointInfo
from ingle.render.phrases import duration
from ingle.sessions.forks.values import BY_PROCESS
from ingle.support import processes
from ingle.trees.store import KeptTree, NotKept, Trees
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker

AUTO = ".auto"
"""Name of the automatic one. No name that a user gives begins with a dot."""

MAX_REASONS = 100
"""Dropped checkpoints whose reason is remembered."""


NO_FILES = NotKept("the checkpoint is of the process alone")


@dataclass(frozen=True)
class Moment:
    """What the host knows of a session between two cells, beside the process itself."""

    cell: int
    """Number of the last cell that had run."""
    names: frozenset[str]
    cwd: str
    tmp: str
    """Folder of temporary files."""
    launcher: Launcher
    """Launcher that the process came from."""

    def moved(self, source: str, target: str) -> "Moment":
        """Return this moment for a process whose folder `source` becomes `target`."""
        if self.cwd != source and not self.cwd.startswith(f"{source}/"):
            return self
        return replace(self, cwd=target + self.cwd[len(source) :])


@dataclass(frozen=True, eq=False)
class Parked:
    """A parked copy of a worker, and the moment that it was made in."""

    name: str
    worker: Worker
    moment: Moment
    notices: list[str] = field(default_factory=list)
    """What of the session the copy lacks."""
    files: KeptTree | NotKept = NO_FILES
    """Files of the own folder at that moment, or why they are not kept."""
    tracked: Mapping[str, KeptTree | NotKept] = field(default_factory=dict)
    """Files of tracked folders, by folder."""
    copied: str = BY_PROCESS
    after: int = 0
    """Cell that had just run in this state. After a rollback, that is an earlier one than the last cell."""
    created_at: float = field(default_factory=time.time)

    @property
    def trees(self) -> Trees:
        return Trees(self.files, self.tracked)

    @property
    def what(self) -> str:
        cell = self.moment.cell
        if self.name == AUTO:
            return f"the state before cell {cell + 1}"
        return f"checkpoint {self.name!r} {f'of cell {cell}' if cell else 'before any cell'}"

    @property
    def description(self) -> str:
        """Return the text that follows "rolled back to"."""
        return f"{self.what}, {duration(max(0.0, time.time() - self.created_at))} ago"

    def info(self, memory: int | None = None) -> CheckpointInfo:
        return CheckpointInfo(
            self.name, self.moment.cell, self.created_at, memory, self.name == AUTO, list(self.notices), self.copied
        )


class Checkpoints:
    """Store of a session's checkpoints. The session makes the copies and rolls back."""

    def __init__(self, session_id: str, limit: int, *, auto: bool) -> None:
        self._session_id = session_id
        self._limit = limit
        self.auto = auto
        self._parked: dict[str, Parked] = {}
        self._why_gone: dict[str, str] = {}
        self._returned: tuple[int, int] | None = None
        """Last cell at the time of the last rollback, and the cell that had just run in the state that it went to."""
        self._closed = False

    @property
    def any(self) -> bool:
        return bool(self._parked)

    @property
    def workers(self) -> list[Worker]:
        """The copies that the checkpoints consist of."""
        return [parked.worker for parked in self._parked.values()]

    @property
    def way_back(self) -> str:
        """Return the end of a sentence about a lost worker: to which checkpoint one can roll back."""
        try:
            return f"; roll back to have {self.find(None).what} again"
        except errors.CheckpointNotFound:
            return ""

    def add(self, parked: Parked) -> list[str]:
        """Store a checkpoint in place of the one of its name. Return notices of those that were dropped for it."""
        if self._closed:
            parked.worker.kill()
            raise errors.SessionNotFound(self._session_id)
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
        """Drop a checkpoint. Its process has ended, and its memory is free, when this returns."""
        worker = self.find(name).worker
        self.drop(name)
        self._remember(name, "it was dropped")
        await worker.gone

    def drop(self, name: str) -> None:
        """Drop a checkpoint, if there is one of this name, without waiting for its end."""
        parked = self._parked.pop(name, None)
        if parked is not None:
            parked.worker.kill()

    def stop_auto(self) -> None:
        """Drop the automatic checkpoint: the session uses a GPU."""
        self.drop(AUTO)
        self._remember(AUTO, "there are no automatic ones while the session uses a GPU")

    def _on_gone(self, parked: Parked, how: str) -> None:
        if self._parked.get(parked.name) is parked:
            del self._parked[parked.name]
            self._remember(parked.name, how if how.startswith("the session's") else f"its process {how}")

    def _remember(self, name: str, why: str) -> None:
        self._why_gone[name] = why
        if len(self._why_gone) > MAX_REASONS:
            del self._why_gone[next(iter(self._why_gone))]

    def has(self, name: str | None) -> bool:
        """Return whether there is, or was, a checkpoint of this name. Without a name: True."""
        return name is None or name in self._parked or name in self._why_gone

    def find(self, name: str | None, why: str | None = None) -> Parked:
        """Return the checkpoint of this name; without a name, the automatic one, or else the newest.

        `why` is a reason for the error, if no other is known.
        """
        if name is None:
            if self.auto:
                name = AUTO
            else:
                name = next(reversed(self._parked), None)
        if name is None or name not in self._parked:
            raise errors.CheckpointNotFound(
                self._session_id, name, sorted(self._parked), self._why_gone.get(name or "", why)
            )
        return self._parked[name]

    def note_return(self, parked: Parked, last: int) -> None:
        """Take note of a rollback to this checkpoint, when `last` was the last cell."""
        self._returned = last, parked.after

    def repeats(self, parked: Parked, last: int) -> str | None:
        """Return a sentence if a rollback to this checkpoint repeats the last one. `last` is the last cell."""
        if self._returned != (last, parked.after):
            return None
        earlier = sorted((each for each in self._parked.values() if each.after < parked.after), key=lambda e: e.after)
        further = (
            f"to go further back, name an earlier one: {', '.join(each.what for each in earlier)}"
            if earlier
            else "the session keeps no earlier state; `checkpoint` marks one that later rollbacks can name"
        )
        return f"no cell has run since the last rollback, so this is the same state again; {further}"

    def after(self, last: int) -> int:
        """Return the cell that has just run in the session's state now. `last` is its last cell."""
        return self._returned[1] if self._returned is not None and self._returned[0] == last else last

    def of_cell(self, cell: int, last: int) -> Parked | None:
        """Return the checkpoint of the state right after a cell, or None if that is the session's state now."""
        if cell == (now := self.after(last)):
            return None
        kept = {each.after: each for each in reversed(self._parked.values())}
        if cell not in kept:
            raise errors.CellNotKept(self._session_id, cell, sorted({*kept, now}), auto=self.auto)
        return kept[cell]

    def uses(self, tmp: str) -> bool:
        """Return whether a checkpoint needs this folder of temporary files."""
        return any(parked.moment.tmp == tmp for parked in self._parked.values())

    async def list(self) -> list[CheckpointInfo]:
        """Return all checkpoints from the oldest to the newest, the automatic one last."""
        parked = sorted(self._parked.values(), key=lambda each: (each.name == AUTO, each.created_at))
        memory = await asyncio.to_thread(lambda: [processes.proportional_memory(each.worker.pid) for each in parked])
        return [each.info(used) for each, used in zip(parked, memory, strict=True)]

    async def close(self) -> None:
        """End all checkpoints, with the session."""
        self._closed = True
        workers = [parked.worker for parked in self._parked.values()]
        self._parked.clear()
        for worker in workers:
            worker.kill()
        for worker in workers:
            await worker.gone
