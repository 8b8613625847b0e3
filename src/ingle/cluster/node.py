"""The node of a gateway: all agents of a cluster as one node.

It holds no session and no state that another gateway needs, so there may be any number of gateways.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ingle import errors
from ingle.capacity import Capacity, Histogram, Load, MachineUsage, Metrics
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.directory import Directory
from ingle.cluster.fence.takeover import Takeover
from ingle.cluster.names import make_name
from ingle.cluster.offer import LeftSession
from ingle.cluster.parts.drain import Drain
from ingle.cluster.parts.everywhere import ClusterEnvironments, ClusterGrants, ClusterLibrary, ClusterSnapshots, on_all
from ingle.cluster.parts.keys import ClusterKeys
from ingle.cluster.parts.machines import ClusterMachines
from ingle.cluster.parts.removal import Removal
from ingle.cluster.parts.tasks import ClusterTasks
from ingle.cluster.placement import choose, fitting
from ingle.cluster.remote import handle
from ingle.cluster.router import Router
from ingle.cluster.token import ClusterToken
from ingle.events import Restored, SessionInfo
from ingle.grants import Isolation
from ingle.nodes import SessionHandle
from ingle.requests import NewSession, session_key
from ingle.sessions.spec import check_name, tenant_of
from ingle.settings import LEVELS, Settings
from ingle.store import upkeep
from ingle.store.leases import Leases
from ingle.store.store import Store
from ingle.support.background import run_forever
from ingle.support.fair_queue import FairQueue
from ingle.tools.servers import ToolServers

FIRST_AGENT_SECONDS = 10.0
"""Time that the start of a gateway waits for an agent."""

CREATES_AT_ONCE = 256
TENANT_CREATES = 192
MAX_WAITING = 10_000
WAIT_SECONDS = 300.0
"""Bounds of the queue for new sessions: under way, of one tenant, waiting, and the time to wait."""

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0

FULL = (errors.TooManySessions, errors.Overloaded, errors.Unavailable)
"""Refusals of one agent after which another one is asked."""

T = TypeVar("T")


class ClusterNode:
    """Sessions and shell tasks of all agents."""

    def __init__(
        self,
        settings: Settings,
        home: Path,
        directory: Directory,
        token: ClusterToken,
        store: Store,
        silence: Callable[[str], float | None] | None = None,
    ) -> None:
        """`silence` returns for how long the control plane has not heard of an agent, where there is one."""
        self._token = token
        self._store = store
        self._leases = Leases(store)
        self.agents = Agents(directory, token, Takeover(self._leases, silence))
        self._router = Router(self.agents, store, token)
        self._creates = FairQueue(CREATES_AT_ONCE, TENANT_CREATES, MAX_WAITING, _overloaded)
        self._random = random.Random()
        self.tasks = ClusterTasks(self.agents, self._router)
        self.snapshots = ClusterSnapshots(self.agents, self._load)
        self.library = ClusterLibrary(self.agents)
        self.grants = ClusterGrants(self.agents)
        self.environments = ClusterEnvironments(self.agents)
        self.tools = ToolServers(settings, home)
        drain = Drain(self.agents, self._router, self.snapshots, self._arrive)
        self.machines = ClusterMachines(directory, self.agents, drain)
        self._removal = Removal(store, self._leases, self.agents, self._router, settings.durable_age)
        self._upkeep: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect to the agents, and wait for a first one."""
        await self._store.check()
        await self.agents.start()
        deadline = asyncio.get_running_loop().time() + FIRST_AGENT_SECONDS
        while not self.agents.up and asyncio.get_running_loop().time() < deadline:
            await self.agents.wait_changed(FIRST_AGENT_SECONDS)
        work = partial(upkeep.repeat, self._store, self._leases, "claims", self._removal.run)
        self._upkeep = asyncio.get_running_loop().create_task(run_forever("upkeep", work))

    async def warm(self) -> None:
        """Do nothing: agents prepare workers when they start."""

    async def stop(self) -> None:
        """Leave the cluster. Sessions go on."""
        self._creates.close(errors.Unavailable("the server is stopping; start it again"))
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
        await self.agents.stop()
        await self.tools.close()
        await self._leases.close()
        self._store.close()

    def key_store(self, tenant: str) -> ClusterKeys:
        """Return the idempotency keys of a tenant, which all gateways share."""
        return ClusterKeys(self._store, tenant)

    # --- making sessions ---

    async def create(self, new: NewSession) -> SessionInfo:
        return await self._place(new, lambda agent, named, after: agent.agent.create(named, after))

    async def _load(self, new: NewSession, source: str, start: str | None, trust: bool, rerun: bool) -> Restored:
        without: set[str] = set()

        async def load(agent: ConnectedAgent, named: NewSession, after: int | None) -> Restored:
            try:
                return await agent.agent.load(named, after, source, start, trust=trust, rerun=rerun)
            except errors.SnapshotNotFound:
                without.add(agent.info.incarnation)
                raise

        while True:
            try:
                return await self._place(new, load, without)
            except errors.SnapshotNotFound:
                if without >= self.agents.up.keys():
                    raise

    async def _arrive(self, left: LeftSession, incarnation: str) -> Restored:
        """Load a session that has left an agent on another one, which takes the name over."""

        async def load(agent: ConnectedAgent, named: NewSession, after: int | None) -> Restored:
            return await agent.agent.load(named, after, left.snapshot, None, trust=False, rerun=False)

        return await self._place(left.made, load, {incarnation}, self._router.last_epoch)

    async def _place(
        self,
        new: NewSession,
        make: Callable[[ConnectedAgent, NewSession, int | None], Awaitable[T]],
        without: "set[str] | frozenset[str]" = frozenset(),
        after_of: Callable[[str], Awaitable[int]] | None = None,
    ) -> T:
        """Make a session on an agent that fits. An agent that refuses is left out, and the others are asked.

        `after_of` returns the epoch of the last claim on a name. Default: the name must be free.
        """
        if new.session_id is not None:
            check_name(new.session_id)
        tried = set(without)
        async with self._creates.slot(new.tenant, WAIT_SECONDS):
            while True:
                after = None
                if new.session_id is not None:
                    # An agent that has refused may have claimed it before.
                    after = await (after_of or self._router.last_epoch_if_free)(session_key(new.tenant, new.session_id))
                agent = await self._agent_for(new, tried)
                incarnation = agent.info.incarnation
                name = new.session_id or make_name(self._token, new.tenant, incarnation)
                agent.pending += 1
                try:
                    made = await make(agent, msgspec.structs.replace(new, session_id=name), after)
                except FULL:
                    tried.add(incarnation)
                    if new.shares is not None or tried >= self.agents.up.keys():
                        raise
                    continue
                finally:
                    agent.pending -= 1
                self._router.learn(session_key(new.tenant, name), incarnation)
                return made

    async def _agent_for(self, new: NewSession, tried: set[str]) -> ConnectedAgent:
        if new.shares is not None:
            # It has the folder of another session, which is on one machine.
            return await self._router.find(session_key(new.tenant, new.shares))
        places = [each for name, each in self.agents.up.items() if name not in tried]
        chosen = choose(fitting(places, new), new, self._random)
        return self.agents.up[chosen.info.incarnation]

    async def fork(
        self, key: str, names: list[str | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[SessionInfo]:
        """Make live copies of a session, on its own machine."""
        agent = await self._router.find(key)
        tenant, incarnation = tenant_of(key), agent.info.incarnation
        given = [each or make_name(self._token, tenant, incarnation) for each in names]
        for name in given:
            check_name(name)
        after = [
            None if name is None else await self._router.last_epoch_if_free(session_key(tenant, name)) for name in names
        ]
        made = await agent.agent.fork(key, given, after, at=at, reseed=reseed, shares=shares)
        for name in given:
            self._router.learn(session_key(tenant, name), incarnation)
        return made

    # --- finding them ---

    def session(self, key: str) -> SessionHandle:
        found: SessionHandle = handle(SessionHandle, self._router, [["node"], ["session", key]])
        return found

    async def sessions(self, tenant: str) -> list[SessionInfo]:
        found = await on_all(self.agents, lambda node: node.sessions(tenant))
        return sorted((each for one in found for each in one), key=lambda info: info.created_at)

    # --- sums ---

    async def isolation(self) -> Isolation:
        """Return the weakest level of all agents."""
        found = await on_all(self.agents, lambda node: node.isolation())
        return min(found, key=lambda each: LEVELS.index(each.level))

    async def capacity(self) -> Capacity:
        found = await on_all(self.agents, lambda node: node.capacity())
        bound = f"{len(found)} agents hold that many"
        connections = min(each.connections for each in found)
        return Capacity(sum(each.sessions for each in found), bound, "add an agent to the cluster", connections)

    async def load(self, tenant: str) -> Load:
        found = await on_all(self.agents, lambda node: node.load(tenant))
        return Load(
            sum(each.sessions for each in found),
            sum(each.running for each in found),
            sum(each.tasks for each in found),
            [shell for each in found for shell in each.shells],
        )

    async def metrics(self) -> Metrics:
        found = await on_all(self.agents, lambda node: node.metrics())
        return Metrics(
            _sum([each.sessions for each in found]),
            _sum([each.cells for each in found]),
            _histogram([each.cell_seconds for each in found]),
            _histogram([each.start_seconds for each in found]),
            _sum([each.worker_exits for each in found]),
            sum(each.output_bytes for each in found),
            _sum([each.egress for each in found]),
            sum(each.egress_bytes for each in found),
            sum(each.max_sessions for each in found),
            sum(each.starts_waiting for each in found) + self._creates.length,
        )

    async def usage(self) -> MachineUsage:
        """Return what all machines use together. The samples are those of the busiest one."""
        found = await on_all(self.agents, lambda node: node.usage())
        busiest = max(found, key=lambda each: each.samples[-1].cpus if each.samples else 0.0)
        return MachineUsage(
            busiest.samples,
            sum(each.cpus for each in found),
            sum(each.memory_total for each in found),
            sum(each.memory_available for each in found),
            sum(each.sessions for each in found),
        )


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _histogram(parts: list[Histogram]) -> Histogram:
    counts = [sum(values) for values in zip(*(each.counts for each in parts), strict=True)]
    return Histogram(parts[0].bounds, counts, sum(each.sum for each in parts))


def _overloaded(seconds: float) -> errors.Overloaded:
    return errors.Overloaded(min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS))
