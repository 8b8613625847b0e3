"""A session: one worker, one running cell at a time, one journal.

A request waits for a cell but does not own it. If the request is cancelled, times out or disconnects, the cell keeps
running and its result can be read later by cell number. However a worker ends, its end is reported, costs only this
session's variables, and is followed by a fresh worker.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from ingle import errors
from ingle.events import AnyEvent, CellInfo, CheckpointInfo, Exit, Note, Result, SessionInfo, Variables, VariableValue
from ingle.introspection import Rows
from ingle.isolation.limits.limits import is_named
from ingle.output.pages import OutputPage, Reading
from ingle.requests import Author, NewCell
from ingle.sessions.cells.cell import RunningCell
from ingle.sessions.cells.file_changes import FileTracker, Root, roots_of
from ingle.sessions.cells.hints import NO_HINTS, Hints
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.runner import CellRunner, visible
from ingle.sessions.cells.turns import CELL, Turns
from ingle.sessions.files import SessionFiles, SessionValue
from ingle.sessions.forks.failures import Failures
from ingle.sessions.forks.forking import ForkedCopy, Forking
from ingle.sessions.forks.trials import MakeFork, Trials
from ingle.sessions.info import add_usage, describe_session
from ingle.sessions.metrics import Telemetry
from ingle.sessions.persistence.autosave import AutoSave, SaveTarget
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import Checkpoints
from ingle.sessions.persistence.comparison import Comparison
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.persistence.save_schedule import SaveSchedule
from ingle.sessions.persistence.worker_copies import Rollback, SessionCopy, WorkerCopies
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.sessions.process.introspection import Introspection
from ingle.sessions.process.namespace import Namespace
from ingle.sessions.process.prepared_workers import PreparedWorker
from ingle.sessions.process.session_folders import SessionFolders
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import SlotState
from ingle.sessions.process.workspace import Workspace
from ingle.sessions.reach import Reach
from ingle.sessions.spec import SessionSpec
from ingle.sessions.tools.calls import SessionTools
from ingle.sessions.usage import Usage
from ingle.sessions.watch.folders import FolderWatches
from ingle.sessions.worker_events import WorkerEvents
from ingle.settings import Settings
from ingle.snapshots.registry import KEYS, Row
from ingle.snapshots.store import LoadableSnapshot
from ingle.support.background import Tasks
from ingle.support.idempotency import Idempotency
from ingle.tools.servers import ToolServers
from ingle.trees.store import NotKept
from ingle.trees.stores import TreeStores
from ingle.workers.launch.launcher import Launcher
from ingle.workers.siblings import Siblings
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states


class Session:
    def __init__(
        self,
        spec: SessionSpec,
        launcher: Launcher,
        workspace: Workspace,
        settings: Settings,
        telemetry: Telemetry,
        watches: FolderWatches,
        trees: TreeStores,
        tools: ToolServers,
        *,
        prepared: PreparedWorker | None = None,
        saves: SaveTarget | None = None,
        requests: Idempotency | None = None,
        free_process: Callable[[], Awaitable[None]] | None = None,
        make_room: Callable[[], None] = lambda: None,
        hints: Hints = NO_HINTS,
        make_fork: MakeFork | None = None,
    ) -> None:
        """`free_process` is awaited before a hibernated session gets a process again.

        `make_room` is called before an idle one gets its file descriptors back.
        """
        self.id = spec.session_id
        self.key = spec.key
        self.spec = spec
        self._settings = settings
        self._requests = requests or Idempotency(KEYS)
        self._tasks = Tasks()
        self.turns = Turns()
        lasting = saves is not None and saves.registry is not None
        self.journal = journal = Journal(spec.session_id, spec.folder, settings, lasting=lasting)
        self.checkpoints = Checkpoints(spec.session_id, settings.max_checkpoints, auto=spec.auto_checkpoints)
        self.calls = WorkerCalls(spec.session_id, settings.timeout_grace)
        self.kept_files = KeptFiles(trees, spec.tenant, workspace.folders, watches)
        self.autosave = None if saves is None else AutoSave(saves, journal, self.kept_files)
        self.slot = slot = ProcessSlot(
            spec, launcher, workspace, self.calls, journal, telemetry, self.autosave, prepared, free_process
        )
        self._worker = ExclusiveWorker(self.turns, slot, journal, self.autosave, self._tasks, make_room)
        folders, tracked = workspace.folders, spec.grant.tracked
        start = spec.cwd or folders.workspace
        roots = roots_of(Root(folders.place, folders.workspace, False), spec.cwd, tracked)
        self._tracker = FileTracker(watches, roots, start, trees.changes, spec.key)
        self.runner = CellRunner(spec, settings, self.turns, slot, journal, telemetry, self._tracker)
        self.usage = Usage(spec, slot, self.runner)
        self.saves = SaveSchedule(self.autosave, self.turns, slot, journal, self.checkpoints, self._tasks)
        self._namespace = Namespace(self.turns, self._worker, slot, self.calls, journal, self.saves, self._tasks)
        self._introspection = Introspection(spec.session_id, self._worker, slot, self.calls)
        self._folders = CheckpointFiles(
            self.kept_files,
            trees,
            watches,
            tracked,
            writable=spec.grant.writable if workspace.own_root else (),
            key=spec.key,
            start=start,
            autosave=self.autosave,
        )
        slot.folders = self._folders
        self._copies = WorkerCopies(
            self._worker, slot, journal, self.checkpoints, self.saves, self.kept_files, self._folders, self._tasks
        )
        self._comparison = Comparison(self._worker, self._folders, self.checkpoints, self._copies)
        self._forking = Forking(spec, slot, self.kept_files, self.checkpoints)
        self.trials = Trials(
            spec,
            self.turns,
            self._worker,
            slot,
            self.runner,
            journal,
            self.kept_files,
            self._folders,
            self._forking,
            self.saves,
            self._tasks,
            settings.trial_seconds,
            make_fork,
        )
        self.failures = Failures(spec, journal, settings.failures_memory, settings.timeout_grace)
        self.tools = SessionTools(spec, settings, tools, journal, self.runner, telemetry)
        slot.listener = WorkerEvents(
            spec,
            slot,
            self.runner,
            self.calls,
            journal,
            self._copies,
            self.checkpoints,
            self.saves,
            telemetry,
            self._tasks,
            self.tools,
            self.failures,
            hints,
        )
        self._copied: str | None = None
        """How it was copied from another session, if it was."""
        self.forked_below: Siblings | None = None
        """Processes below one init, of which the copy was one."""
        self._ended = False
        self._ended_event = asyncio.Event()
        self.created_at = time.time()
        self.last_used = time.monotonic()

    # --- beginning ---

    async def start(self) -> None:
        """Wait until the first worker is ready."""
        await self.slot.start_first()
        if self._folders.outlive_session and self.slot.worker is not None:
            await self.slot.wait_started()
            self.journal.tell(await self._folders.undo_unfinished(self.slot.worker))

    def begin_fork(self, copy: ForkedCopy) -> None:
        """Begin as a copy of another session. `slot.wait_forked` waits until that is done."""
        self._copied, self.forked_below = copy.origin.copied, copy.worker.siblings
        self.journal.history.inherit(copy.origin.session_id, copy.origin.moment.cell)
        self.slot.begin_fork(copy.worker, copy.origin, self.kept_files)

    async def begin_hibernated(self, row: Row) -> None:
        """Begin as the session that an earlier server had. The next call restores it."""
        self.created_at = row.created_at
        self.slot.begin_hibernated()
        known = [row.cells, row.save.cell if row.save else 0, *(each.cell or 0 for each in row.requests)]
        await self.journal.resume(max(known))
        if row.save is not None:
            self.slot.names.learn(row.save.names)
            self.runner.last_begun = row.save.time

    # --- cells ---

    def execute(self, new: NewCell) -> Awaitable[int]:
        """Start a cell and return its number. While another runs, raise Busy, or with `queue` wait in order.

        A repeated request with the same `key` gets the number of the cell that the first one began.
        """
        if new.key is None:
            return self._execute(new)
        asked = (new.code, new.timeout, sorted(new.envs.items()), new.queue, new.script)
        return self._requests(new.key, asked, lambda: self._execute(new))

    async def _execute(self, new: NewCell) -> int:
        if len(new.code) > self._settings.max_code:
            raise errors.InvalidRequest(
                f"the code has {len(new.code)} characters, above the limit of {self._settings.max_code}; "
                "put the data into a file"
            )
        self.last_used = time.monotonic()
        turn = await self.turns.take(CELL, self.journal.history.count + 1, queue=new.queue)
        try:
            worker = await self._worker.ready()
            if self.checkpoints.auto:
                await self._copies.checkpoint_automatically(worker)
                worker = await self._worker.ready()
            if not self._tracker.ready:
                await self._tracker.wait_ready()
                worker = await self._worker.ready()
            number = self.runner.begin(turn, worker, new)
        except BaseException:
            self.turns.release(turn)
            raise
        if self.autosave is not None:
            self.autosave.cell_begun(number)
        return number

    async def wait(self, number: int | None, seconds: float, from_event: int = 0) -> Result:
        """Return the result of a cell once it has ended or waits for input, or after so many seconds. None: the last.

        With `from_event`, return only the text from that event on.
        """
        number = self.last_cell if number is None else number
        result = await self.runner.wait(number, seconds, from_event)
        self.last_used = time.monotonic()
        return result

    async def input(self, text: str, author: Author | None = None, *, eof: bool = False) -> int:
        """Answer the reader that waits for input. Return the number of the cell to wait for now."""
        self.last_used = time.monotonic()
        if self._ended:
            raise errors.NotWaiting(self.id)
        return self.runner.input(text, author, eof=eof)

    async def interrupt(self, author: Author | None = None) -> int | None:
        """Interrupt the running cell and return its number. Without one, interrupt a request about a variable."""
        self.last_used = time.monotonic()
        number = self.runner.interrupt(author)
        if number is None:
            self.calls.interrupt()
        return number

    def note(self, text: str, author: Author | None, *, raw: bool) -> None:
        """Put a note into the timeline."""
        self.last_used = time.monotonic()
        if self.journal.timeline.exhausted:
            raise errors.TooLarge("this session's share of the disk for output is used up; raise timeline_disk")
        self.journal.append(Note, visible(text), raw, author)

    # --- between cells ---

    def use(self, label: str) -> AbstractAsyncContextManager[Worker]:
        """Hold the turn between cells for a moment. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        return self._worker.use(label)

    async def live_worker(self) -> Worker:
        """Return the worker, as soon as there is one that has its folders. Cells may run in it."""
        while True:
            await self.slot.ready()
            await self.slot.wait_started()
            assert self.slot.worker is not None
            if self.slot.worker.alive:
                return self.slot.worker
            # It was killed, and its end is not reported yet. The next one takes its place.
            await asyncio.wait({self.slot.worker.gone})

    async def variables(self) -> Variables:
        """Return each variable with its type, extent, size and preview; while a cell runs, the names before it."""
        self.last_used = time.monotonic()
        return await self._namespace.list()

    async def variable(self, name: str, limit: float, rows: Rows | None = None) -> VariableValue:
        """Return one variable in full. Runs its `__repr__` and `__str__` in the session, which has to be idle."""
        self.last_used = time.monotonic()
        return await self._namespace.describe(name, limit, rows)

    async def value(self, name: str, limit: float) -> SessionValue:
        """Return the value of a variable as a file, which the caller closes. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        path, kind = await self._namespace.export_value(name, limit)
        folder, _, file = path.rpartition("/")
        files = await self.files_below(folder or "/")
        opened = await files.open_value(file, kind)
        # It stays readable for the agent that has opened it.
        await files.remove(file)
        return opened

    async def set_value(self, name: str, kind: str, chunks: AsyncIterator[bytes], size: int, limit: float) -> None:
        """Set a variable from bytes of this kind. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        path, _ = await self._namespace.export_value("", limit)
        folder, _, file = path.rpartition("/")
        files = await self.files_below(folder or "/")
        try:
            await files.write(file, chunks, size, 0o600)
        except BaseException:
            await files.remove(file)
            raise
        await self._namespace.import_value(name, kind, path, limit)

    @property
    def introspection(self) -> Introspection:
        """Return the help for people who write code. A question to it counts as a use."""
        self.last_used = time.monotonic()
        return self._introspection

    async def clear(self) -> None:
        """Reset the namespace to the initial one, and forget the code of the cells so far. All else stays."""
        self.last_used = time.monotonic()
        await self._namespace.clear()

    async def edit_library(
        self, text: bytes, addition: str
    ) -> tuple[messages.StdlibDescribed | None, messages.StdlibLoaded | None]:
        """Return what this library holds, or would hold with this addition, and the result of loading it then."""
        return await self._namespace.edit_library(text, addition)

    async def load(
        self, summary: bytes, send: Callable[[socket.socket], None], executor: Executor, *, rerun: bool = False
    ) -> messages.Loaded:
        """Load a snapshot's variables. Cells wait until it is done."""
        return await self._namespace.load(summary, send, executor, rerun=rerun)

    async def load_files(self, saved: LoadableSnapshot) -> tuple[int | None, list[str]]:
        """Put the files of a snapshot into the own folder. Return how many there are now, and notices."""
        async with self._worker.use("load") as worker:
            try:
                restored = await self.kept_files.load(worker, saved)
            except NotKept as why:
                return None, [f"the files are not loaded: {why}"]
        files = saved.manifest.files
        return None if files is None else files.count, [] if restored is None else restored.notices

    async def copy(self) -> SessionCopy:
        """Return a live copy of the session, to be saved. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        return await self._copies.copy()

    @asynccontextmanager
    async def forked(
        self, names: list[str], *, at: int | None, reseed: bool = False, beside: SessionFolders | None = None
    ) -> AsyncIterator[list[ForkedCopy]]:
        """Provide live copies with files of their own or of another fork. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        async with AsyncExitStack() as held:
            worker, cell = await held.enter_async_context(self._worker.use("fork")), self.last_cell
            async with self._forking.copies(worker, cell, names, at, held=held, reseed=reseed, beside=beside) as copies:
                yield copies

    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Park a copy of the session as it is now. Raise Busy while a cell runs."""
        self.last_used = time.monotonic()
        return await self._copies.checkpoint(name)

    async def rollback(self, name: str | None) -> Rollback:
        """Go on from a checkpoint, which stays.

        Without a name, go back to the state before the last cell, or else to the newest checkpoint.
        """
        self.last_used = time.monotonic()
        return await self._copies.rollback(name)

    @property
    def comparison(self) -> Comparison:
        """Return what compares the session with other moments. A question to it counts as a use."""
        self.last_used = time.monotonic()
        return self._comparison

    def on_breach(self, limit: str) -> None:
        """Free memory, or kill the worker, of a session that uses more than a limit allows."""
        if not (is_named("memory", limit) and self.failures.drop_all(f"{limit}: reached")):
            self.slot.on_breach(limit)

    # --- ending ---

    async def end(self, *, keep: bool = False) -> None:
        """End the session for good: its processes, its timeline, and without `keep` its folder and its saves."""
        if self._ended:
            await self._ended_event.wait()
            return
        self._ended = True
        await self.trials.close()
        self.turns.close(errors.SessionNotFound(self.id))
        # One that comes back is not asked to exit: it needs what its exit handlers would remove.
        graceful, folders = self.running is None and not keep, [] if keep else self.folders.mostly_empty
        await self.slot.end(graceful=graceful, grace_seconds=self._settings.exit_grace, folders=folders)
        await self.checkpoints.close()
        await self.failures.close()
        self.runner.end(states.EXIT, Exit(message="the session was ended"))
        self.slot.move(SlotState.ENDED)
        await self.tools.close()
        self._tracker.close()
        self._folders.close()
        await self.journal.close_images()
        await self.saves.close(keep=keep, patience=self._settings.exit_grace)
        self._tasks.cancel()
        await self.journal.close(keep=keep)
        if not keep:
            await self.trials.leave_folders()
            await self.folders.end(self.spec.folder)
        self._ended_event.set()

    async def wait_ended(self) -> None:
        await self._ended_event.wait()

    # --- reading ---

    @property
    def state(self) -> str:
        return self.runner.state

    @property
    def running(self) -> RunningCell | None:
        return self.runner.running

    @property
    def worker(self) -> Worker | None:
        return self.slot.worker

    @property
    def launcher(self) -> Launcher:
        """The launcher of its worker."""
        return self.slot.launcher

    @property
    def folders(self) -> SessionFolders:
        return self.slot.workspace.folders

    @property
    def cwd(self) -> str:
        return self.slot.cwd

    @property
    def last_cell(self) -> int:
        return self.runner.count

    @property
    def idle_for(self) -> float:
        """Seconds since the last request, or since the last cell ended."""
        if self.running is not None:
            return 0.0
        return time.monotonic() - max(self.last_used, self.runner.last_ended)

    async def output(self, cell: int, reading: Reading) -> OutputPage:
        """Return lines of a cell's output, however long it is."""
        return await self.journal.history.output(cell, self.running, reading)

    def cells(self, first: int = 1, count: int = 100) -> AsyncIterator[CellInfo]:
        """Yield which cells ran, how they ended, when, and how long they took."""
        return self.journal.history.cells(first, count, self.running)

    async def files(self) -> SessionFiles:
        """Return the folder that the session started in, as its code sees it."""
        folder = self.spec.cwd or self.folders.workspace
        worker, fixed, changed = await self.live_worker(), self.spec.cwd is None, self.saves.files_changed
        return SessionFiles(worker, folder, fixed=fixed, reach=self._reach, changed=changed)

    async def files_below(self, folder: str) -> SessionFiles:
        """Return another folder, as the session's code sees it."""
        return SessionFiles(await self.live_worker(), folder, fixed=False, reach=self._reach)

    @property
    def _reach(self) -> Reach:
        return Reach.of(self.spec, self.folders.workspace, self.launcher.confinement)

    def follow(self, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self.journal.history.follow(first)

    def info(self, *, usage: bool = True) -> SessionInfo:
        """Describe the session. Without `usage` the kernel is not asked: no memory, CPU time and limits in force."""
        info = describe_session(
            self.spec, self.created_at, self.launcher.version, self.runner, self.slot, self.journal, self.autosave
        )
        info.node = self._settings.node or None
        info.copied, info.trial = self._copied, self.turns.trial
        if self.usage.gpu is not None and self.slot.worker is not None:
            info.gpu_memory, info.gpu_utilization = self.usage.gpu.memory, self.usage.gpu.utilization
        if usage:
            add_usage(info, self.slot, self.spec.grant.limits)
        return info
