"""Where the inits of tasks come from: a few that wait, else a fork of a small zygote, started on first use.

An init whose task has ended with nothing left below it waits for the next; `pool` of them are kept at most.

Nothing is told to an init before it is taken for a task, so one that has died unseen is replaced at no risk; once it
was told to run a command, nothing is ever tried again.
"""

import asyncio
import sys

from ingle.errors import StartFailed, Unavailable
from ingle.settings import Settings
from ingle.shell.sandbox import Room
from ingle.shell.task_process import Process
from ingle.workers.launch.zygote import Zygote
from ingle.workers.launch.zygote_supervisor import Zygotes

TRIES = 3


class Launcher:
    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self._loop = loop
        self._settings = settings
        self._zygotes = Zygotes(loop, lambda: Zygote(loop, sys.executable, [], mode="shells"))
        self._pool: list[Process] = []
        self._stopped = False

    async def take(self, room: Room | None = None) -> Process:
        """An init that waits to be told what to run; in a room, one that serves this once."""
        if room is not None:
            return await self._make_in(room)
        process: Process | None = None
        while self._pool and process is None:
            process = self._pool.pop(0)
            if not process.alive:
                process = None
        if process is None:
            process = await self._make()
        process.on_free = self._take_back
        return process

    def _take_back(self, process: Process) -> None:
        fresh = process.renewed()
        if len(self._pool) < self._settings.pool and not self._stopped:
            self._pool.append(fresh)
        else:
            fresh.close()

    async def _make_in(self, room: Room) -> Process:
        process = Process(self._loop)
        try:
            (status,) = process.make_ends().fds
            process.watch()
            process.sweeping = room.worker.tasks_sweeping
            await room.worker.run_shell(status)
        except OSError as error:
            process.close()
            raise StartFailed(f"the session's process has just ended ({error.strerror}); ask again") from None
        return process

    async def _make(self) -> Process:
        for _ in range(TRIES):
            if self._stopped:
                raise Unavailable("the server is stopping; start it again")
            zygote = await self._zygotes.get()
            process = Process(self._loop)
            await zygote.fork(process, spare=False)
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
        """End every process that came from here."""
        self._stopped = True
        await self._zygotes.cancel()
        for process in self._pool:
            process.close()
        self._pool.clear()
        await self._zygotes.stop()
