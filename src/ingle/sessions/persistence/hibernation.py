"""Sessions that have been idle: each is saved once, and its process freed when there is need, or at once if so set.

What cannot be saved is not freed: the process is kept, and the listing says why. There is need when the number of
sessions or the machine's memory runs out; those that were used longest ago go first.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable

from ingle import errors
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle_worker.wire import states

AT_ONCE = 4
"""Sessions that are saved or freed at a time for being idle; the others have time."""

PATIENCE = 5.0
"""Seconds that one may take to be freed while somebody waits for its room; then the next is tried, and it goes on. What
takes so long may be the session's own code."""


class Resting:
    def __init__(
        self, settings: Settings, sessions: Callable[[], Iterable[Session]], end: Callable[[Session, str], object]
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._end = end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Lock()

    def look(self) -> None:
        """Once in a while: what has been idle for long enough?"""
        pressed = False
        for session in self._idle():
            durable = session.keeper is not None and session.keeper.durable
            if session.plan.one_off or (self._settings.idle_policy == "end" and not durable):
                self._end(session, "idle")
            elif len(self._tasks) >= AT_ONCE:
                continue
            elif session.state == states.IDLE and session.key not in self._tasks and session.keeper is not None:
                pressed = pressed or memory_is_short(self._settings.memory_floor)
                free = (self._settings.idle_policy != "keep" or pressed) and not session.keeper.kept
                if free or not (session.keeper.current or session.keeper.trouble):
                    self._begin(session, free)

    def _begin(self, session: Session, free: bool) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._rest(session, free))
        self._tasks[session.key] = task
        task.add_done_callback(functools.partial(self._forget, session.key))
        return task

    def _forget(self, key: str, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(key, None)

    def _idle(self) -> list[Session]:
        found = [each for each in self._sessions() if each.idle_for >= each.plan.idle_timeout]
        return sorted(found, key=lambda session: session.last_used)

    async def _rest(self, session: Session, free: bool) -> None:
        await (session.hibernate() if free else session.keep_for_later())

    async def make_room(self, live: Callable[[], int]) -> None:
        """Have room for one more process; an error when everything is in use."""
        async with self._room:
            for session in self._idle():
                if live() < self._settings.max_sessions:
                    return
                if session.state != states.IDLE:
                    continue
                resting = self._tasks.get(session.key)
                if resting is not None:
                    await asyncio.wait({resting}, timeout=PATIENCE)
                if session.state == states.IDLE and session.key not in self._tasks:
                    await asyncio.wait({self._begin(session, free=True)}, timeout=PATIENCE)
        if live() >= self._settings.max_sessions:
            raise errors.TooManySessions(self._settings.max_sessions)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def memory_is_short(floor: float) -> bool:
    """Whether less than this share of the machine's memory can be had."""
    if not floor:
        return False
    try:
        with open("/proc/meminfo", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        total, free = (int(lines[name].split()[0]) for name in (b"MemTotal", b"MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return False
    return free < total * floor
