"""The node of this machine as its agent serves it: the claims on the names of its sessions."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from ingle import errors
from ingle.cluster.offer import AgentStatus
from ingle.events import Restored, SessionInfo
from ingle.isolation.limits.usage_samples import machine_memory
from ingle.nodes.local import LocalNode
from ingle.requests import NewSession, session_key
from ingle.sessions.spec import check_name, tenant_of
from ingle.settings import Settings
from ingle.store.claims import Claim, Claims
from ingle.support.background import run_forever

PLACE = "agent"
"""Kind of server, for the durable sessions of a data folder."""

STATUS_SECONDS = 0.1
"""Time between two looks at how busy this machine is."""

RELEASE_SECONDS = 0.25
"""Time between two looks for sessions that have ended, whose names are free again."""

MEMORY_STEP = 64 * 1024 * 1024
"""Bytes to which the available memory is rounded: smaller changes are not told."""

logger = logging.getLogger(__name__)


class ServedNode:
    """Implementation of the protocol `Agent`. Without claims it serves only sessions whose names need none."""

    def __init__(self, settings: Settings, home: Path, incarnation: str, claims: Claims | None) -> None:
        self.incarnation = incarnation
        self.node = LocalNode(settings, home, PLACE, incarnation)
        # Any gateway finds a task by its id.
        self.node.tasks.shell.id_suffix = f"-{incarnation}"
        self._name = settings.node
        self._claims = claims
        self._held: dict[str, Claim] = {}
        self._making: set[str] = set()
        self._draining = False
        self._chores: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.node.start()
        loop = asyncio.get_running_loop()
        self._chores = [
            loop.create_task(run_forever("releasing names", self._release_ended)),
            loop.create_task(self._warm()),
        ]

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
        await self.node.stop()
        for claim in self._held.values():
            await self._release(claim)

    # --- sessions with claims ---

    async def create(self, new: NewSession, epoch: int | None) -> SessionInfo:
        async with self._claimed(new.tenant, [(_name_of(new), epoch)]):
            return await self.node.create(new)

    async def fork(self, key: str, names: list[str], epochs: list[int | None], *, reseed: bool) -> list[SessionInfo]:
        async with self._claimed(tenant_of(key), list(zip(names, epochs, strict=True))):
            return await self.node.fork(key, [*names], reseed=reseed)

    async def load(
        self, new: NewSession, epoch: int | None, source: str, start: str | None, *, trust: bool, rerun: bool
    ) -> Restored:
        async with self._claimed(new.tenant, [(_name_of(new), epoch)]):
            return await self.node.snapshots.load(new, source, start, trust=trust, rerun=rerun)

    async def has(self, key: str) -> bool:
        if key in self._making:
            return True
        with contextlib.suppress(errors.SessionNotFound):
            self.node.session(key)
            return True
        return False

    @contextlib.asynccontextmanager
    async def _claimed(self, tenant: str, wanted: list[tuple[str, int | None]]) -> AsyncIterator[None]:
        """Take the claims on names while their sessions are made. Release them all if that fails."""
        keys = [session_key(tenant, name) for name, _ in wanted]
        for key, (name, _) in zip(keys, wanted, strict=True):
            if key in self._making:
                raise errors.SessionExists(name)
        self._making.update(keys)
        taken: list[Claim] = []
        try:
            for key, (name, epoch) in zip(keys, wanted, strict=True):
                if epoch is not None:
                    taken.append(await self._take(key, name, epoch))
            yield
            self._held |= {claim.key: claim for claim in taken}
        except BaseException:
            for claim in taken:
                await asyncio.shield(self._release(claim))
            raise
        finally:
            self._making.difference_update(keys)

    async def _take(self, key: str, name: str, epoch: int) -> Claim:
        if self._claims is None:
            raise errors.InvalidRequest("this agent has no store for the names of sessions; start it with a store")
        claim = await self._claims.take(key, epoch, self.incarnation, self._name)
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
        assert self._claims is not None
        try:
            await self._claims.release(claim)
        except errors.StoreFailed as error:
            logger.warning("the name %s is not released yet: %s", claim.key, error.message)

    # --- load ---

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
