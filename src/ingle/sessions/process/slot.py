"""Slot of a session's process: the worker, how it comes up, and what becomes of it.

There is one start at a time. Requests wait for it, and a cancelled request leaves it running. A worker that ends while
it starts is followed by another one, a few times. Then the start has failed, and the next call begins a new one.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from ingle import errors, events
from ingle.events import Exit
from ingle.isolation.limits.apply import LimitApplier
from ingle.sessions.cells.input_waits import InputWaits
from ingle.sessions.cells.journal import Journal
from ingle.sessions.forks.blanks import Blanks
from ingle.sessions.forks.folder_copy import fill_folder
from ingle.sessions.forks.replacement import Outcome, Replacement
from ingle.sessions.metrics import Telemetry
from ingle.sessions.persistence.autosave import AutoSave
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import Moment
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.library import SessionLibrary
from ingle.sessions.process.prepared_workers import PreparedWorker
from ingle.sessions.process.slot_states import MOVES, SESSION_STATES, SlotState
from ingle.sessions.process.variable_names import VariableNames
from ingle.sessions.process.workspace import Workspace
from ingle.sessions.spec import ForkOrigin, SessionSpec
from ingle.workers.launch.launcher import Launcher
from ingle.workers.listener import WorkerListener
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states

MAX_STARTS = 4
"""A worker of the pool may have died unseen, and its successor with a zygote that is ending."""

MAX_RESTORES = 4
"""More for a session that is restored: each of its two saves may end the worker twice."""

REOPEN_SECONDS = 10.0
"""Time for a copy to open its files again. It goes on without them then."""

MAX_PATH_CHARS = 4096
MAX_START_NOTICES = 10


class ProcessSlot:
    def __init__(
        self,
        spec: SessionSpec,
        launcher: Launcher,
        workspace: Workspace,
        calls: WorkerCalls,
        journal: Journal,
        telemetry: Telemetry,
        autosave: AutoSave | None = None,
        prepared: PreparedWorker | None = None,
        free_process: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`free_process` is awaited before a hibernated session is restored."""
        self._spec = spec
        self.launcher = launcher
        """Launcher of the current worker, or of the last one."""
        self.next_launcher = launcher
        """Launcher of the next worker. It differs after a change of the grants."""
        self.used_launchers = {launcher}
        """Launchers that its worker and its checkpoints may come from."""
        self.workspace = workspace
        self._calls = calls
        self._journal = journal
        self._telemetry = telemetry
        self.listener: WorkerListener | None = None
        """Receives the events of each worker."""
        self.folders: CheckpointFiles | None = None
        """Folders that are brought back with the session."""
        self._autosave = autosave
        self._free_process = free_process
        self._prepared = prepared
        """A worker of the pool, for the first start only."""
        self.blanks = Blanks(wanted=bool(spec.grant.gpus.cards.numbers) and not spec.one_off)
        self._loop = asyncio.get_running_loop()
        self.state = SlotState.ABSENT
        self.ending = False
        """Whether the session was ended, and gets no more workers."""
        self.worker: Worker | None = None
        self.crowded = False
        """Whether the worker's threads write output, so that the start of a cell has to be marked in it."""
        self.input = InputWaits()
        """Readers of the worker's standard input."""
        self.names = VariableNames()
        """Names of the worker's variables, as far as the host knows."""
        self.cwd = spec.cwd or workspace.home or workspace.folders.workspace
        """Folder that the worker started in."""
        self.restores = False
        """Whether the next worker begins with the last save."""
        self._started: asyncio.Future[None] = self._loop.create_future()
        """Resolved when the worker has its folders, its environment and its streams."""
        self._task: asyncio.Task[None] | None = None
        """The start that is under way, or the last one."""
        self._unfinished: Replacement | None = None
        """Replacement whose process ended before its files were applied."""
        self._making_copy = False
        """Whether a replacement's process is being made."""
        self._library = SessionLibrary(spec.library, calls, journal)
        self._trusts_pool = True
        """Whether workers of the pool are used before they confirm their start."""

    def move(self, state: SlotState) -> None:
        """Move to another state, and publish what it means for the session. No cell runs in this moment."""
        if state not in MOVES[self.state]:
            raise states.IllegalMove(f"a process slot cannot go from {self.state} to {state}")
        self.state = state
        self._journal.publish(SESSION_STATES[state])

    @property
    def key(self) -> str:
        return self._spec.key

    # --- waiting for the worker ---

    async def start_first(self) -> None:
        """Bring the first worker up. A cancelled caller cancels the start."""
        if self._use_prepared():
            return
        self.begin()
        assert self._task is not None
        await self._task
        await self.ready()

    async def ready(self) -> None:
        """Wait until the worker is up. Begin a start if there is none, or the last one has failed."""
        while not self.ending:
            if self.state is SlotState.UP:
                return
            if self.state is SlotState.HIBERNATED and self._free_process is not None:
                await self._free_process()
            self._begin_unless_ending()
            if self._task is not None and self.state is SlotState.STARTING:
                await self._wait(self._task)
        raise errors.SessionNotFound(self._spec.session_id)

    async def _wait(self, task: "asyncio.Task[None]") -> None:
        await asyncio.wait({task})
        if task.cancelled():
            raise errors.SessionNotFound(self._spec.session_id)
        task.result()

    def begin(self) -> None:
        """Begin to start a worker."""
        self.move(SlotState.STARTING)
        self._begin_task(self._start())

    def _begin_unless_ending(self) -> None:
        if not self.ending and self.state in (SlotState.ABSENT, SlotState.FAILED, SlotState.HIBERNATED):
            self.begin()

    def _begin_task(self, start: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(start)
        # Perhaps no request waits for the start, so its error is retrieved here.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    # --- the worker ---

    def attach(self, worker: Worker) -> None:
        """Make `worker` the session's. It may still be starting, or may already have ended.

        Events of the previous worker are ignored.
        """
        if self.worker is not None:
            self.worker.owner = None
        self.worker = worker
        self.crowded = False
        self.input.reset()
        self._started = self._loop.create_future()
        worker.owner = self.listener
        if worker.gone.done() and self.listener is not None:
            self.listener.on_gone(worker.gone.result())

    async def wait_started(self) -> None:
        """Wait until the worker has confirmed its start.

        A cell need not wait for that, because it follows on the same wire. Everything that uses the session's folders
        on another way has to wait.
        """
        await asyncio.shield(self._started)

    def on_started(self, message: messages.Started | None = None) -> None:
        """Take the worker's confirmation. A prepared worker or a copy has confirmed its start before."""
        if message is not None:
            self.cwd = message.cwd[:MAX_PATH_CHARS]
            self._journal.notices.of_start = [each[:1000] for each in message.notices[:MAX_START_NOTICES]]
        if not self._started.done():
            self._started.set_result(None)

    def on_gone(self, exit: Exit) -> None:
        """Forget a worker that has ended. If it had not confirmed its start, the start has failed."""
        self.worker = None
        self.names.clear()
        self.input.reset()
        self._calls.on_gone()
        if not self._started.done():
            self._trusts_pool = False
            self._started.set_exception(
                errors.StartFailed(f"the session's process ended while it started ({exit.message}); try again")
            )
            self._started.exception()  # retrieved here, since the launcher may try again by itself

    def explain(self, exit: Exit) -> Exit:
        """Return how the worker ended, with the limit that ended it if there was one."""
        group = None if self.ending or self.worker is None else self.worker.group
        return LimitApplier.explain(exit, group, self._spec.grant.limits)

    def on_done(self, done: messages.Done) -> None:
        """Take over what the end of a cell says about the worker."""
        self.crowded = done.crowded
        if done.names_removed or done.names_added:
            self.names.forget(done.names_removed)
            self.names.learn(done.names_added)

    def moment(self, cell: int) -> Moment:
        return Moment(cell, frozenset(self.names), self.cwd, self.workspace.tmp, self.launcher)

    # --- a fresh worker ---

    def _use_prepared(self) -> bool:
        """Take the prepared worker over. Return whether it is up, because it needs nothing more."""
        prepared = self._prepared
        if prepared is None or not prepared.fits(self._spec) or self.blanks.wanted:
            return False
        self._prepared = None
        if not prepared.worker.alive:
            return False
        self.attach(prepared.worker)
        self.on_started()
        self.move(SlotState.UP)
        self._telemetry.worker_started(self._spec.key, prepared.worker.pid, 0.0)
        return True

    async def _start(self) -> None:
        """Bring a worker up: a fresh one, or one with the last save. Raise an error if that fails, and be FAILED."""
        began = time.monotonic()
        try:
            await self._try_workers(self._autosave if self.restores else None)
        except errors.IngleError:
            self.move(SlotState.FAILED)
            raise
        self.move(SlotState.UP)
        pid = self.worker.pid if self.worker is not None else None
        self._telemetry.worker_started(self._spec.key, pid, time.monotonic() - began)

    async def _try_workers(self, autosave: AutoSave | None) -> None:
        tries = MAX_STARTS + self._library.wanted + (MAX_RESTORES if autosave is not None else 0)
        for attempt in range(tries):
            worker = await self._take_worker()
            try:
                await self._make_ready(worker, autosave)
                return
            except errors.IngleError as error:
                lives = not worker.gone.done()
                if lives:
                    # The worker itself is fine, so the next one would fail too.
                    worker.kill("the session could not be started")
                    await worker.gone
                if lives or attempt == tries - 1 or not isinstance(error, errors.StartFailed):
                    raise

    async def _take_worker(self) -> Worker:
        prepared, self._prepared = self._prepared, None
        if prepared is None or not prepared.worker.alive:
            self.launcher = self.next_launcher
            self.used_launchers.add(self.launcher)
            self.workspace.use(self.launcher)
            user = self.workspace.folders.user
            grant = self._spec.grant
            return await self.launcher.take(self._adopt, grant.network, user, self._spec.tenant, grant.limits)
        self.attach(prepared.worker)
        self.workspace.send_start(prepared.worker, self._spec.cwd, self._spec.env)
        return prepared.worker

    def _adopt(self, worker: Worker) -> None:
        self.attach(worker)
        self.workspace.assign(worker, self._spec.grant, self._spec.cwd, self._spec.env)

    async def _make_ready(self, worker: Worker, autosave: AutoSave | None) -> None:
        await self.workspace.limit(worker, self._spec.grant.limits)
        await self.workspace.connect(worker, self._spec.grant.network)
        await self.blanks.make(worker)
        if self._library.wanted or autosave is not None:
            await self._started
            saved = autosave is not None and autosave.has_something
            # A save holds what is left of the library. Then it is loaded for clearing only.
            self.names.learn(await self._library.load(worker, run=not saved))
            if autosave is not None:
                if self.folders is not None:
                    for notice in await self.folders.undo_unfinished(worker):
                        self._journal.notify(notice)
                names = await autosave.restore(worker, functools.partial(self._calls.load, worker))
                self.restores = False
                if names is not None:
                    self.names = VariableNames(names)
                    if autosave.durable:
                        # The save has the files of its own moment.
                        self._finish_replacement()
                elif saved:
                    self.names.learn(await self._library.load(worker, run=True))
        elif not (worker.birth.pooled and self._trusts_pool and self._spec.cwd is None):
            # The start of a worker of the pool fails only on a full disk, so the first cell may follow at once.
            await self._started
        if self._unfinished is not None:
            await self._started
            await self._unfinished.apply(worker, self._journal.notices)
            self._finish_replacement()
        if self.worker is not worker:
            raise errors.StartFailed("the session's process ended as soon as it had started; try again")

    # --- copies ---

    def begin_fork(self, worker: Worker, origin: ForkOrigin, files: KeptFiles) -> None:
        """Begin as a copy of another session's worker."""
        self.move(SlotState.STARTING)
        self.attach(worker)
        self._begin_task(self._start_fork(worker, origin, files))

    async def wait_forked(self) -> None:
        """Wait until the fork is up."""
        assert self._task is not None
        await self._wait(self._task)

    async def _start_fork(self, worker: Worker, origin: ForkOrigin, files: KeptFiles) -> None:
        self.names = VariableNames(origin.moment.names)
        source, view, filled = "", None, None
        if origin.files is not None:
            filled = await fill_folder(worker, origin.files, files, self._journal.notices)
            source, view = origin.files.source, origin.files.view
        key, protected = ([], []) if view is None else (view.key, view.protected.all)
        order = self.workspace.adopt(worker, reseed=origin.reseed, source=source, key=key, protected=protected)
        if not self._spec.trial:
            await self.blanks.make_for_fork(worker, order, view)
        # The worker cannot make the folder of its events: it may only see that of its original.
        await asyncio.to_thread(self._spec.folder.mkdir, 0o700, exist_ok=True)
        await self._started
        if filled is not None:
            await files.know(worker, filled)
        if origin.state is not None:
            names, notices = await origin.state.load(self._calls, self._library, worker, random=not origin.reseed)
            self.names = VariableNames(names)
            origin.notices.extend(notices)
        self._journal.notices.add_lasting(origin.notice)
        self._journal.append(events.Notice, origin.notice)
        shared, self._journal.notices.of_start = self._journal.notices.of_start, []
        for notice in (*origin.notices, *shared):
            self._journal.note(notice)
        if self.worker is not worker:
            raise errors.StartFailed("a copy ended as soon as it had started; try again")
        self.move(SlotState.UP)

    async def note_files(self, worker: Worker, more: Sequence[str] = ()) -> None:
        """Have the worker note its open files and its working directory, before it gets another folder, and `more`."""
        self._started = self._loop.create_future()
        worker.send(messages.NoteFiles(self.workspace.folders.workspace, list(more)))
        await self._wait_reopened(worker)
        self.on_started()

    async def _wait_reopened(self, worker: Worker) -> None:
        ends: list[asyncio.Future[Any]] = [self._started, worker.gone]
        await asyncio.wait(ends, timeout=REOPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def replace(self, replacement: Replacement) -> Outcome:
        """Put another process in the place of the current one, with its files.

        Return the former temporary folder, and which files changed. Without a process, raise StartFailed and go on.
        """
        replaced: asyncio.Future[Outcome] = self._loop.create_future()
        await self.ready()  # its process may have ended just now
        self._making_copy = True  # it may end before the task has begun, too
        self.move(SlotState.STARTING)
        self._begin_task(self._replace(replacement, replaced))
        assert self._task is not None
        await self._wait(self._task)
        return replaced.result()

    async def _replace(self, replacement: Replacement, replaced: "asyncio.Future[Outcome]") -> None:
        # Other requests wait for this too, so a failure goes to the caller alone.
        try:
            copy, state = await replacement.make()
        except errors.IngleError as error:
            self._making_copy = False
            _fail(replaced, error)
            if self.worker is None:
                await self._start()
            else:
                self.move(SlotState.UP)
            return
        before, tmp, moment = self.worker, self.workspace.tmp, replacement.moment
        replacement.hold()
        self._unfinished, self._making_copy = replacement, False
        self.attach(copy)
        self.names = VariableNames(moment.names)
        self.cwd, self.workspace.tmp, self.launcher = moment.cwd, moment.tmp, moment.launcher
        # Notices about the worker that is replaced are not true of this one.
        self._journal.notices.replace([replacement.text, *replacement.notices])
        if before is not None:
            before.kill(replacement.reason)
            await before.gone
        # Only now: nothing of the worker before changes them any more.
        changes = await replacement.apply(copy, self._journal.notices)
        failure = None
        if state is not None:
            names, notices, failure = await state.fill(self._calls, self._library, copy)
            self.names = VariableNames(names)
            for notice in notices:
                self._journal.note(notice)
        elif changes is not None:
            copy.send(messages.Reopen(replacement.source, replacement.folders.folder if replacement.source else ""))
            await self._wait_reopened(copy)
            self.cwd = moment.cwd
        self.on_started()
        self._journal.append(events.Notice, replacement.text, replacement.back_to)
        if failure is None:
            replaced.set_result((tmp, changes))
        else:
            _fail(replaced, failure)
        if changes is not None or copy.alive:
            self._finish_replacement()
        if self.worker is copy:
            self.move(SlotState.UP)
        else:
            await self._start()

    @property
    def replacing(self) -> bool:
        """Whether another process takes the place of the worker just now."""
        return self._making_copy or self._unfinished is not None

    def _finish_replacement(self) -> None:
        if self._unfinished is not None:
            self._unfinished.release()
        self._unfinished = None

    # --- hibernating and ending ---

    def on_breach(self, limit: str) -> None:
        """Kill a worker that uses more than a limit allows."""
        if self.worker is not None:
            self.worker.kill(f"was killed: {limit}")

    def begin_hibernated(self) -> None:
        """Begin without a process, as the session of an earlier server. The next call restores it."""
        self.restores = True
        self.state = SlotState.HIBERNATED
        self._journal.begin_hibernated()

    def hibernate(self) -> None:
        """Free the process. It runs no exit handlers: the restored session needs what they would remove."""
        worker, self.worker = self.worker, None
        assert worker is not None
        worker.owner = None
        worker.kill("was freed")
        self._journal.notices.of_start = []
        self.move(SlotState.HIBERNATED)

    def give_away(self) -> None:
        """Give up the worker, which becomes that of another session. This one has no worker any more."""
        worker, self.worker = self.worker, None
        assert worker is not None
        worker.owner = None

    async def end(self, *, graceful: bool, grace_seconds: float, folders: list[str]) -> None:
        """End the worker, and a start that is under way. If `graceful`, exit handlers may run first.

        Those of `folders` that are empty are removed then, if init stays.
        """
        self.ending = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.worker.kill()
            await prepared.worker.gone
        await self.blanks.end()
        if (worker := self.worker) is not None and not worker.gone.done():
            self.launcher.keep_init(worker, self._spec.tenant, self._spec.grant.limits, folders)
            if graceful and worker.alive:
                worker.send(messages.Shutdown())
                await asyncio.wait({worker.gone}, timeout=grace_seconds)
            worker.kill("the session was ended")
            await worker.gone
        # The listener holds this slot. An ended session is freed at once, not when the garbage collector comes.
        self.listener = None


def _fail(replaced: "asyncio.Future[Outcome]", error: errors.IngleError) -> None:
    replaced.set_exception(error)
    replaced.exception()  # retrieved here, since the caller may have left
