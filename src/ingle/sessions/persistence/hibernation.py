"""Hibernation of idle sessions: each is saved once, and its process is freed when needed, or at once if so set.

A process whose session cannot be saved stays, and the listing says why. Processes are needed when the limit of sessions
or the machine's memory runs out. The session that was used longest ago goes first.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable

from ingle.sessions.admission import Admission
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle_worker.wire import states

AT_ONCE = 4
"""Idle sessions that are saved or freed at a time."""

FREE_SECONDS = 5.0
"""Time that one session may take to be freed while a request waits for its slot. Then the next one is tried, and the
first goes on: the session's own code may take so long."""


class Hibernation:
    def __init__(
        self,
        settings: Settings,
        admission: Admission,
        sessions: Callable[[], Iterable[Session]],
        end: Callable[[Session, str], object],
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._sessions = sessions
        self._end = end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()

    def check(self) -> None:
        """End, save or free the sessions that have been idle for long enough."""
        keeping = [session for session in self._sessions() if session.failures.any]
        if keeping and memory_is_short(self._settings.memory_floor):
            for session in keeping:
                session.failures.drop_all("memory is short")
            return
        pressed = False
        for session in self._idle():
            durable = session.autosave is not None and session.autosave.durable
            if session.spec.one_off or (self._settings.idle_policy == "end" and not durable):
                self._end(session, "idle")
            elif len(self._tasks) >= AT_ONCE:
                continue
            elif session.state == states.IDLE and session.key not in self._tasks and session.autosave is not None:
                pressed = pressed or memory_is_short(self._settings.memory_floor)
                free = (self._settings.idle_policy != "keep" or pressed) and not session.autosave.kept
                if free or not (session.autosave.current or session.autosave.trouble):
                    self._begin(session, free)

    def _begin(self, session: Session, free: bool) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._run(session, free))
        self._tasks[session.key] = task
        task.add_done_callback(functools.partial(self._forget, session.key))
        return task

    def _forget(self, key: str, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(key, None)

    def _idle(self) -> list[Session]:
        found = [each for each in self._sessions() if each.idle_for >= each.spec.idle_timeout]
        return sorted(found, key=lambda session: session.idle_for, reverse=True)

    async def _run(self, session: Session, free: bool) -> None:
        await (session.saves.hibernate() if free else session.saves.finish())
        if session.state == states.HIBERNATED:
            session.failures.drop_all("the process of the session was freed")

    async def free_process(self, live: Callable[[], int]) -> None:
        """Free a process if the limit of sessions is reached. Raise TooManySessions if all are in use."""
        async with self._one:
            for session in self._idle():
                if live() < self._admission.limit:
                    return
                if session.state != states.IDLE:
                    continue
                under_way = self._tasks.get(session.key)
                if under_way is not None:
                    await asyncio.wait({under_way}, timeout=FREE_SECONDS)
                if session.state == states.IDLE and session.key not in self._tasks:
                    await asyncio.wait({self._begin(session, free=True)}, timeout=FREE_SECONDS)
        if live() >= self._admission.limit:
            raise self._admission.refusal()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def memory_is_short(floor: float) -> bool:
    """Return whether less than this share of the machine's memory is available."""
    if not floor:
        return False
    try:
        with open("/proc/meminfo", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        total, free = (int(lines[name].split()[0]) for name in (b"MemTotal", b"MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return False
    return free < total * floor
