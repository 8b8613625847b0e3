"""Launcher of workers: from a small pool, else by a fork of the zygote, else by a spawned interpreter.

Workers of the pool survive their zygote. A dead zygote is replaced when the next fork is needed.
"""

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from ingle.errors import InterpreterRefused, IsolationUnavailable, StartFailed
from ingle.isolation import self_test
from ingle.isolation.levels import Confinement, next_user
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.requests import SessionLimits
from ingle.settings import Settings
from ingle.workers.birth import Birth
from ingle.workers.launch.idle_inits import IdleInit, IdleInits
from ingle.workers.launch.zygote import OLD_PYTHON, Zygote, ZygoteKilled, start_process
from ingle.workers.launch.zygote_supervisor import ZygoteSupervisor
from ingle.workers.worker import Worker, WorkerEnded
from ingle_worker.wire import messages

REFILL_DELAY = 0.02
"""Seconds before the pool is refilled, so that the session that emptied it gets its first result first."""

NO_LIMITS = SessionLimits()

Begin = Callable[[Worker], None]

TRIES = 3
"""Attempts for workers that end before they are ready. A worker that dies with its zygote does not count: the next
zygote is asked for another one, within the time of one start."""


class Launcher:
    """Workers of one interpreter."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        python: str,
        settings: Settings,
        bounding: LimitApplier | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        self._loop = loop
        self.python = python
        self._settings = settings
        self._bounding = bounding
        self.confinement = confinement
        # A spawned interpreter cannot confine itself: what it is made of was loaded before.
        fork = settings.start_method == "fork" or (settings.start_method == "auto" and sys.platform == "linux")
        self._forks = fork or confinement is not None
        self._zygotes = ZygoteSupervisor(loop, lambda: Zygote(loop, python, settings.preload, confinement=confinement))
        self._pool: list[Worker] = []
        self._leaving: set[Worker] = set()
        self.prepare: Callable[[Worker], Awaitable[None]] | None = None
        """Gives a worker of the pool folders of its own, before a session needs it."""
        self._idle = IdleInits(loop)
        self._last_tenant = ""
        """Tenant of the last session. The next worker of the pool may use an idle init of this tenant."""
        self._soon: asyncio.TimerHandle | None = None
        self._refill: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._spawned: set[asyncio.Task[None]] = set()
        self._joining: dict[Worker, asyncio.Task[None]] = {}
        """Workers whose cgroup is being made."""
        self._stopped = False
        self.version: str | None = None

    def take_prepared(self, tenant: str, limits: SessionLimits = NO_LIMITS) -> Worker | None:
        """Return a worker of the pool that `prepare` has given its folders. The caller owns it from now on."""
        if self.prepare is None or self._own_limits(limits):
            return None
        return self._take_pooled(tenant)

    def _own_limits(self, limits: SessionLimits) -> dict[str, int]:
        """Return the limits that a worker sets for itself, where they differ from those of the pool."""
        return {} if self._bounding is None else self._bounding.of_process(limits)

    def _take_pooled(self, tenant: str) -> Worker | None:
        """Return a worker of the pool for a session of this tenant. The next one is made for the same tenant."""
        self._last_tenant = tenant
        self._fill_later()
        while self._pool:
            worker = self._pool.pop(0)
            if worker.alive and worker.birth.tenant in (None, tenant):
                return worker
            if worker.alive:
                self._dismiss(worker)
        return None

    def _network(self, network: str) -> str:
        """Return the network of a worker; empty if all workers have that of the machine."""
        return "" if self.confinement is None else network or self.confinement.network

    def _dismiss(self, worker: Worker) -> None:
        """End a worker that no session will have."""
        self._leaving.add(worker)
        worker.gone.add_done_callback(lambda gone: self._leaving.discard(worker))
        worker.kill()

    def _new(self, user: int, network: str, pooled: bool, limits: dict[str, int]) -> Worker:
        if self.confinement is not None:
            user = user or next_user()
        grouped = self._forks and self._grouped
        return Worker(self._loop, Birth(user, self._network(network), pooled, grouped, limits=limits))

    def keep_init(self, worker: Worker, tenant: str, limits: SessionLimits, folders: list[str]) -> None:
        """Have the init of a worker that ends now serve another session of the same tenant.

        It removes those of these folders that are empty.
        """
        if not self._forks or self._stopped or (self._bounding is not None and not self._bounding.are_default(limits)):
            return
        worker.keep_init(tenant, folders)
        worker.gone.add_done_callback(lambda gone: self._on_idle(worker))

    def _on_idle(self, worker: Worker) -> None:
        idle, worker.idle_init = worker.idle_init, None
        if idle is None:
            return
        if self._stopped:
            self._idle.discard(idle)
        else:
            self._idle.add(idle)

    async def take(
        self, begin: Begin, network: str = "", user: int = 0, tenant: str = "", limits: SessionLimits = NO_LIMITS
    ) -> Worker:
        """Return a worker: from the pool if one is there, and one more is made for the next session.

        `begin` is called with the worker before it is ready, and again with another one if that one fails. A worker
        with a network or limits other than the default, or with a given user id, is made on request. So is one where
        the workers of the pool have folders already: those are taken by `take_prepared`.
        """
        held = self.confinement
        if self._bounding is not None and limits != NO_LIMITS:
            await self._bounding.look()
        if own := self._own_limits(limits):
            worker = await self._make(begin, network, user, self._take_idle(tenant, network, user), own)
            self._fill_later()
            return worker
        if held is not None and (user or held.has_own_root or network not in ("", held.network)):
            worker = await self._make(begin, network, user, self._take_idle(tenant, network, user))
            self._fill_later()
            return worker
        pooled = self._take_pooled(tenant)
        if pooled is not None:
            begin(pooled)
            return pooled
        worker = await self._make(begin, idle=self._take_idle(tenant, network, user))
        self._fill_later()
        return worker

    def _take_idle(self, tenant: str, network: str = "", user: int = 0) -> IdleInit | None:
        return None if user else self._idle.take(tenant, self._network(network))

    async def hold(self) -> None:
        """Wait until a zygote has proven its confinement. No session exists before that.

        Raises IsolationUnavailable when this machine cannot confine it, StartFailed and InterpreterRefused as a start.
        """
        if self.confinement is None or self._zygotes.living is not None:
            return
        starting = self._zygotes.start()
        assert self._zygotes.coming is not None
        held = self._zygotes.coming.held
        either: tuple[asyncio.Future[Any], ...] = (starting, held)
        await asyncio.wait(either, timeout=self_test.TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        elif not held.done():
            raise IsolationUnavailable(self.confinement.level, self_test.TOO_LONG)
        else:
            held.result()

    async def warm(self) -> None:
        """Fill the pool now."""
        async with self._filling:
            # Counted before: those that die at once are not made again and again.
            for _ in range(self._settings.pool - len(self._pool)):
                if self._stopped:
                    return
                worker = await self._make(idle=self._take_idle(self._last_tenant))
                try:
                    if self.prepare is not None:
                        await self.prepare(worker)
                except BaseException as error:
                    self._dismiss(worker)
                    if not isinstance(error, StartFailed):
                        raise
                    continue
                self._pool.append(worker)
                worker.gone.add_done_callback(functools.partial(self._leave_pool, worker))

    def _leave_pool(self, worker: Worker, gone: object) -> None:
        """Remove a dead worker from the pool. It is replaced at the next take: at once could go on for ever, if the
        same cause ends each successor."""
        if worker in self._pool:
            self._pool.remove(worker)

    def _fill_later(self) -> None:
        if self._forks and not self._stopped and self._soon is None:
            self._soon = self._loop.call_later(REFILL_DELAY, self._begin_filling)

    def _begin_filling(self) -> None:
        self._soon = None
        if self._refill is None or self._refill.done():
            self._refill = self._loop.create_task(self._fill())
        else:
            # The refill has already counted the missing workers, and one more was taken since.
            self._fill_later()

    async def _fill(self) -> None:
        # A failing start fails again for the next session, which reports it.
        with contextlib.suppress(StartFailed, InterpreterRefused):
            await self.warm()

    async def _make(
        self,
        begin: Begin | None = None,
        network: str = "",
        user: int = 0,
        idle: IdleInit | None = None,
        limits: dict[str, int] | None = None,
    ) -> Worker:
        """Return a worker that is ready: for the session that begins it, or without `begin` for the pool.

        The first attempt uses the idle init, if one is given.
        """
        tries, lost, last = 0, False, ""
        until = self._loop.time() + self._settings.start_patience
        while tries < TRIES and not (lost and self._loop.time() > until):
            pooled = begin is None
            if idle is None:
                worker = self._new(user, network, pooled, limits or {})
            else:
                worker = self._new_from(idle, network, pooled, limits or {})
            zygote = self._zygotes.last
            process: subprocess.Popen[bytes] | None = None
            try:
                async with asyncio.timeout(self._settings.start_patience):
                    if idle is not None:
                        self._order_again(worker, idle)
                        idle = None
                    elif self._forks:
                        zygote = await self._zygotes.get()
                        await zygote.fork(worker, worker.birth)
                        if worker.birth.grouped:
                            self._invite(worker)
                    else:
                        process = await self._spawn(worker)
                    if (joining := self._joining.get(worker)) is not None:
                        await asyncio.shield(joining)
                    if begin is not None:
                        # The socket holds what is sent now, so its first message need not arrive before.
                        begin(worker)
                    ready = await worker.ready
                    # Before it runs user code, which could stop init. Then the pid of init is needed to kill it.
                    await worker.init_up
                    await self._bound(worker)
            except TimeoutError:
                worker.kill()
                raise StartFailed(
                    f"a session's process did not start within {self._settings.start_patience:g} s; "
                    "preload fewer modules, or raise start_patience"
                ) from None
            except WorkerEnded as ended:
                last = str(ended)
                # Most likely its zygote died, or its interpreter is too old for a session.
                if process is not None and await asyncio.to_thread(process.wait) == OLD_PYTHON:
                    raise InterpreterRefused(
                        f"{self.python} is older than CPython 3.10; name a newer interpreter"
                    ) from None
                lost = zygote is not None and zygote.dead
                tries += not lost
                continue
            except ZygoteKilled:
                lost = True
                continue
            except asyncio.CancelledError:
                worker.kill()
                raise
            self.version = ready.python
            return worker
        words = self._zygotes.last.last_words if self._zygotes.last is not None else ""
        why = "; ".join(filter(None, (last, words)))
        raise StartFailed(
            f"processes of sessions end before they are ready{f' ({why})' if why else ''}; try again, or name another "
            "interpreter"
        )

    def _new_from(self, idle: IdleInit, network: str, pooled: bool, limits: dict[str, int]) -> Worker:
        birth = Birth(idle.user, self._network(network), pooled, idle.group is not None, idle.tenant, limits)
        worker = Worker(self._loop, birth)
        worker.init.use(idle.pid, idle.sweeper, idle.swept_pid)
        worker.group = idle.group
        return worker

    def _order_again(self, worker: Worker, idle: IdleInit) -> None:
        """Order a worker from an idle init. If init is gone, the worker ends before it is ready."""
        ends = worker.make_ends()
        try:
            idle.order(ends, pooled=worker.birth.pooled, limits=worker.birth.limits)
        except OSError:
            pass  # the closed sockets report its end as always
        finally:
            ends.close()
            worker.watch()
            idle.socket.close()

    @property
    def _grouped(self) -> bool:
        """Whether every worker gets a cgroup of its own."""
        return self._bounding is not None and self._bounding.wanted

    def _invite(self, worker: Worker) -> None:
        """Create the cgroup of a worker that is starting. Its init waits for it before it forks."""
        assert self._bounding is not None
        opening = self._loop.run_in_executor(None, self._bounding.open)
        joining = self._joining[worker] = self._loop.create_task(self._join(worker, opening))
        joining.add_done_callback(lambda joined: self._joining.pop(worker))

    async def _join(self, worker: Worker, opening: asyncio.Future[tuple[Group | None, list[int]]]) -> None:
        group, ways = await opening
        try:
            if worker.gone.done():
                await asyncio.to_thread(LimitApplier.release, group)
            else:
                worker.group = group
                await worker.init.send_with(messages.Join(), ways)
        except OSError:
            pass  # it is gone, and its end is reported as always
        finally:
            for fd in ways:
                os.close(fd)

    async def _bound(self, worker: Worker) -> None:
        """Apply the limits of a worker before it runs user code."""
        if self._bounding is None or not self._bounding.wanted:
            return
        if worker.init_pid is None or worker.pid is None:
            return
        pids = (worker.init_pid, worker.pid)
        if worker.birth.tenant is not None:
            worker.group = await self._bounding.hold(worker.group, pids, joined=True)
        elif not worker.birth.grouped:
            worker.group = await self._bounding.prepare(*pids)
        else:
            worker.group = await self._bounding.hold(worker.group, pids, joined=worker.init.joined)

    async def _spawn(self, worker: Worker) -> "subprocess.Popen[bytes]":
        ends = worker.make_ends()
        worker.watch()
        try:
            args = ["spawn", json.dumps(worker.birth.limits), *map(str, ends.fds)]
            process = await asyncio.to_thread(start_process, self.python, args, ends.fds, subprocess.DEVNULL)
        finally:
            ends.close()
        worker.init.parent_pid = process.pid
        task = self._loop.create_task(self._reap(worker, process))
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return process

    @staticmethod
    async def _reap(worker: Worker, process: "subprocess.Popen[bytes]") -> None:
        await worker.siblings.over
        await asyncio.to_thread(process.wait)

    @property
    def zygote_pid(self) -> int | None:
        return self._zygotes.pid

    @property
    def prepared(self) -> int:
        return len(self._pool)

    def retire(self) -> None:
        """Prepare no more workers, and end those of the pool. Sessions go on."""
        self.rest()
        pool, self._pool = self._pool, []
        for worker in pool:
            self._dismiss(worker)

    def rest(self) -> None:
        """Prepare no more workers."""
        self._stopped = True
        if self._soon is not None:
            self._soon.cancel()
        if self._refill is not None:
            self._refill.cancel()

    async def stop(self) -> None:
        """End every process this launcher has started."""
        self.rest()
        if self._refill is not None and not self._refill.done():
            self._refill.cancel()
            with contextlib.suppress(asyncio.CancelledError, StartFailed, InterpreterRefused):
                await self._refill
        await self._zygotes.cancel()
        if self._joining:
            await asyncio.wait(self._joining.values())
        await self._idle.stop()
        workers = [*self._pool, *self._leaving]
        self._pool.clear()
        for worker in workers:
            worker.kill()
        for worker in workers:
            await worker.gone
            if worker.group_released is not None:
                await worker.group_released
        await self._zygotes.stop()
        if self._spawned:
            await asyncio.wait(self._spawned)
