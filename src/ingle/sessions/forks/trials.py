"""Trials of a session: a cell runs in a copy with its own files, and is committed or discarded afterwards.

The session waits as long as a trial is open: other requests are refused as busy. A trial ends by a commit, which makes
its process the session's, by a discard, or when its time is over.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from ingle import errors
from ingle.events import Result
from ingle.files import FileChanges
from ingle.isolation.egress.host_log import HostLog
from ingle.requests import NewCell
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.cells.turns import TRIAL, Turn, Turns
from ingle.sessions.forks.commit_policy import decide
from ingle.sessions.forks.effects import NOT_COPIED, Reach, find_effect
from ingle.sessions.forks.forking import ForkedCopy, Forking
from ingle.sessions.forks.granted_folders import GrantedFolders
from ingle.sessions.forks.replacement import Replacement
from ingle.sessions.forks.variable_changes import VariablesBefore
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import Moment
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.persistence.save_schedule import SaveSchedule
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.sessions.process.session_folders import SessionFolders
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.workspace import ViewProxy
from ingle.sessions.spec import SessionSpec
from ingle.support import remove_tree
from ingle.support.background import Tasks, finish
from ingle.trees.store import KeptLayer, KeptTree, NotKept, Trees
from ingle.trials import Decision, Effect, Trial, TrialInfo
from ingle.workers import views
from ingle.workers.launch.launcher import Launcher
from ingle.workers.views import LayeredFolders
from ingle.workers.worker import Worker
from ingle_worker.wire import states
from ingle_worker.wire.trees import LAYERS

if TYPE_CHECKING:
    from ingle.sessions.session import Session

POLL_SECONDS = 60.0
"""Length of each wait for the cell of a trial."""

MakeFork = Callable[[SessionSpec, Launcher, str, ForkedCopy], "Session"]
"""Makes the session of a copy, by its original's description and launcher and the name of its folder."""


class Copy:
    """A copy of a session in which code runs, while the session waits."""

    def __init__(
        self,
        fork: "Session",
        copy: ForkedCopy,
        before: VariablesBefore,
        proxy: ViewProxy | None,
        grants: GrantedFolders,
        reach: Reach,
    ) -> None:
        self.fork = fork
        self.worker = copy.worker
        self.folders = copy.folders
        assert copy.origin.files is not None
        self.forked = copy.origin.files
        self.grants = grants
        self.ends = [each.removeprefix(NOT_COPIED) for each in copy.origin.notices if each.startswith(NOT_COPIED)]
        self.copied = copy.origin.copied
        self.before = before
        self.proxy = proxy
        self.reach = reach

    @property
    def hosts(self) -> HostLog | None:
        return None if self.proxy is None else self.proxy.hosts

    async def run(self, new: NewCell) -> Result:
        """Run a cell to its end. It reads end of file from standard input."""
        fork = self.fork
        number = await fork.execute(new)
        while True:
            result = await fork.wait(number, POLL_SECONDS)
            if result.status in states.FINAL_STATUSES:
                return result
            if result.status == states.WAITING:
                await fork.input("", eof=True)

    async def effect(self) -> Effect:
        """Return what has changed."""
        fork = self.fork
        if not self.worker.alive:
            ended = "its process has ended, so that it can only be discarded"
            return Effect(notices=[*await asyncio.to_thread(self.reach.told, None), ended], ends=self.ends)
        async with fork.use("compare") as worker:
            effect = await find_effect(
                self.before, self.forked.tree, fork.calls, worker, fork.kept_files, self.hosts, self.ends, self.reach
            )
        return await self.grants.add_to(effect)

    async def end(self) -> None:
        """End the copy and remove its files."""
        self.worker.kill("was discarded")
        await self.fork.end()
        await self.close()

    async def close(self) -> None:
        if self.proxy is not None:
            await self.proxy.close()
        self.fork.kept_files.release(self.forked.tree)
        await self.before.close()


