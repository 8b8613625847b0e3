"""A session: an actor on the host that owns one worker and its one running cell.

Requests come and go. They wait on a cell and never own it: a dropped request, a cancelled one, one whose time is over
leaves the cell running, to be read by number. Every event goes to the timeline first, and whoever asks is answered
from there. A worker's end, however it came, is named, costs this session its variables only, and is followed by
a fresh worker.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

import msgspec

from ingle import errors, events
from ingle.events import AnyEvent, CellError, CellInfo, Exit, Result, SessionInfo, Variables, VariableValue
from ingle.isolation.egress.proxy import Egress
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.limits import behind as limit_behind
from ingle.output.image_store import ImageStore
from ingle.output.pages import OutputPage, Reading
from ingle.output.timeline import Timeline
from ingle.requests import NewCell, SessionLimits
from ingle.sessions.cells.cell import RunningCell
from ingle.sessions.cells.deadline import Deadlines
from ingle.sessions.cells.history import History
from ingle.sessions.cells.input_waits import Asking
from ingle.sessions.cells.notices import Notices
from ingle.sessions.cells.output import Intake
from ingle.sessions.cells.turns import Turns
from ingle.sessions.files import SessionFiles
from ingle.sessions.metrics import Record
from ingle.sessions.persistence.autosave import Keeper
from ingle.sessions.persistence.checkpoints import Checkpoints, Moment, Parked
from ingle.sessions.persistence.transfer import Keeping
from ingle.sessions.process.calls import Inquiries
from ingle.sessions.process.namespace import Preparing
from ingle.sessions.process.session_folders import Home, remove_below
from ingle.sessions.process.slot import Starting
from ingle.sessions.process.workspace import Lodging
from ingle.sessions.spec import Plan
from ingle.settings import Settings
from ingle.snapshots.registry import KEYS, Row
from ingle.support.idempotency import Idempotency
from ingle.workers.launch.launcher import Launcher
from ingle.workers.siblings import Siblings
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states

MAX_PATH = 4096
MAX_NOTICES = 10
"""Of those that a worker sends with an answer."""

MAX_NAMES = 100_000
MAX_NAME = 1000
"""Names of variables that are known here, and the characters of one."""

SHORT = 0.05
"""A cell that took no longer has met no limit without an error of its own: it is not looked for one."""

MAX_REFUSALS = 10
"""Hosts not granted that are named in a cell's notices."""


