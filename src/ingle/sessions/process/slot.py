"""How a session comes by its worker: a fresh one, one with what was saved, or a copy of another.

There is one start at a time. Whoever needs the worker waits for it; whoever goes away leaves it running. A worker that
ends while it starts is followed by another one, a few times; then the session is dead until the next call.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ingle import errors, events
from ingle.events import Exit
from ingle.sessions.cells.history import History
from ingle.sessions.cells.notices import Notices
from ingle.sessions.metrics import Record
from ingle.sessions.persistence.autosave import Keeper
from ingle.sessions.persistence.checkpoints import Parked
from ingle.sessions.persistence.transfer import Keeping
from ingle.sessions.process.namespace import Preparing
from ingle.sessions.process.session_folders import Home
from ingle.sessions.process.workspace import Lodging
from ingle.sessions.spec import Origin, Plan
from ingle.snapshots.user_library import Library
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker
from ingle_worker.wire import states

TRIES = 4
"""A prepared worker may have died unseen, and its successor with a zygote that is going."""

RETURN_TRIES = 4
"""More for a session that comes back: each of its two saves may end the worker twice."""


class Owner(Protocol):
    """The session that wants a worker."""

    @property
    def id(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def home(self) -> Home: ...

    @property
    def launcher(self) -> Launcher: ...

    @property
    def keeper(self) -> Keeper | None: ...

    @property
    def state(self) -> str: ...

    @property
    def worker(self) -> Worker | None: ...

    @property
    def ended(self) -> bool: ...

    names: set[str]
    cwd: str

    def take(self, worker: Worker) -> None:
        """This is its worker from now on."""
        ...

    def changed(self) -> None:
        """There is something to be saved."""
        ...

    def drop_tmp(self, tmp: str) -> None:
        """The temporary files of a worker that is gone, unless they may still be wanted."""
        ...


class Starting:
    def __init__(
        self,
        owner: Owner,
        lodging: Lodging,
        preparing: Preparing,
        keeping: Keeping,
        history: History,
        notices: Notices,
        record: Record,
        move: Callable[[str], None],
        append: Callable[..., None],
    ) -> None:
        self._owner = owner
        self._lodging = lodging
        self._preparing = preparing
        self._keeping = keeping
        self._history = history
        self._notices = notices
        self._record = record
        self._move = move
        self._append: Callable[..., Any] = append
        self._loop = asyncio.get_running_loop()
        self._prepared: Plan | None = None
        """It was made ahead, after this plan, and waits for a name."""
        self._spoilt = False
        """The user's library ended the process that loaded it."""
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        """The worker has said that it is this session's."""
        self._trusting = True
        self.comes_back = False
        """The next worker begins with what was saved, not with nothing."""
        self.make_room: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Asked before a session whose process was freed gets one again."""

    # --- waiting for it ---

    async def first(self) -> None:
        """Until the first worker is ready."""
        if self._is_ready():
            return
        self.begin()
        assert self._task is not None
        await self._task
        if self._owner.state == states.STARTING:
            await self.ensure()

    async def ensure(self) -> None:
        """Wait for the worker that is being started; try again if the last try failed."""
        owner = self._owner
        while True:
            if owner.ended:
                raise errors.SessionNotFound(owner.id)
            if owner.state == states.HIBERNATED and self.make_room is not None:
                await self.make_room()
            if owner.state in (states.DEAD, states.HIBERNATED) and not owner.ended:
                self._move(states.STARTING)
                self.begin()
            if self._task is None or self._task.done():
                if owner.state != states.STARTING:
                    return
                self.begin()
            await self.wait()
            if owner.state != states.STARTING:
                return

    async def wait(self) -> None:
        """Until what was begun is over, one way or the other."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def begun(self) -> None:
        """Until the worker is this session's by its own word. A cell need not wait for that, since it comes after it on
        the same wire; whoever goes to the session's folders by another way has to."""
        await asyncio.shield(self._begun)

    async def cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    # --- a worker that was made ready ahead ---

    async def ahead(self, worker: Worker) -> None:
        """Have a worker of the pool be this session's, and ready, before anybody has asked for the session."""
        self._adopt(worker)
        await self._make_ready(worker, None)
        await self._begun
        self._prepared = self._owner.plan

    def _is_ready(self) -> bool:
        """Whether nothing is left to be done: what is wanted now is what was prepared."""
        owner, prepared = self._owner, self._prepared
        self._prepared = None
        plan, worker = owner.plan, owner.worker
        if prepared is None or worker is None or not worker.alive or not plan.is_like(prepared):
            return False
        owner.launcher.accept(worker.laid)
        self._move(states.IDLE)
        self._record.worker_started(owner.key, worker.pid, 0.0)
        return True

    # --- a fresh worker ---

    def begin(self) -> None:
        self._task = self._loop.create_task(self._start())

    async def _start(self) -> None:
        owner = self._owner
        began = time.monotonic()
        try:
            keeper = owner.keeper if self.comes_back else None
            tries = TRIES + (self._library is not None) + (RETURN_TRIES if keeper is not None else 0)
            for attempt in range(tries):
                worker = await owner.launcher.take(
                    self._adopt, owner.plan.grant.network, owner.home.user, owner.home.name
                )
                try:
                    await self._make_ready(worker, keeper)
                    break
                except errors.IngleError as error:
                    lives = not worker.gone.done()
                    if lives:
                        # It was not its end that went wrong, so the next would fare no better; and nobody will use it.
                        worker.kill("the session could not be started")
                        await worker.gone
                    if lives or attempt == tries - 1 or not isinstance(error, errors.StartFailed):
                        raise
            self._move(states.IDLE)
            pid = owner.worker.pid if owner.worker is not None else None
            self._record.worker_started(owner.key, pid, time.monotonic() - began)
        except errors.IngleError:
            self._move(states.DEAD)
            raise

    def _adopt(self, worker: Worker) -> None:
        """Make a prepared worker this session's. It need not be there yet."""
        if self._owner.worker is worker:
            # It lives here already; only what it was told ahead is not what is wanted.
            self.expect()
            self._lodging.tell(worker)
        else:
            self._owner.take(worker)
            self._lodging.move_in(worker)

    @property
    def _library(self) -> Library | None:
        return None if self._spoilt else self._owner.plan.library

    async def _make_ready(self, worker: Worker, keeper: Keeper | None) -> None:
        await self._lodging.bound(worker)
        await self._lodging.open_door(worker)
        if self._library is not None or keeper is not None:
            await self._begun
            if self._library is not None:
                await self._load_library(worker, self._library)
            if keeper is not None:
                await self._restore(worker, keeper)
        elif not (worker.birth.pooled and self._trusting and self._owner.plan.cwd is None):
            # Of a prepared one nobody waits for a word: nothing but a full disk can go wrong, and the first cell may
            # follow at once.
            await self._begun
        if self._owner.worker is not worker:
            raise errors.StartFailed("the worker ended as soon as it had started; try again")

    async def _load_library(self, worker: Worker, library: Library) -> None:
        """The user's library, as much of it as can be had: it never keeps a session from starting."""
        problem = library.problem
        if not problem:
            # What was saved holds what is left of it; then it is there for clearing only.
            keeper = self._owner.keeper
            comes_back = self.comes_back and keeper is not None and keeper.has_something
            loaded = await self._preparing.load(worker, library, run=not comes_back)
            if loaded is None:
                self._spoilt = True
                self._note(f"the user's library is not loaded: it ended the process, which {_end_of(worker)}")
                raise errors.StartFailed("the user's library ended the worker")
            self._owner.names.update(loaded.names)
            problem = loaded.problem
        if problem:
            self._note(f"the user's library was loaded only in part: {problem}; what it defines before that is there")

    async def _restore(self, worker: Worker, keeper: Keeper) -> None:
        """What was saved, into a fresh worker."""
        ran = not keeper.has_something  # the library, see above
        names = await keeper.restore(functools.partial(self._keeping.load, worker))
        self.comes_back = False
        if names is not None:
            self._owner.names = set(names)
        elif self._library is not None and not ran:
            await self._load_library(worker, self._library)

    def _note(self, notice: str) -> None:
        """For the listing as long as the session lives, and for the next cell."""
        self._notices.last(notice)
        self._notices.tell(notice)

    # --- a copy ---

    def begin_as(self, worker: Worker, origin: Origin) -> None:
        """Begin as a copy of another session's worker, which is this session's from now on."""
        self._owner.take(worker)
        self._task = self._loop.create_task(self._start_as(worker, origin))

    async def _start_as(self, worker: Worker, origin: Origin) -> None:
        self._history.inherit(origin.session_id, origin.moment.cell)
        self._owner.names = set(origin.moment.names)
        self._lodging.move_on(worker, reseed=origin.reseed)
        # That of its outputs is none of the worker's, which may see that of its original only.
        await asyncio.to_thread(self._owner.plan.folder.mkdir, 0o700, exist_ok=True)
        await self._begun
        after = f"after its cell {origin.moment.cell}" if origin.moment.cell else "before its first cell"
        notice = f"this session is a fork of {origin.session_id!r}, made {after}"
        self._notices.last(notice)
        self._append(events.Notice, notice)
        for notice in origin.notices:
            self._note(notice)
        self._move(states.IDLE)

    async def go_on_with(self, parked: Parked, text: str) -> None:
        """Put a copy of a parked worker in the place of the session's own. In its own turn."""
        self._move(states.STARTING)
        failed: list[errors.IngleError] = []
        self._task = self._loop.create_task(self._replace(parked, text, failed))
        await self.wait()
        if failed:
            raise failed[0]

    async def _replace(self, parked: Parked, text: str, failed: list[errors.IngleError]) -> None:
        """Others wait for this, too: what goes wrong is told to who asked for it, and the session goes on as it was."""
        owner = self._owner
        try:
            (copy,) = await (await parked.worker.fork()).up()
        except errors.IngleError as error:
            failed.append(error)
            if owner.worker is None:
                await self._start()
            else:
                self._move(states.IDLE)
            return
        before, tmp = owner.worker, self._lodging.tmp
        owner.take(copy)
        self.on_begun()
        owner.names = set(parked.moment.names)
        owner.cwd, self._lodging.tmp = parked.moment.cwd, parked.moment.tmp
        # What was to be told of the worker that is replaced is not true of this one.
        self._notices.replace([text, *parked.notices])
        if before is not None:
            before.kill("the session was rolled back")
            await before.gone
        owner.drop_tmp(tmp)
        self._append(events.Notice, text)
        if owner.worker is copy:
            self._move(states.IDLE)
            owner.changed()
        else:
            await self._start()

    # --- what becomes of the worker ---

    def expect(self) -> None:
        """Another worker was taken: it has not begun yet."""
        self._begun = self._loop.create_future()

    def on_begun(self) -> None:
        """It has its folders, its environment and its streams."""
        if not self._begun.done():
            self._begun.set_result(None)

    def on_gone(self, exit: Exit) -> None:
        """It ended; one that had not begun is a start that failed."""
        if not self._begun.done():
            self._trusting = False
            self._begun.set_exception(
                errors.StartFailed(f"the worker ended while it started ({exit.message}); try again")
            )
            self._begun.exception()  # seen: where the launcher tries again by itself, nobody waits for it


def _end_of(worker: Worker) -> str:
    return worker.gone.result().message or "ended" if worker.gone.done() else "ended"
