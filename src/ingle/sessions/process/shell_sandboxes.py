"""Sandboxes for shell commands that belong to no session: one for each tenant and folder, until the server stops.

Each is the sandbox of a hidden session. So the commands of one tenant share /tmp, as those of a terminal do. Other
tenants do not see it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ingle.requests import Bounds, NewSession
from ingle.sessions.session import Session


class ShellSandboxes:
    def __init__(self, make: Callable[[str, NewSession], Awaitable[Session]]) -> None:
        self._make = make
        self._sandboxes: dict[tuple[str, str | None, Bounds], asyncio.Task[Session]] = {}
        self._former: list[asyncio.Task[Session]] = []
        """Sandboxes with grants of the past, in which commands may still run."""

    async def get(self, tenant: str, folder: str | None, bounds: Bounds) -> Session:
        """Return the session whose sandbox has this folder. Make it when it is first needed."""
        making = self._sandboxes.get((tenant, folder, bounds))
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.get_running_loop().create_task(self._open(tenant, folder, bounds))
            self._sandboxes[tenant, folder, bounds] = making
        return await asyncio.shield(making)

    async def _open(self, tenant: str, folder: str | None, bounds: Bounds) -> Session:
        session = await self._make("shell", NewSession(tenant=tenant, cwd=folder, bounds=bounds))
        try:
            await session.start()
        except BaseException:
            await session.end()
            raise
        return session

    @property
    def sessions(self) -> list[Session]:
        """The hidden sessions that have started."""
        made = [*self._sandboxes.values(), *self._former]
        return [each.result() for each in made if each.done() and not each.cancelled() and each.exception() is None]

    def renew(self) -> None:
        """Make new sandboxes for later commands, because the grants have changed. Commands that run go on."""
        self._former += self._sandboxes.values()
        self._sandboxes.clear()

    async def stop(self) -> list[Session]:
        """Return all hidden sessions, for the caller to end."""
        if made := [*self._sandboxes.values(), *self._former]:
            await asyncio.wait(made)
        return self.sessions