class Session:
    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        settings: Settings,
        record: Record | None = None,
        bounding: LimitApplier | None = None,
        egress: Egress | None = None,
    ) -> None:
        self.id = plan.session_id
        self.key = plan.key or plan.session_id
        self.plan = plan
        self._record = record or Record()
        self.requests = Idempotency(KEYS)
        self.launcher = launcher
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None
        self._cell: RunningCell | None = None
        self.turns = Turns(self)
        self._deadlines = Deadlines(self._loop, settings.timeout_grace, settings.exit_grace)
        self._tasks: set[asyncio.Task[None]] = set()
        self._crowded = False
        self._notices = Notices()
        self._names: set[str] = set()
        self._ended = False
        self._ended_event = asyncio.Event()
        self.state: str = states.STARTING
        self.created_at = time.time()
        self.last_used = time.monotonic()
        self.last_executed: float | None = None
        self.home = plan.home or Home(plan.folder)
        self.cwd = plan.cwd or self.home.workspace
        self._lodging = Lodging(self, self.home, launcher, bounding, egress, _tell_refused)
        self.checkpoints = Checkpoints(self, settings.max_checkpoints, auto=plan.auto_checkpoints)
        self.timeline = Timeline(
            f"{plan.folder}/timeline.ndjson",
            settings.timeline_memory,
            settings.timeline_disk,
            self._on_room,
        )
        self._figures = ImageStore(f"{plan.folder}/figures", settings.figures_disk)
        self._intake = Intake(self, self.timeline, self._figures)
        self._asking = Asking(self._move, self._append)
        self._history = History(self, self.timeline, settings.result_chars)
        self._inquiries = Inquiries(self, settings.timeout_grace)
        self._preparing = Preparing(settings.timeout_grace)
        self._keeping = Keeping()
        self.keeper: Keeper | None = None
        self.starting = Starting(
            self,
            self._lodging,
            self._preparing,
            self._keeping,
            self._history,
            self._notices,
            self._record,
            self._move,
            self._append,
        )

    def become(self, plan: Plan) -> None:
        """One that was made ahead, and is somebody's from now on. Its folders are those that it has."""
        self.plan = plan
        self.id = plan.session_id
        self.key = plan.key
        self.created_at = time.time()
        self.last_used = time.monotonic()
        self.checkpoints.auto = plan.auto_checkpoints

    def come_back(self, row: Row) -> None:
        """Be the session that an earlier server had. Its process is gone; the next call brings it back."""
        self.state = states.HIBERNATED
        self.created_at = row.created_at
        self.starting.comes_back = True
        known = [row.cells, row.save.cell if row.save else 0, *(each.cell or 0 for each in row.requests)]
        self._history.inherit("", max(known))
        if row.save is not None:
            self._names.update(row.save.names)
            self.last_executed = row.save.time

    # --- its worker ---

    async def start(self) -> None:
        """Until the first worker is ready."""
        await self.starting.first()

    async def ensure_started(self) -> None:
        await self.starting.ensure()

    async def live_worker(self) -> Worker:
        """The worker, as soon as there is one that has its folders."""
        await self.ensure_started()
        await self.starting.begun()
        assert self._worker is not None
        return self._worker

    def take(self, worker: Worker) -> None:
        """This is its worker from now on. It need not be there yet, or any more. What becomes of the one before is none
        of its business."""
        if self._worker is not None:
            self._worker.owner = None
        self._worker = worker
        self._crowded = False
        self._asking.reset()
        self.starting.expect()
        worker.owner = self
        if worker.gone.done():
            self.on_gone(worker.gone.result())

    def tell(self, notice: str) -> None:
        """To the next who runs a cell, and to those who watch."""
        if self._notices.tell(notice):
            self._append(events.Notice, notice)

    def on_refused(self, text: str) -> None:
        """Something in it asked for a host that is not granted."""
        self._record.note("egress_refused", self.key, reason=text)
        if self._cell is not None and len(self._cell.notices) < MAX_REFUSALS and text not in self._cell.notices:
            self._cell.notices.append(text)

    def on_breach(self, limit: str) -> None:
        """The watchdog saw more than is allowed."""
        if self._worker is not None:
            self._worker.kill(f"was killed: {limit}")

    # --- the verbs ---

    def execute(self, new: NewCell) -> Coroutine[Any, Any, int]:
        """Start a cell and return its number. While another cell runs, raise Busy, or with `queue` wait for the turn.

        A repeated request with the same `key` gets the number of the cell that the first one began.
        """
        if new.key is None:
            return self._execute(new)
        # A store holds the digest of this tuple: its shape must not change.
        asked = (new.code, new.timeout, sorted(new.envs.items()), new.queue)
        return self.requests(new.key, asked, lambda: self._execute(new))

    async def _execute(self, new: NewCell) -> int:
        code, timeout, queue = new.code, new.timeout, new.queue
        if len(code) > self._settings.max_code:
            raise errors.InvalidRequest(
                f"the code has {len(code)} characters, above the limit of {self._settings.max_code}; "
                "put the data into a file"
            )
        self.last_used = time.monotonic()
        worker = self._worker
        turns = self.turns
        quiet = self.state == states.IDLE and not (
            turns.queue
            or turns.granted
            or self._inquiries.asked
            or self._preparing.asked
            or self._keeping.asked
            or turns.held
            or (self.keeper is not None and (self.keeper.copying or self.keeper.due))
        )
        if worker is None or worker.signalled or not quiet:
            await self.turns.wait(queue)
            worker = self._worker
            assert worker is not None
        if self.checkpoints.auto:
            worker = await self._park_before_cell(worker, queue)
        number = self.last_cell + 1
        cell = RunningCell(number, timeout, self._notices.take())
        self._history.begin()
        self._cell = cell
        self.last_executed = time.time()
        self._move(states.RUNNING, code if code.isascii() else _visible(code))
        worker.execute(number, code, new.envs, crowded=self._crowded)
        self._record.cell_begun(self.key, number)
        if self._record.audit is not None:
            self._record.note("cell", self.key, cell=number, code=code, isolation=self.plan.grant.isolation)
        if self.keeper is not None:
            self.keeper.begun(number)
        if self._intake.undecided[True]:
            self._intake.flush(cell, background=True)
        if timeout is not None:
            self._deadlines.set(cell, worker)
        return number

    async def _park_before_cell(self, worker: Worker, queue: bool) -> Worker:
        """An automatic checkpoint. The worker that the cell is for: its own may have ended meanwhile."""
        async with self.turns.keep():
            why_not = await self.checkpoints.make_auto(worker)
        if why_not is not None:
            self._notices.tell(why_not)
        while self._worker is None or self.state != states.IDLE or self._under_way(self._worker):
            self.turns.next()
            await self.turns.wait(queue)
        return self._worker

    def own_turn(self) -> contextlib.AbstractAsyncContextManager[Worker]:
        """The worker between cells, for a moment. Busy while one runs."""
        self.last_used = time.monotonic()
        return self.turns.own()

    def before_turn(self, worker: Worker) -> list[asyncio.Future[Any]] | None:
        under_way = self._under_way(worker)
        if not under_way and self.keeper is not None and self.keeper.due:
            self.keeper.copy(worker, self.last_cell)
            return []
        return under_way or None

    @property
    def moment(self) -> Moment:
        return Moment(self.last_cell, frozenset(self._names), self.cwd, self._lodging.tmp)

    async def go_on_with(self, parked: Parked, text: str) -> None:
        await self.starting.go_on_with(parked, text)

    def drop_tmp(self, tmp: str) -> None:
        """Of a worker that is gone, unless its state may come back, or somebody has it from him."""
        if tmp != self._lodging.tmp and not self.checkpoints.uses(tmp) and not self.home.shared:
            self._keep(asyncio.to_thread(remove_below, self.home.folder, tmp))

    def _under_way(self, worker: Worker) -> list[asyncio.Future[Any]]:
        """What the next cell waits for: a signal that was meant for an earlier one must have landed, and what is being
        told of a variable has its own limit."""
        under_way: list[asyncio.Future[Any] | None] = [
            self._inquiries.asked,
            self._preparing.asked,
            self._keeping.asked,
            self.turns.held,
            self.keeper.copying if self.keeper is not None else None,
        ]
        return [*worker.signalled.values(), *(each for each in under_way if each is not None)]

    # --- resting ---

    def changed(self) -> None:
        """There is something to be saved."""
        if self.keeper is not None:
            self.keeper.changed(self._when_quiet)

    def _when_quiet(self) -> None:
        """A moment after a cell: what it left is saved, if no other has begun."""
        worker = self._worker
        if self.keeper is None or worker is None or self.state != states.IDLE or self._ended:
            return
        if not self._under_way(worker):
            self.keeper.copy(worker, self.last_cell)

    async def hibernate(self) -> None:
        """Save it and free its process. Where it is kept for good reason, the listing says so from now on."""
        keeper, worker = self.keeper, self._worker
        if keeper is None or keeper.kept or worker is None or not self._is_quiet(worker):
            return
        if self.checkpoints.any:
            keeper.kept = "it has checkpoints"
        elif not await keeper.save(worker, self.last_cell):
            keeper.kept = keeper.trouble
        else:
            keeper.kept = keeper.irreplaceable
        if keeper.kept or worker is not self._worker or not self._is_quiet(worker) or not keeper.current:
            return
        # Without its exit handlers: what they would tidy away, the session will look for when it is back.
        worker.owner = self._worker = None
        worker.kill("was freed")
        self.starting.comes_back = keeper.has_something
        self._notices.of_start = []
        self._move(states.HIBERNATED)

    def _is_quiet(self, worker: Worker) -> bool:
        waited_for = self.turns.queue or self.turns.granted or self._asking.background or self._under_way(worker)
        return self.state == states.IDLE and not waited_for and not self._ended

    async def keep_for_later(self) -> None:
        """Save what is not saved yet, if nothing goes on."""
        if self.keeper is not None:
            await self.keeper.settle()
        if self.keeper is not None and self._worker is not None and self._is_quiet(self._worker):
            await self.keeper.save(self._worker, self.last_cell)

    async def wait(self, number: int | None, seconds: float, from_event: int = 0) -> Result:
        """Return the result of a cell once it has ended or waits for input, or after `seconds`. Default: the last cell.

        With `from_event`, the result holds only the text from that event on.
        """
        if number is None:
            number = self.last_cell
        cell = self._cell
        if cell is not None and cell.number == number:
            await cell.wait_settled(seconds)
            self.last_used = time.monotonic()
            if cell.final is not None and not (from_event or cell.kept_text):
                return msgspec.structs.replace(cell.final)
        self.last_used = time.monotonic()
        return await self._history.result(number, self._cell, from_event)

    async def input(self, text: str, *, eof: bool = False) -> int:
        """Answer whoever waits for input; the cell to wait for now."""
        cell, worker = self._cell, self._worker
        self.last_used = time.monotonic()
        if self._ended or worker is None or not self._asking.can_answer(cell):
            raise errors.NotWaiting(self.id)
        if not text.endswith("\n") and not eof:
            text += "\n"
        # As a terminal does it: whoever reads, lines end with a newline alone.
        data = _visible(text.replace("\r\n", "\n")).encode()
        answered = self._asking.answer(cell, worker, data, eof=eof)
        return cell.number if cell is not None and answered else self.last_cell

    async def interrupt(self) -> int | None:
        """Interrupt the running cell, and tell which; with none running nothing happens."""
        self.last_used = time.monotonic()
        cell = self._cell
        if cell is None or self._worker is None:
            if self._worker is not None:
                self._inquiries.interrupt(self._worker)
            return None
        if cell.status == states.WAITING:
            cell.interrupted_wait = cell.waits_shown
        self._deadlines.interrupt(cell, self._worker)
        return cell.number

    async def clear(self) -> None:
        """Reset the namespace to the initial one, and forget the code of the cells so far; all else stays."""
        self.last_used = time.monotonic()
        await self.turns.wait(False)
        assert self._worker is not None
        cleared = await self._preparing.clear(self._worker)
        self._history.forget()
        self._names.clear()
        if cleared is not None:
            self._learn(cleared.names)
            for notice in cleared.notices[:MAX_NOTICES]:
                self._notices.tell(notice)
        self.changed()
        self._append(events.Notice, "the session was cleared: its variables, functions and imports are gone")

    async def edit_library(
        self, text: bytes, addition: str
    ) -> tuple[messages.StdlibDescribed | None, messages.StdlibLoaded | None]:
        """What this library holds, or would hold with this added, and what became of loading it here then."""
        await self.turns.wait(False)
        assert self._worker is not None
        return await self._preparing.edit(self._worker, text, addition)

    async def copy(self) -> tuple[Worker, list[str], float]:
        """A live copy of the worker, what it lacks, and how long the session was held up. Needs an idle session."""
        async with self.own_turn() as worker:
            began = time.monotonic()
            copies = await worker.fork()
        paused = time.monotonic() - began
        (copy,) = await copies.up()
        return copy, copies.notices, paused

    async def load(
        self, summary: bytes, send: Callable[[socket.socket], None], executor: Executor, *, rerun: bool = False
    ) -> messages.Loaded:
        """Take a snapshot's variables. Cells wait until it is done."""
        await self.turns.wait(False)
        assert self._worker is not None
        loaded = await self._keeping.load(self._worker, summary, send, executor, rerun=rerun)
        self._learn(loaded.names)
        return loaded

    async def end(self, *, keep: bool = False) -> None:
        """End the session for good: its processes, its timeline, and unless it is to come back its folder and saves."""
        if self._ended:
            await self._ended_event.wait()
            return
        self._ended = True
        self.turns.end(errors.SessionNotFound(self.id))
        await self.starting.cancel()
        worker = self._worker
        if worker is not None and not worker.gone.done():
            # One that comes back is not told to end: what it would tidy away, it will look for.
            if self._cell is None and worker.alive and not keep:
                worker.send(messages.Shutdown())
                await asyncio.wait({worker.gone}, timeout=self._settings.exit_grace)
            worker.kill("the session was ended")
            await worker.gone
        await self.checkpoints.close()
        if self._cell is not None:
            self._finish_cell(self._cell, states.EXIT, Exit(message="the session was ended"))
        if self.state != states.DEAD:
            self._move(states.DEAD)
        await self._figures.close()
        if self.keeper is not None:
            await self.keeper.close(keep=keep, patience=self._settings.exit_grace)
        for task in list(self._tasks):
            task.cancel()
        await self.timeline.close()
        if not keep:
            await self.home.end(self.plan.folder)
        self._ended_event.set()

    async def wait_ended(self) -> None:
        """Until it is ended for good."""
        await self._ended_event.wait()

    # --- reading ---

    @property
    def running(self) -> RunningCell | None:
        return self._cell

    @property
    def worker(self) -> Worker | None:
        return self._worker

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def names(self) -> set[str]:
        """Of its variables, as far as the host knows."""
        return self._names

    @names.setter
    def names(self, names: set[str]) -> None:
        self._names = names

    @property
    def last_cell(self) -> int:
        return self._history.count

    @property
    def idle_for(self) -> float:
        return 0.0 if self._cell is not None else time.monotonic() - self.last_used

    async def output(self, cell: int, reading: Reading) -> OutputPage:
        """Lines of a cell's output, however long it is."""
        return await self._history.output(cell, self._cell, reading)

    async def cells(self, first: int = 1, count: int = 100) -> list[CellInfo]:
        """What ran, how it ended, when and how long."""
        return await self._history.cells(first, count, self._cell)

    async def files(self) -> SessionFiles:
        """The folder it started in, as its code sees it."""
        folder = self.plan.cwd or self.home.workspace
        return SessionFiles(await self.live_worker(), folder, fixed=self.plan.cwd is None)

    async def files_below(self, folder: str) -> SessionFiles:
        """Another folder, as its code sees it."""
        return SessionFiles(await self.live_worker(), folder, fixed=False)

    def follow(self, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self._history.follow(first)

    def info(self) -> SessionInfo:
        names = sorted(name for name in self._names if not name.startswith("_"))
        notices = self._notices.all
        if self._cell is not None:
            notices.append("a cell is running; variables are those of the last finished cell")
        saved = self.keeper.last if self.keeper is not None else None
        if self.keeper is not None:
            notices += self.keeper.notices(hibernated=self.state == states.HIBERNATED)
        memory, cpu_seconds = self._worker.usage() if self._worker is not None else (None, None)
        return SessionInfo(
            session_id=self.id,
            state=self.state,
            created_at=self.created_at,
            last_executed=self.last_executed,
            execution_count=self.last_cell,
            variable_count=len(names),
            variables=names,
            python=self.launcher.version or (saved.python if saved is not None else ""),
            cwd=self.cwd,
            isolation=self.plan.grant.isolation,
            network=self.plan.grant.network,
            memory=memory,
            cpu_seconds=cpu_seconds,
            idle_timeout=self.plan.idle_timeout,
            durable=self.keeper is not None and self.keeper.durable,
            notices=notices,
            saved_at=saved.time if saved is not None else None,
            saved_cell=saved.cell if saved is not None else None,
            limits=self.plan.grant.limits,
        )

    async def variables(self) -> Variables:
        """Each variable with its type, extent, size and preview; while a cell runs, the names as they were before."""
        self.last_used = time.monotonic()
        if self._cell is None:
            await self.ensure_started()
        running = self._cell is not None
        why_not = "a cell is running; the variables are those of the last finished cell" if running else None
        return await self._inquiries.list(self._worker, self._names, why_not)

    async def variable(self, name: str, limit: float) -> VariableValue:
        """One variable in full. Runs its `__repr__` and `__str__` in the session, so it needs an idle one."""
        self.last_used = time.monotonic()
        await self.turns.wait(False)
        assert self._worker is not None
        return await self._inquiries.tell(self._worker, name, limit, lambda: self._names)

    # --- what the worker says ---

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        self._record.output_bytes += len(data)
        self._intake.output(self._cell, stream, data, background or self._cell is None)
        self._pause_if_behind()

    def _pause_if_behind(self) -> None:
        if self._worker is not None and self._intake.behind:
            self._worker.pause()

    def _on_room(self) -> None:
        if self._worker is not None and not self._intake.behind:
            self._worker.resume()

    async def _keep_figure(self, keeping: Coroutine[None, None, None]) -> None:
        await keeping
        self._on_room()

    async def figure(self, file_id: str) -> bytes:
        """An image in full size, by the id that a display's metadata gives."""
        data = await self._figures.read(file_id)
        if data is None:
            raise errors.FigureNotFound(self.id, file_id)
        return data

    def on_message(self, message: Any) -> None:
        cell = self._cell
        if isinstance(message, messages.Done):
            if cell is not None and message.cell == cell.number:
                self._on_done(cell, message)
        elif isinstance(message, messages.Result):
            if cell is not None:
                self._intake.result(cell, message)
                self._pause_if_behind()
        elif isinstance(message, messages.Display):
            self._intake.display(cell, message)
            self._pause_if_behind()
        elif isinstance(message, messages.KeepImage):
            self._keep(self._keep_figure(self._figures.store(message.data)))
            self._pause_if_behind()
        elif isinstance(message, messages.InputWait):
            self._asking.on_wait(cell, self._worker, message)
            self._pause_if_behind()
        elif isinstance(message, messages.Listed | messages.Asked):
            self._inquiries.on_answer(message)
        elif isinstance(
            message,
            messages.StdlibLoaded | messages.StdlibCompiled | messages.StdlibDescribed | messages.Cleared,
        ):
            self._preparing.on_message(message)
        elif isinstance(message, messages.ChannelWanted | messages.Loaded):
            self._keeping.on_message(message)
        elif isinstance(message, messages.InputTaken):
            self._asking.on_taken(cell, self._worker, message.wait)
        elif isinstance(message, messages.Exiting):
            if cell is not None and message.cell == cell.number:
                text = message.message or f"exit({message.code})"
                cell.exiting = Exit(message.code, None, text)
                cell.execution_time = message.execution_time
                if self._worker is not None:
                    self._deadlines.exits(cell, self._worker)
        elif isinstance(message, messages.Started):
            self.cwd = message.cwd[:MAX_PATH]
            self._notices.of_start = [each[:1000] for each in message.notices[:MAX_NOTICES]]
            self.starting.on_begun()

    def _on_done(self, cell: RunningCell, done: messages.Done) -> None:
        worker = self._worker
        assert worker is not None
        self._crowded = done.crowded
        if done.names_removed or done.names_added:
            self._names.difference_update(done.names_removed)
            self._learn(done.names_added)
        if done.value is not None:
            cell.value = done.value
            timeline = self.timeline
            timeline.append(events.ResultShown(timeline.next_seq, time.time(), self.id, cell.number, done.value))
        cell.needs_more_input = done.needs_more_input
        cell.execution_time = done.execution_time
        cell.notices += done.notices
        dropped = done.dropped_input + self._asking.on_done(cell, worker)
        if dropped:
            cell.notices.append(f"{dropped} bytes of input were not read by this cell and were dropped")
        if done.error is not None:
            cell.error = CellError(done.error.name, done.error.value, done.error.traceback)
        status = done.status if done.status in states.FINAL_STATUSES else states.ERROR
        if status == states.ERROR or done.execution_time > SHORT:
            cell.notices += self._limits_met(cell, worker)
        self._finish_cell(cell, status, None)
        self._move(states.IDLE)
        if self.keeper is not None:
            self.keeper.changed(self._when_quiet)
        if self.turns.queue:
            self.turns.next()

    def _learn(self, names: list[str]) -> None:
        """Names of its variables, of which no more is kept than an honest session has."""
        room = max(0, MAX_NAMES - len(self._names))
        self._names.update([name for name in names[:room] if len(name) <= MAX_NAME])

    def _limits_met(self, cell: RunningCell, worker: Worker) -> list[str]:
        """What a cell that lived on was refused, or lost, by its limits."""
        limits = self.plan.grant.limits
        if limits == SessionLimits():
            return []
        met = {
            f"{text}: what it asked for beyond that was refused, or the process that asked was killed"
            for text in LimitApplier.passed(worker.group, limits, ended=False)
        }
        error = cell.error
        if not met and error is not None and (text := limit_behind(error.name, error.value, limits)) is not None:
            met.add(f"{text}: reached by this cell")
        return sorted(met)

    def _finish_cell(self, cell: RunningCell, status: str, exit: Exit | None) -> None:
        """The cell is over: its `done` is its last event, and all who wait are answered."""
        self._deadlines.cancel()
        if self._intake.undecided[False]:
            self._intake.flush(cell, background=False)
        cell.status = status
        cell.exit = exit
        if cell.timed_out and status == states.OK:
            # It finished in the very moment its time was over.
            cell.timed_out = False
        cell.prompt, cell.prompt_secret = None, False
        if cell.execution_time is None:
            cell.execution_time = cell.age
        if cell.dropped_text:
            cell.notices.append(f"{cell.dropped_text} characters of output were not kept: {self._disk_trouble}")
        if cell.dropped_displays:
            cell.notices.append(f"{cell.dropped_displays} displays were kept as short text only: {self._disk_trouble}")
        if cell.error is not None:
            error = cell.error
            self._append(events.ErrorRaised, error.name, error.value, error.traceback)
        self._history.end(cell.number)
        timeline = self.timeline
        cell.final = result = cell.result(self.id)
        result.next_event = timeline.next_seq + 1
        characters, lines = cell.counted()
        timeline.append(
            events.Done(
                timeline.next_seq, time.time(), self.id, cell.number, result, characters, lines, cell.displays.events
            ),
            0 if cell.left_nothing else None,
        )
        self._cell = None
        self.last_used = time.monotonic()
        self._record.cell_ended(self.key, cell.number, status, cell.execution_time)
        cell.wake()

    @property
    def _disk_trouble(self) -> str:
        return self.timeline.broken or "this session's share of the disk for output is used up"

    # --- standard input ---

    def show_next_wait(self) -> None:
        self._asking.show_next(self._cell, self._worker)

    def on_raw_read(self, cell: RunningCell, blocked: bool) -> None:
        """The kernel says whether some process of the running cell is blocked reading standard input."""
        worker = self._worker
        if cell is self._cell and worker is not None and not worker.gone.done():
            self._asking.on_raw_read(cell, worker, blocked)

    # --- interrupting and ending ---

    def on_gone(self, exit: Exit) -> None:
        """The worker has ended, and everything below it; all its output has been seen."""
        if not self.id:
            # Nobody's yet, and now nobody will have it.
            self._worker = None
            self.starting.on_gone(exit)
            return
        cell = self._cell
        if self._worker is not None and self._worker.group is not None:
            group = self._worker.group
            met = LimitApplier.passed(group, self.plan.grant.limits, ended=True)
            if met and not self._ended and exit.code is None:
                exit = Exit(exit.code, exit.signal, f"was killed: {met[0]}")
        self._record.worker_ended(self.key, exit, self._ended)
        self.starting.on_gone(exit)
        lost = bool(self._names) or self.last_cell > 0
        self._names.clear()
        self._asking.reset()
        self._inquiries.on_gone()
        self._keeping.on_gone()
        self._preparing.on_gone()
        self._worker = None
        if self.keeper is not None and self.keeper.durable and self.state != states.STARTING:
            # Whoever exits wants to begin anew; everything else that ends a worker was not asked for.
            exits = cell is not None and cell.exiting is not None
            self.starting.comes_back = not exits and self.keeper.has_something
            if exits:
                self.keeper.forget()
        if self.state == states.STARTING and cell is None and not self._ended:
            return  # who starts it sees to it
        if cell is not None:
            self._finish_with_worker(cell, exit)
        if self._ended:
            return
        if lost and self.starting.comes_back:
            self._notices.tell(f"the worker {exit.message}")
        elif lost:
            after = f"cell {cell.number}" if cell is not None else "the last cell"
            self._notices.tell(
                f"this is a fresh worker: the one before {exit.message} after {after}, and its variables, "
                "functions and imports are gone"
            )
        self._move(states.STARTING)
        tmp, self._lodging.tmp = self._lodging.tmp, ""
        if not self.starting.comes_back:
            self.drop_tmp(tmp)
        self.starting.begin()
        self._keep(self._go_on())

    def _finish_with_worker(self, cell: RunningCell, exit: Exit) -> None:
        if cell.exiting is not None:
            self._finish_cell(cell, states.EXIT, cell.exiting)
            return
        if self._ended:
            self._finish_cell(cell, states.EXIT, exit)
            return
        # They are gone with the whole tree, or will be in a moment.
        way_back = self.checkpoints.way_back if exit.signal or exit.code is not None else ""
        cell.notices.append(
            f"the worker {exit.message}; the session comes back as it was when it was last saved"
            if self.starting.comes_back
            else f"the worker {exit.message}; the session's variables, functions and imports are lost, "
            f"and a fresh worker takes its place{way_back}"
        )
        status = states.INTERRUPTED if cell.timed_out else states.EXIT
        self._finish_cell(cell, status, exit)

    async def _go_on(self) -> None:
        """After a replacement: the next in the queue, if the new worker came up."""
        try:
            await self.ensure_started()
        except errors.IngleError:
            # Told again, as an error, to the next who asks.
            pass
        self.turns.next()

    def _keep(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- events ---

    def _append(self, kind: Callable[..., AnyEvent], *content: Any) -> None:
        """The next event of the timeline."""
        cell, timeline = self._cell, self.timeline
        timeline.append(kind(timeline.next_seq, time.time(), self.id, cell.number if cell else None, *content))

    def _move(self, state: str, code: str | None = None) -> None:
        self.state = states.move(self.state, state)
        cell, timeline = self._cell, self.timeline
        timeline.append(
            events.StateChanged(timeline.next_seq, time.time(), self.id, cell.number if cell else None, state, code),
            len(code) if code else 0,
        )


def _tell_refused(siblings: Siblings, text: str) -> None:
    for member in siblings.members:
        if isinstance(member.owner, Session):
            member.owner.on_refused(text)


def _visible(code: str) -> str:
    """Source that can be shown and stored: lone surrogates as escapes."""
    return code.encode("utf-8", "backslashreplace").decode()
