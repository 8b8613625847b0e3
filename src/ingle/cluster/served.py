"""The node of this machine as its agent serves it: the claims on the names of its sessions."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from ingle import errors
from ingle.cluster.fence.lease import StoreLease
from ingle.cluster.offer import AgentStatus, LeftSession
from ingle.events import Restored, SessionInfo
from ingle.isolation.limits.usage_samples import machine_memory
from ingle.nodes.local import LocalNode
from ingle.requests import NewSession, session_key
from ingle.sessions.spec import check_name, tenant_of
from ingle.settings import Settings
from ingle.store.claims import Claim
from ingle.store.leases import Renewal
from ingle.store.saves import FoundSave
from ingle.store.shared import SharedStore
from ingle.support.background import run_forever

PLACE = "agent"
"""Kind of server, for the durable sessions of a data folder."""

STATUS_SECONDS = 0.1
"""Time between two looks at how busy this machine is."""

RELEASE_SECONDS = 0.25
"""Time between two looks for sessions that have ended, whose names are free again."""

IDLE_STEP_SECONDS = 0.05
"""Time between two looks at a session that is to leave and runs a cell."""

MOVE_SECONDS = 10.0
"""Time for another agent to load a session that has left. Until then its callers wait for its new place."""

MEMORY_STEP = 64 * 1024 * 1024
"""Bytes to which the available memory is rounded: smaller changes are not told."""

logger = logging.getLogger(__name__)


class ServedNode:
    """Implementation of the protocol `Agent`. The node has the store with the claims."""

    def __init__(self, settings: Settings, home: Path, incarnation: str, lease: StoreLease) -> None:
        self._lease = lease
        self.node = LocalNode(settings, home, PLACE, incarnation)
        # Any gateway finds a task by its id.
        self.node.tasks.shell.id_suffix = f"-{incarnation}"
        self._held: dict[str, Claim] = {}
        self._making: set[str] = set()
        self._none_made = asyncio.Event()
        """Set while no session is being made."""
        self._none_made.set()
        self._moving: set[str] = set()
        self._left: set[str] = set()
        """Keys and snapshots of sessions that have left, and may come back if no other agent takes them."""
        self._adopting: dict[str, asyncio.Task[bool]] = {}
        self._draining = False
        self._chores: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.node.start()
        loop = asyncio.get_running_loop()
        self._chores = [
            loop.create_task(run_forever("releasing names", self._release_ended)),
            loop.create_task(self._warm()),
        ]

    @property
    def store(self) -> SharedStore:
        """The store of this node. Its claims are in the name of this agent."""
        return self.node.manager.takeover.shared

    async def _warm(self) -> None:
        try:
            await self.node.warm()
        except errors.IngleError as error:
            # Creating a session reports the same error to its caller.
            logger.warning("no worker could be prepared: %s", error.message)

    async def stop(self) -> None:
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        # Claims stay: gateways see that this agent has ended, and tell callers that a session was lost with it.
        await self.node.stop()

    def _is_durable(self, key: str) -> bool:
        """Return whether the node itself gives up the claim on a session when the session ends."""
        with contextlib.suppress(errors.SessionNotFound):
            autosave = self.node.manager.get(key).autosave
            return autosave is not None and autosave.durable
        return False

    # --- sessions with claims ---

    async def create(self, new: NewSession, after: int | None) -> SessionInfo:
        async with self._claimed(new.tenant, [(_name_of(new), after)]):
            return await self.node.create(new)

    async def fork(
        self, key: str, names: list[str], after: list[int | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[SessionInfo]:
        async with self._claimed(tenant_of(key), list(zip(names, after, strict=True))):
            return await self.node.fork(key, [*names], at=at, reseed=reseed, shares=shares)

    async def load(
        self, new: NewSession, after: int | None, source: str, start: str | None, *, trust: bool, rerun: bool
    ) -> Restored:
        async with self._claimed(new.tenant, [(_name_of(new), after)], back=source in self._left):
            return await self.node.snapshots.load(new, source, start, trust=trust, rerun=rerun)

    async def saved_session(self, tenant: str, snapshot: str) -> str:
        return await self.node.snapshots.session_of(tenant, snapshot)

    async def has(self, key: str) -> bool:
        if key in self._making or key in self._moving or key in self._adopting:
            return True
        with contextlib.suppress(errors.SessionNotFound):
            self.node.session(key)
            return True
        return False

    @contextlib.asynccontextmanager
    async def _claimed(
        self, tenant: str, wanted: list[tuple[str, int | None]], *, back: bool = False
    ) -> AsyncIterator[None]:
        """Take the claims on names while their sessions are made. Release them all if that fails.

        A session comes `back` to a machine that is drained if no other one takes it.
        """
        if not back:
            self._check_open()
        keys = [session_key(tenant, name) for name, _ in wanted]
        for key, (name, _) in zip(keys, wanted, strict=True):
            if key in self._making:
                raise errors.SessionExists(name)
        self._making.update(keys)
        self._none_made.clear()
        taken: list[Claim] = []
        try:
            for key, (name, after) in zip(keys, wanted, strict=True):
                if after is not None:
                    taken.append(await self._take(key, name, after))
            yield
            self._held |= {claim.key: claim for claim in taken if not self._is_durable(claim.key)}
        except BaseException:
            for claim in taken:
                await asyncio.shield(self._release(claim))
            raise
        finally:
            self._making.difference_update(keys)
            if not self._making:
                self._none_made.set()

    async def _take(self, key: str, name: str, after: int) -> Claim:
        claim = await self.store.take(key, after)
        if claim is None:
            raise errors.SessionExists(name)
        return claim

    async def _release_ended(self) -> None:
        while True:
            await asyncio.sleep(RELEASE_SECONDS)
            for key, claim in list(self._held.items()):
                if not await self.has(key):
                    del self._held[key]
                    await self._release(claim)

    async def _release(self, claim: Claim) -> None:
        """Release a claim. If the store fails, gateways ask this agent, or see that it has ended."""
        try:
            await self.store.claims.release(claim)
        except errors.StoreFailed as error:
            logger.warning("the name %s is not released yet: %s", claim.key, error.message)

    # --- moving sessions ---

    def _check_open(self) -> None:
        if self._draining:
            raise errors.Unavailable("this machine is drained and takes no session; retry on another one")

    async def adopt(self, claim: Claim, save: FoundSave | None) -> bool:
        if claim.key not in self._left:
            self._check_open()
        adopting = self._adopting.get(claim.key)
        if adopting is None:
            adopting = self._adopting[claim.key] = asyncio.get_running_loop().create_task(self._adopt(claim, save))
        # Several gateways may ask for it, and one of them may go.
        return await asyncio.shield(adopting)

    async def _adopt(self, claim: Claim, save: FoundSave | None) -> bool:
        try:
            return await self.node.manager.takeover.adopt(claim, save)
        finally:
            del self._adopting[claim.key]

    async def drain(self) -> list[str]:
        self._draining = True
        await self._none_made.wait()
        if self._adopting:
            await asyncio.wait(self._adopting.values())
        return [each.key for each in self.node.manager.everyone()]

    async def leave(self, key: str, seconds: float) -> LeftSession | None:
        session = self.node.manager.get(key)
        loop = asyncio.get_running_loop()
        began = loop.time()
        name = f"moved-{secrets.token_hex(8)}"
        saved = -1
        # The result of a one-off is with its session, which ends when the result was read.
        while session.spec.one_off or not session.turns.free or saved != session.last_cell:
            if loop.time() - began > seconds:
                raise errors.Busy(session.last_cell, seconds)
            self.node.manager.get(key)  # raises an error if it has ended
            if session.spec.one_off or not session.turns.free:
                await asyncio.sleep(IDLE_STEP_SECONDS)
            elif self._is_durable(key):
                # Until its claim is released, callers wait for its new place.
                self._moving.add(key)
                try:
                    with contextlib.suppress(errors.Busy):
                        await self.node.manager.takeover.give_up(key)
                        self._left.add(key)
                        return None
                finally:
                    self._moving.discard(key)
            else:
                saved = session.last_cell
                await self.node.session(key).save(name, None)
        # Nothing is awaited since the last look: no cell has begun that the save lacks.
        self._held.pop(key, None)
        self._moving.add(key)
        loop.call_later(MOVE_SECONDS, self._moving.discard, key)
        await asyncio.shield(self.node.manager.end_soon(session, "it moves to another machine"))
        self._left.add(name)
        grant, made = session.spec.grant, session.spec.made
        again = {"session_id": session.id, "isolation": grant.isolation}
        return LeftSession(name, msgspec.structs.replace(made, **again, cwd=None, own_folder=True, shares=None))

    # --- signs of life ---

    def renewals(self) -> AsyncIterator[Renewal]:
        return self._lease.renewals()

    async def statuses(self) -> AsyncIterator[AgentStatus]:
        last = None
        while True:
            status = await self._status()
            if status != last:
                yield status
            last = status
            await asyncio.sleep(STATUS_SECONDS)

    async def _status(self) -> AgentStatus:
        manager = self.node.manager
        sessions = manager.everyone()
        return AgentStatus(
            len(sessions),
            manager.admission.limit,
            sum(each.running is not None for each in sessions),
            manager.admission.waiting,
            (await asyncio.to_thread(machine_memory))[1] // MEMORY_STEP * MEMORY_STEP,
            await asyncio.to_thread(manager.grants.builds.store.names),
            self._draining,
        )


def _name_of(new: NewSession) -> str:
    if new.session_id is None:
        raise errors.InvalidRequest("a session of a cluster needs its name from the gateway")
    check_name(new.session_id)
    return new.session_id
