"""Rooms for shell commands that belong to no session: one for each tenant and folder, as long as the server lives.

Such a room is that of a session which nobody is told of. So commands share what a terminal's would, /tmp for one, with
those of their own tenant and with nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ingle.requests import Bounds, NewSession
from ingle.sessions.session import Session


class ShellRooms:
    def __init__(self, make: Callable[[str, NewSession], Awaitable[Session]]) -> None:
        self._make = make
        self._rooms: dict[tuple[str, str | None, Bounds], asyncio.Task[Session]] = {}

    async def get(self, tenant: str, folder: str | None, bounds: Bounds) -> Session:
        """The room in which this folder can be worked in by who has these bounds; made when it is first needed."""
        making = self._rooms.get((tenant, folder, bounds))
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.get_running_loop().create_task(self._open(tenant, folder, bounds))
            self._rooms[tenant, folder, bounds] = making
        return await asyncio.shield(making)

    async def _open(self, tenant: str, folder: str | None, bounds: Bounds) -> Session:
        session = await self._make("shell", NewSession(tenant=tenant, cwd=folder, bounds=bounds))
        try:
            await session.start()
        except BaseException:
            await session.end()
            raise
        return session

    async def stop(self) -> list[Session]:
        """Those that are there, to be ended."""
        if self._rooms:
            await asyncio.wait(self._rooms.values())
        rooms = self._rooms.values()
        return [each.result() for each in rooms if not each.cancelled() and each.exception() is None]
