"""The source of inits for shell tasks: a small pool, else a fork of a small zygote that is started on first use.

An init whose task has ended with nothing left below it waits in the pool for the next one. An init is told nothing
before it is taken for a task, so one that has died unseen can be replaced. Once it was told to run a command, nothing
is ever tried again.
"""

import asyncio
import sys

from ingle.errors import StartFailed, Unavailable
from ingle.settings import Settings
from ingle.shell.sandbox import Sandbox
from ingle.shell.task_process import TaskProcess
from ingle.workers.launch.zygote import Zygote
from ingle.workers.launch.zygote_supervisor import ZygoteSupervisor
from ingle_worker.wire import messages

MAX_TRIES = 3


class Launcher:
    """Launcher of task processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self._loop = loop
        self._settings = settings
        self._zygotes = ZygoteSupervisor(loop, lambda: Zygote(loop, sys.executable, [], mode="shells"), max_zygotes=1)
        self._pool: list[TaskProcess] = []
        self._stopped = False

    async def take(self, sandbox: Sandbox | None = None) -> TaskProcess:
        """Return an init that waits for its command. In a sandbox, it serves only once."""
        if sandbox is not None:
            return await self._make_in(sandbox)
        process: TaskProcess | None = None
        while self._pool and process is None:
            process = self._pool.pop(0)
            if not process.alive:
                process = None
        if process is None:
            process = await self._make()
        process.on_free = self._take_back
        return process

    def _take_back(self, process: TaskProcess) -> None:
        fresh = process.renewed()
        if len(self._pool) < self._settings.pool and not self._stopped:
            self._pool.append(fresh)
        else:
            fresh.close()

    async def _make_in(self, sandbox: Sandbox) -> TaskProcess:
        process = TaskProcess(self._loop)
        try:
            (status,) = process.make_ends().fds
            process.watch()
            process.init.sweeper = sandbox.worker.task_sweeper
            await sandbox.worker.start_child(messages.Shell(), status)
        except OSError as error:
            process.close()
            raise StartFailed(f"the session's process has just ended ({error.strerror}); ask again") from None
        return process

    async def _make(self) -> TaskProcess:
        for _ in range(MAX_TRIES):
            if self._stopped:
                raise Unavailable("the server is stopping; start it again")
            zygote = await self._zygotes.get()
            process = TaskProcess(self._loop)
            await zygote.fork(process)
            if process.ready.done() and (failure := process.ready.exception()) is not None:
                raise failure
            if not zygote.dead:
                return process
            process.close()
        raise StartFailed("the process that starts shell tasks keeps ending; try again")

    @property
    def zygote_pid(self) -> int | None:
        return self._zygotes.pid

    async def stop(self) -> None:
        """End every process that was launched here."""
        self._stopped = True
        await self._zygotes.cancel()
        for process in self._pool:
            process.close()
        self._pool.clear()
        await self._zygotes.stop()
