"""The node on this machine: its sessions live in this process, their workers below it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

from ingle import errors
from ingle.capacity import Capacity, Drained, Load, MachineInfo, MachineUsage, Metrics, NetworkUse, SessionUsage
from ingle.events import (
    AnyEvent,
    CellInfo,
    CheckpointInfo,
    Result,
    RolledBack,
    Saved,
    SessionInfo,
    Variables,
    VariableValue,
)
from ingle.files import Diff
from ingle.grants import Isolation
from ingle.introspection import Rows
from ingle.nodes.environments import LocalEnvironments
from ingle.nodes.grants import LocalGrants
from ingle.nodes.snapshots import LocalSnapshots
from ingle.nodes.tasks import LocalTasks
from ingle.nodes.tools import LocalTools
from ingle.output.pages import OutputPage, Reading
from ingle.requests import Author, NewCell, NewSession
from ingle.sessions.files import SessionFiles, SessionValue
from ingle.sessions.forks import adoption
from ingle.sessions.forks.variants import try_codes
from ingle.sessions.manager import Manager
from ingle.sessions.persistence.comparison import Kind
from ingle.sessions.process.introspection import Introspection
from ingle.sessions.session import Session
from ingle.sessions.spec import key_of, tenant_of
from ingle.settings import Settings
from ingle.support.background import finish
from ingle.trials import Committed, FailureInfo, Inspected, TrialInfo, Tried
from ingle_worker.wire import states


class LocalNode:
    """Sessions and shell tasks of this machine."""

    def __init__(self, settings: Settings, home: Path, place: str = "", agent: str = "") -> None:
        self.manager = Manager(settings, home, place, agent)
        self.tasks = LocalTasks(settings, home, self.manager)
        self.snapshots = LocalSnapshots(self.manager)
        self.library = self.manager.libraries
        self.grants = LocalGrants(self.manager)
        self.environments = LocalEnvironments(self.manager)
        self.tools = self.manager.tools
        self.machines = LocalMachine(settings, self.manager)

    async def start(self) -> None:
        await self.manager.start()

    async def warm(self) -> None:
        await self.manager.warm()

    async def stop(self) -> None:
        await self.environments.stop()
        await self.tasks.stop()
        await self.snapshots.stop()
        await self.manager.stop()

    async def create(self, new: NewSession) -> SessionInfo:
        return (await self.manager.create(new)).info(usage=not new.one_off)

    def session(self, key: str) -> "LocalSession":
        return LocalSession(self.manager.get(key), self.manager, self.tasks, self.snapshots)

    async def sessions(self, tenant: str) -> list[SessionInfo]:
        return [session.info() for session in self.manager.all(tenant)]

    async def adopt(self, key: str) -> SessionInfo:
        """Take over a durable session of a server that is gone, from the object store. The next call restores it."""
        await self.manager.takeover.adopt_key(key)
        return self.manager.get(key).info()

    async def give_up(self, key: str) -> None:
        """Save a durable session to the object store and end it here, for another server."""
        await self.manager.takeover.give_up(key)

    async def fork(
        self, key: str, names: list[str | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[SessionInfo]:
        made = await self.manager.fork(key, names, at=at, reseed=reseed, shares=shares)
        return [session.info() for session in made]

    async def isolation(self) -> Isolation:
        verdict = await self.manager.grants.settled()
        return Isolation(verdict.level, self.manager.grants.policy.network, verdict.missing)

    async def capacity(self) -> Capacity:
        return self.manager.admission.capacity

    async def load(self, tenant: str) -> Load:
        load = self.manager.load(tenant)
        load.tasks, load.shells = self.tasks.shell.load(tenant)
        return load

    async def metrics(self) -> Metrics:
        return self.manager.metrics()

    async def usage(self) -> MachineUsage:
        return await self.manager.upkeep.machine.read(len(self.manager.everyone()))


class LocalSession:
    """Handle of a session in this process."""

    def __init__(self, session: Session, manager: Manager, tasks: LocalTasks, snapshots: LocalSnapshots) -> None:
        self._session = session
        self._manager = manager
        self._tasks = tasks
        self._snapshots = snapshots

    @property
    def checkpoints(self) -> "LocalCheckpoints":
        return LocalCheckpoints(self._session)

    @property
    def trials(self) -> "LocalTrials":
        return LocalTrials(self._session)

    @property
    def tools(self) -> LocalTools:
        return LocalTools(self._session)

    @property
    def introspection(self) -> Introspection:
        return self._session.introspection

    async def info(self) -> SessionInfo:
        return self._session.info()

    async def usage(self) -> SessionUsage:
        return await self._session.usage.read()

    async def network(self) -> NetworkUse:
        return self._session.usage.network()

    async def end(self) -> SessionInfo:
        session = self._session
        await self._tasks.end_of_session(session.key)
        # A one-off may be ending already. Then this waits for its end.
        await asyncio.shield(self._manager.end_soon(session, "asked for"))
        return session.info()

    async def clear(self) -> SessionInfo:
        await self._session.clear()
        return self._session.info()

    async def rollback(self, checkpoint: str | None) -> RolledBack:
        done = await self._session.rollback(checkpoint)
        return RolledBack(done.text, done.checkpoint, self._session.info(), done.files)

    async def diff(self, to: str | None, seconds: float) -> Diff:
        session = self._session
        kind, _, name = (to or "").rpartition(":")
        if kind not in ("", *get_args(Kind)):
            raise errors.InvalidRequest(
                f"{(to or '')[:200]!r} is not what to compare with; name a checkpoint, session or snapshot, "
                "or give its kind and name, as in snapshot:NAME"
            )
        if kind == "checkpoint" or (not kind and session.checkpoints.has(name or None)):
            return await session.comparison.diff(name or None, seconds)
        if kind != "snapshot":
            with contextlib.suppress(*([] if kind else [errors.SessionNotFound])):
                other = self._manager.get(key_of(tenant_of(session.key), name))
                return await session.comparison.diff_from(name, "session", await other.comparison.now(seconds), seconds)
        try:
            before = await self._snapshots.moment(session, name, seconds)
        except errors.SnapshotNotFound:
            if not kind:
                # Raises an error that names those there are.
                session.checkpoints.find(name, "no session and no snapshot has this name either")
            raise
        return await session.comparison.diff_from(name, "snapshot", before, seconds)

    async def adopt(self, fork: str) -> Committed:
        return await finish(self._adopt(fork))  # halfway, neither session would have the process

    async def _adopt(self, name: str) -> Committed:
        session, fork = self._session, self._manager.get(key_of(tenant_of(self._session.key), name))
        if fork is session:
            raise errors.Conflict("a session cannot adopt itself")
        ending: asyncio.Task[None] | None = None
        async with session.use("adopt"), fork.use("adopt") as worker:
            adoption.check(session, fork, worker)
            # They see the files of the fork where those of the session will be.
            await self._tasks.end_of_session(fork.key)
            try:
                text, files = await adoption.adopt(session, fork, worker)
            finally:
                if fork.worker is not worker:
                    ending = self._manager.end_soon(fork, "it was adopted")
        if ending is not None:
            await ending
        return Committed(text, session.last_cell, files)

    async def save(self, target: str, start: str | None) -> Saved:
        return await self._snapshots.save(self._session, target, start)

    async def execute(self, new: NewCell) -> int:
        return await self._session.execute(new)

    async def wait(self, cell: int | None, seconds: float, from_event: int = 0) -> Result:
        session = self._session
        result = await session.wait(cell, seconds, from_event)
        if session.spec.one_off and result.status in states.FINAL_STATUSES:
            self._manager.end_soon(session, "its result was read")
        return result

    async def input(self, text: str, author: Author, *, eof: bool = False) -> int:
        return await self._session.input(text, author, eof=eof)

    async def interrupt(self, author: Author) -> int | None:
        return await self._session.interrupt(author)

    def cells(self, first: int, count: int) -> AsyncIterator[CellInfo]:
        return self._session.cells(first, count)

    async def note(self, text: str, author: Author, *, raw: bool) -> None:
        self._session.note(text, author, raw=raw)

    async def output(self, cell: int, reading: Reading) -> OutputPage:
        return await self._session.output(cell, reading)

    async def figure(self, file_id: str) -> bytes:
        return await self._session.journal.image(file_id)

    def events(self, first: int) -> AsyncIterator[AnyEvent]:
        return self._session.follow(first)

    async def variables(self) -> Variables:
        return await self._session.variables()

    async def variable(self, name: str, limit: float, rows: Rows | None = None) -> VariableValue:
        return await self._session.variable(name, limit, rows)

    async def value(self, name: str, limit: float) -> SessionValue:
        return await self._session.value(name, limit)

    async def set_value(self, name: str, kind: str, chunks: AsyncIterator[bytes], size: int, limit: float) -> None:
        await self._session.set_value(name, kind, chunks, size, limit)

    async def files(self) -> SessionFiles:
        return await self._session.files()


class LocalMachine:
    """This machine, as the only one of a node."""

    def __init__(self, settings: Settings, manager: Manager) -> None:
        self._name = settings.node or os.uname().nodename
        self._manager = manager

    async def list(self) -> list[MachineInfo]:
        return [MachineInfo(self._name, len(self._manager.everyone()), self._manager.admission.limit)]

    async def scale(self, count: int) -> None:
        raise errors.InvalidRequest("this server runs sessions itself; ask a gateway, started with --cluster")

    async def drain(self, node: str, seconds: float) -> Drained:
        raise errors.InvalidRequest("this server has no other machine for its sessions; ask a gateway of a cluster")


class LocalTrials:
    """Trials of a session in this process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(self, new: NewCell, seconds: float) -> Result:
        return await self._session.trials.run(new, new.trial or "held", seconds)

    async def commit(self, name: str) -> Committed:
        text, files = await self._session.trials.commit(name)
        return Committed(text, self._session.last_cell, files)

    async def discard(self, name: str) -> None:
        await self._session.trials.discard(name)

    async def try_codes(self, codes: list[NewCell], score: str | None, keep: str, budget: float, network: str) -> Tried:
        return await try_codes(self._session.trials, codes, score, keep, budget, network)

    async def probe(self, new: NewCell, network: str) -> Result:
        return await self._session.trials.probe(new, network)

    async def failures(self) -> list[FailureInfo]:
        return await self._session.failures.list()

    async def list(self) -> list[TrialInfo]:
        return self._session.trials.infos()

    async def inspect(self, cell: int | None, expression: str, frame: int, seconds: float) -> Inspected:
        return await self._session.failures.inspect(cell, expression, frame, seconds)


class LocalCheckpoints:
    """Checkpoints of a session in this process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def make(self, name: str) -> CheckpointInfo:
        return await self._session.checkpoint(name)

    async def remove(self, name: str) -> None:
        await self._session.checkpoints.remove(name)

    async def list(self) -> list[CheckpointInfo]:
        return await self._session.checkpoints.list()