class OpenTrial:
    """A trial that is neither committed nor discarded."""

    def __init__(self, name: str, turn: Turn, copy: Copy, cell: int, expires_at: float) -> None:
        self.name = name
        self.turn = turn
        self.copy = copy
        self.cell = cell
        self.created_at = time.time()
        self.expires_at = expires_at
        self.timer: asyncio.TimerHandle | None = None
        self.result: Result | None = None
        self.effect: Effect | None = None
        self.decision: Decision | None = None
        self.discarded = False

    def shown(self) -> Trial:
        return Trial(self.name, self.expires_at, self.effect, self.copy.copied, self.decision, self.discarded)

    def info(self) -> TrialInfo:
        status = states.RUNNING if self.result is None else self.result.status
        return TrialInfo(self.name, self.cell, status, self.created_at, self.expires_at, self.effect, self.decision)


class Trials:
    def __init__(
        self,
        spec: SessionSpec,
        turns: Turns,
        worker: ExclusiveWorker,
        slot: ProcessSlot,
        runner: CellRunner,
        journal: Journal,
        files: KeptFiles,
        folders: CheckpointFiles,
        forking: Forking,
        saves: SaveSchedule,
        tasks: Tasks,
        seconds: float,
        make: MakeFork | None,
    ) -> None:
        """`seconds`: time after which a trial is discarded."""
        self._spec = spec
        self._turns = turns
        self._worker = worker
        self._slot = slot
        self._runner = runner
        self._journal = journal
        self._files = files
        self._folders = folders
        self._forking = forking
        self._saves = saves
        self._tasks = tasks
        self._seconds = seconds
        self._make = make
        self._copies: list[Copy] = []
        self._open: OpenTrial | None = None
        self._taken_over: list[SessionFolders] = []
        """Folders of committed trials and adopted forks: their processes go on to use them."""

    @property
    def sessions(self) -> "list[Session]":
        """The sessions of all copies."""
        return [copy.fork for copy in self._copies]

    # --- trials ---

    async def run(self, new: NewCell, network: str, seconds: float) -> Result:
        """Run a cell as a trial. Return its result once it has ended, or after so many seconds."""
        turn = await self._take_turn(network, queue=new.queue)
        name = turn.trial = f"trial-{secrets.token_hex(3)}"
        try:
            (copy,) = await self.copies(1, network)
        except BaseException:
            self._turns.release(turn)
            raise
        trial = self._open = OpenTrial(name, turn, copy, self._journal.history.count + 1, time.time() + self._seconds)
        trial.timer = asyncio.get_running_loop().call_later(self._seconds, self._expire, trial)
        running = self._tasks.start(self._run(trial, msgspec.structs.replace(new, key=None, queue=False)))
        await asyncio.wait({running}, timeout=seconds)
        if trial.result is None:
            running_cell = await copy.fork.wait(trial.cell, 0.0) if copy.fork.last_cell == trial.cell else None
            result = running_cell or Result(self._spec.session_id, trial.cell, states.RUNNING)
        else:
            result = msgspec.structs.replace(trial.result)
        result.trial = trial.shown()
        if running.done() and (error := running.exception()) is not None:
            if self._open is trial:
                await self._discard(trial)
            raise error
        return result

    async def _run(self, trial: OpenTrial, new: NewCell) -> None:
        result = await trial.copy.run(new)
        trial.effect = Effect() if trial.discarded else await trial.copy.effect()
        trial.result = result
        if new.policy is not None:
            decision = decide(new.policy, result, trial.effect, trial.copy.grants.changed)
            trial.decision = await self._decide(trial, decision)

    async def _decide(self, trial: OpenTrial, decision: Decision) -> Decision:
        """Commit a trial if its policy says so. Return what was decided: it stays open if it cannot be committed."""
        if not decision.committed:
            return decision
        try:
            _, files = await self.commit(trial.name)
        except errors.IngleError as why:
            if self._open is not trial:
                raise
            return Decision(False, [why.message])
        return msgspec.structs.replace(decision, files=files)

    def infos(self) -> list[TrialInfo]:
        return [] if self._open is None else [self._open.info()]

    async def commit(self, name: str) -> tuple[str, FileChanges | None]:
        """Make the process of a trial the session's. Return a sentence about it, and which files changed."""
        trial = self._find(name)
        if trial.effect is None:
            raise errors.Busy(trial.cell, time.time() - trial.created_at)
        if trial.copy.worker.alive:
            # Before anything else: a trial that cannot be committed stays open. One without a process is dropped.
            await trial.copy.grants.check()
        self._close(self._find(name))
        try:
            text = f"committed {name}: its cell {trial.cell} is now one of this session"
            return text, await self.take_over(trial.copy, text, trial.cell)
        finally:
            self._turns.release(trial.turn)

    async def discard(self, name: str) -> None:
        """Drop a trial. Nothing of it is left when this returns."""
        await self._discard(self._find(name))

    async def _discard(self, trial: OpenTrial) -> None:
        self._close(trial)
        trial.discarded = True
        try:
            await self.drop(trial.copy)
        finally:
            self._turns.release(trial.turn)

    def _find(self, name: str) -> OpenTrial:
        if self._open is None or self._open.name != name:
            raise errors.TrialNotFound(self._spec.session_id, name, [each.name for each in self.infos()])
        return self._open

    def _close(self, trial: OpenTrial) -> None:
        self._open = None
        if trial.timer is not None:
            trial.timer.cancel()

    def _expire(self, trial: OpenTrial) -> None:
        if self._open is trial:
            self._journal.notify(f"{trial.name} was discarded: it was not committed within {self._seconds:g} s")
            self._tasks.start(self._discard(trial))

    # --- copies ---

    @asynccontextmanager
    async def turn(self, network: str) -> AsyncIterator[int]:
        """Hold the session for copies that run code. Provide the number of the next cell."""
        turn = await self._take_turn(network)
        number = self._journal.history.count + 1
        turn.begin_cell(number)
        try:
            yield number
        finally:
            self._turns.release(turn)

    async def probe(self, new: NewCell, network: str) -> Result:
        """Run a cell in a copy that ends after it. Return its result. It may take as long as a trial stays open."""
        seconds = self._seconds if new.timeout is None else min(new.timeout, self._seconds)
        async with self.turn(network):
            (copy,) = await self.copies(1, network, compare=False)
            try:
                return await copy.run(msgspec.structs.replace(new, timeout=seconds))
            finally:
                await self.drop(copy)

    async def _take_turn(self, network: str, *, queue: bool = False) -> Turn:
        self.check(network)
        return await self._turns.take(TRIAL, self._journal.history.count + 1, queue=queue)

    def check(self, network: str) -> None:
        """Raise TrialRefused if this session cannot have a trial with this network."""
        grant, own_root, writable = self._spec.grant, self._slot.workspace.own_root, self._forking.writable
        if writable and not own_root:
            raise errors.TrialRefused(
                f"the session may write to {writable[0]}, and at the level {grant.isolation!r} a trial would too; "
                "use a sandbox, or a session without that folder"
            )
        if network == "held" and (not own_root or grant.network == "full"):
            why = (
                "has the host's network" if own_root else f"has no network of its own at the level {grant.isolation!r}"
            )
            raise errors.TrialRefused(f"connections cannot be held: the session {why}; allow them: network=allowed")

    async def copies(self, count: int, network: str, *, compare: bool = True) -> list[Copy]:
        """Make copies for code to run in. The caller holds the turn, and takes over or drops each of them.

        `compare`: their variables are compared afterwards.
        """
        assert self._make is not None
        worker = await self._worker.ready()
        before = VariablesBefore()
        own_root = self._slot.workspace.own_root
        apart = own_root and self._spec.grant.network != "full"
        reach = Reach(worker, self._spec.grant.isolation, own_root=own_root, own_network=apart)
        names = [secrets.token_hex(8) for _ in range(count)]
        made: list[Copy] = []
        try:
            async with (
                AsyncExitStack() as held,
                self._forking.copies(
                    worker, self._journal.history.count, names, held=held, network=apart, protect=True
                ) as copies,
            ):
                for name, copy in zip(names, copies, strict=True):
                    fork = self._make(self._spec, self._slot.launcher, name, copy)
                    proxy = None
                    assert copy.origin.files is not None
                    self._files.share(copy.origin.files.tree)
                    view = copy.origin.files.view
                    if view is not None and view.listener is not None:
                        proxy = await self._slot.workspace.open_proxy(view.listener, held=network == "held")
                    made.append(Copy(fork, copy, before, proxy, self._grants_of(copy), reach))
                    self._copies.append(made[-1])
                    fork.begin_fork(copy)
                await asyncio.gather(*(each.fork.slot.wait_forked() for each in made))
            if compare:
                for each in made:
                    each.reach = each.reach.of(each.fork.journal.notices.take())
                async with made[0].fork.use("compare") as first:
                    await before.note(made[0].fork.calls, first)
        except BaseException:
            await asyncio.gather(*(self.drop(each) for each in made))
            raise
        return made

    def _grants_of(self, copy: ForkedCopy) -> GrantedFolders:
        view = None if copy.origin.files is None else copy.origin.files.view
        protected = LayeredFolders() if view is None else view.protected
        return GrantedFolders(self._folders, copy.worker, protected)

    async def drop(self, copy: Copy) -> None:
        """End a copy."""
        try:
            await copy.end()
        finally:
            self._forget(copy)

    def _forget(self, copy: Copy) -> None:
        # The end of the session may have dropped it meanwhile.
        if copy in self._copies:
            self._copies.remove(copy)

    async def take_over(self, copy: Copy, text: str, cell: int) -> FileChanges | None:
        """Make the process of a copy the session's, with its files and its cell. The caller holds the turn."""
        return await finish(self._take_over(copy, text, cell))

    async def _take_over(self, copy: Copy, text: str, cell: int) -> FileChanges | None:
        fork, worker = copy.fork, copy.worker
        layers: dict[str, KeptLayer] = {}
        try:
            layers = await copy.grants.take()
            tree, moment = await self._give_away(copy, cell)
        except BaseException:
            self._folders.layers.release(layers)
            await self.drop(copy)
            raise
        source, target = copy.folders.workspace, self._files.folder

        async def make() -> tuple[Worker, None]:
            return worker, None

        async def leave_view(current: Worker) -> None:
            # Another worker that does the rest has no view.
            if current is worker:
                own, (fork, shown) = str(copy.folders.folder), self._slot.workspace.folders.fork_shown
                await views.undo(worker, own, target, copy.grants.protected.all, fork, shown)

        replacement = Replacement(
            text,
            "a trial was committed",
            moment.moved(source, target),
            self._folders,
            Trees(tree, {}, layers),
            make,
            time.time(),
            leave_view=leave_view if copy.forked.view is not None else None,
            source=source,
        )
        try:
            _, changes = await self._slot.replace(replacement)
            await self._journal.absorb(fork.journal, cell)
            self._runner.last_begun = fork.runner.last_begun
            self._runner.last_ended = time.monotonic()
            if copy.proxy is not None:
                await self._slot.workspace.keep_proxy(copy.proxy, worker, self._spec.grant.network)
                copy.proxy = None
            self._saves.changed()
            return changes
        finally:
            if self._slot.worker is not worker:
                worker.kill()
            self._taken_over.append(copy.folders)
            self._folders.release(Trees(tree, {}, layers))
            await fork.end(keep=True)
            await copy.close()
            self._forget(copy)
            for folder in (fork.spec.folder, copy.folders.folder / LAYERS):
                await asyncio.to_thread(remove_tree.remove, folder)

    async def _give_away(self, copy: Copy, cell: int) -> tuple[KeptTree | NotKept, Moment]:
        """Take the process of a copy away from its own session. Return its files, and what the host knows of it."""
        slot = copy.fork.slot
        async with copy.fork.use("commit") as worker:
            tree: KeptTree | NotKept = NotKept("the process has ended")
            if worker is copy.worker:
                tree = await self._take_files(copy, worker)
                await slot.note_files(worker, copy.grants.protected.all)
            if slot.worker is not copy.worker or not worker.alive:
                self._files.release(tree)
                raise errors.Conflict("the process of the trial has ended, so that it cannot be committed")
            moment = slot.moment(cell)
            slot.give_away()
            return tree, moment

    async def _take_files(self, copy: Copy, worker: Worker) -> KeptTree | NotKept:
        try:
            return await copy.fork.kept_files.take(worker)
        except NotKept as why:
            raise errors.Conflict(f"the files of the trial cannot be taken over: {why}") from None

    async def close(self) -> None:
        """End all copies, with the session."""
        if self._open is not None:
            self._close(self._open)
        for copy in list(self._copies):
            await self.drop(copy)

    def take_folders(self, fork: "Session") -> None:
        """Keep the folders of a fork that is adopted: its process goes on to use them."""
        fork.folders.hold()
        self._taken_over += [fork.folders, *fork.trials._taken_over]
        fork.trials._taken_over.clear()

    async def leave_folders(self) -> None:
        """Give up the folders of committed trials and adopted forks, after the session has ended."""
        for folders in self._taken_over:
            await folders.leave()
