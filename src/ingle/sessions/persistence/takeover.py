"""Takeover of sessions between servers with one object store.

This server renews its lease. It takes over sessions of servers that are gone, and ends those that it has lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from ingle import errors
from ingle.sessions.persistence.durable import DurableSessions
from ingle.sessions.persistence.shared_sessions import SharedSessions
from ingle.sessions.session import Session
from ingle.snapshots.registry import Row
from ingle.store import upkeep
from ingle.store.claims import Claim
from ingle.store.saves import FoundSave
from ingle.store.shared import SharedStore
from ingle.support.background import run_forever

logger = logging.getLogger(__name__)


class EndSoon(Protocol):
    def __call__(self, session: Session, reason: str, *, keep: bool = False) -> "asyncio.Task[None]": ...


class Takeover:
    def __init__(
        self,
        durable: DurableSessions,
        sessions: Mapping[str, Session],
        making: Iterable[str],
        take_over: Callable[[Row], Awaitable[None]],
        end_soon: EndSoon,
    ) -> None:
        """`take_over` makes a session of a row. `making` are keys of sessions that are being made."""
        self._durable = durable
        self._sessions = sessions
        self._making = making
        self._take_over = take_over
        self._end_soon = end_soon
        self._loops: list[asyncio.Task[None]] = []

    @property
    def shared(self) -> SharedStore:
        """The object store. Raise InvalidRequest if this server has none."""
        if self._shared is None:
            raise errors.InvalidRequest("this server has no object store; start it with --store")
        return self._shared.shared

    @property
    def _shared(self) -> SharedSessions | None:
        return self._durable.shared

    async def open(self) -> None:
        """Open the object store, if there is one. From now on a lease is renewed: the start may take long."""
        shared = self._shared
        if shared is not None:
            await shared.start()
        if shared is not None and shared.renews:
            self._run("renewing the lease in the store", lambda: self._renew(shared))

    async def start(self) -> None:
        """Take over what other servers have left, and begin to look for more."""
        shared = self._shared
        if shared is None:
            return
        await self._look(shared)
        self._run("looking for sessions of other servers", lambda: self._watch(shared))
        store = shared.shared
        self._run("upkeep", lambda: upkeep.repeat(store.store, store.leases, "packs", store.collect_of_all))

    def _run(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        self._loops.append(asyncio.get_running_loop().create_task(run_forever(what, work)))

    async def stop(self) -> None:
        """End looking. The sessions are given up as they end."""
        for each in self._loops:
            each.cancel()
        if self._loops:
            await asyncio.wait(self._loops)

    async def close(self) -> None:
        """Release the lease, after all sessions have ended."""
        if self._shared is not None:
            await self._shared.stop()

    async def _renew(self, shared: SharedSessions) -> None:
        failed = False
        while True:
            try:
                await shared.renew()
                failed = False
            except errors.StoreFailed as error:
                if not failed:
                    logger.warning("the lease in the store was not renewed: %s", error.message)
                failed = True
            await asyncio.sleep(shared.renew_seconds)

    async def _watch(self, shared: SharedSessions) -> None:
        while True:
            await asyncio.sleep(shared.renew_seconds)
            try:
                await self._look(shared)
            except errors.StoreFailed as error:
                logger.info("the store was not read: %s", error.message)

    async def _look(self, shared: SharedSessions) -> None:
        await shared.settle()
        abandoned = await shared.abandoned(self._known) if shared.takes_over else []
        for session in list(self._sessions.values()):
            if session.autosave is not None and session.autosave.taken_over:
                self._end_soon(session, "another server has it")
        for claim in abandoned:
            await self._try_to_adopt(shared, claim)

    def _known(self, key: str) -> bool:
        return key in self._sessions or key in self._making

    async def _try_to_adopt(self, shared: SharedSessions, claim: Claim) -> None:
        try:
            if (save := await shared.newest(claim)) is not None:
                await self.adopt(claim, save)
        except errors.SessionHeldBack:
            pass  # the log has the reason
        except errors.IngleError as error:
            logger.warning("session %s was not taken over: %s", claim.key, error.message)

    async def adopt(self, claim: Claim, save: FoundSave | None = None) -> bool:
        """Take over the session of a claim. Return False if another server was faster, or if it has ended.

        `save` is one that was read before. It is used if it is the newest one.
        Raise SessionHeldBack if this server may not have it. Then it is given up again.
        """
        row = await self._durable.adopt(claim, save)
        if row is None or self._known(claim.key):
            return False
        await self._take_over(row)
        return True

    async def adopt_key(self, key: str) -> None:
        """Take over a session, whichever server has it. The caller knows that this server is gone."""
        claim = await self.shared.claims.newest(key)
        assert self._shared is not None
        save = None if claim is None else await self._shared.newest(claim)
        if claim is None or save is None or not await self.adopt(claim, save):
            raise errors.SessionNotFound(key.rpartition("/")[2])

    async def give_up(self, key: str) -> None:
        """Save a session and end it here, so that another server can take it over. Nothing of it is lost.

        Raise Busy if a cell runs, or is about to.
        """
        session = self._sessions.get(key)
        if session is None or session.autosave is None or not session.autosave.durable or self._shared is None:
            raise errors.SessionNotFound(key.rpartition("/")[2])
        await session.saves.finish()
        # Nothing is awaited from here to its end, which would end a cell that begins meanwhile.
        if not session.turns.free:
            raise errors.Busy(session.last_cell, 0.0)
        if not session.autosave.current:
            why = session.autosave.trouble or "it changes at this moment"
            raise errors.SaveFailed(f"the session cannot move: {why}; retry")
        self._shared.leave(key)
        await asyncio.shield(self._end_soon(session, "it moves to another server", keep=True))
