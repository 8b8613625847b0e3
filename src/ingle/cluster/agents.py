"""The agents that a gateway is connected to: links that are opened again, their load, and which agents are over."""

import asyncio
import contextlib
import errno
import logging
from functools import partial
from typing import Protocol

from ingle import errors
from ingle.cluster.directory import AgentInfo, Directory
from ingle.cluster.offer import Agent, AgentStatus
from ingle.cluster.remote import remote_agent
from ingle.cluster.token import ClusterToken
from ingle.cluster.wire.link import Link
from ingle.store.leases import Renewal
from ingle.support.background import run_forever

RECONNECT_SECONDS = 0.25
"""Pause before a link is opened again; it doubles up to the next."""

MAX_RECONNECT_SECONDS = 2.0

JUDGED_SECONDS = 0.2
"""Longest time for which a judgement of a lost agent holds. Routers ask again after it, or when it may have ended."""

MAX_OVER = 10_000
"""Ended agents that a gateway remembers."""

logger = logging.getLogger(__name__)


class ConnectedAgent:
    """An agent that answers."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.info = link.info
        self.agent: Agent = remote_agent(link)
        self.status: AgentStatus | None = None
        self.pending = 0


class Judge(Protocol):
    """Tells which agents have ended."""

    def tell(self, incarnation: str, renewal: Renewal) -> None:
        """Note a sign of life of an agent."""
        ...

    async def remaining(self, incarnation: str) -> float | None:
        """Return in how many seconds an agent that is out of reach has ended if it stays silent; None if unknown."""
        ...


class Agents:
    """Connections to all agents of a directory."""

    def __init__(self, directory: Directory, token: ClusterToken, judge: Judge) -> None:
        self._directory = directory
        self._token = token
        self._judge = judge
        self._following: dict[str, asyncio.Task[None]] = {}
        self._over: dict[str, str] = {}
        """Agents whose process has ended, with the names of their nodes."""
        self._judging: dict[str, asyncio.Task[float | None]] = {}
        """Judgements of lost agents that are under way or fresh."""
        self._changed = asyncio.Event()
        self.up: dict[str, ConnectedAgent] = {}
        """Connected agents, by incarnation."""

    async def start(self) -> None:
        await self._directory.start(self._on_change)

    def _on_change(self) -> None:
        """Follow the agents that the directory has now."""
        known = self._directory.agents()
        for name in [each for each in self._following if each not in known]:
            self._following.pop(name).cancel()
        loop = asyncio.get_running_loop()
        for name, info in known.items():
            if name not in self._following:
                following = run_forever(f"following the agent {name}", partial(self._follow, info))
                self._following[name] = loop.create_task(following)

    async def _follow(self, info: AgentInfo) -> None:
        """Keep a link to the agent at an address, whichever run of it is there."""
        pause = RECONNECT_SECONDS
        last: AgentInfo | None = None
        while True:
            try:
                link = await Link.open(info.host, info.port, self._token)
            except errors.Unreachable as error:
                if last is not None and _is_refused(error):
                    # Nothing listens there: the process has ended, and its sessions with it.
                    self._end(last)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RECONNECT_SECONDS)
                continue
            if last is not None and last.incarnation != link.info.incarnation:
                self._end(last)
            last, pause = link.info, RECONNECT_SECONDS
            try:
                await self._use(ConnectedAgent(link))
            finally:
                link.close()

    async def _use(self, connected: ConnectedAgent) -> None:
        """Follow the status of an agent until its link breaks."""
        incarnation = connected.info.incarnation
        hearing = asyncio.get_running_loop().create_task(self._hear(connected))
        try:
            async for status in connected.agent.statuses():
                connected.status = status
                if incarnation not in self.up:
                    self.up[incarnation] = connected
                    self._tell()
        except errors.IngleError as error:
            logger.warning("the agent on %s is out of reach: %s", connected.info.node, error.message)
        finally:
            hearing.cancel()
            if self.up.get(incarnation) is connected:
                del self.up[incarnation]
                # The first look begins a watch, so it does not wait for a caller.
                self._begin_judging(incarnation)
            self._tell()

    async def _hear(self, connected: ConnectedAgent) -> None:
        """Note the renewals of an agent's lease until its link breaks."""
        with contextlib.suppress(errors.IngleError):
            async for renewal in connected.agent.renewals():
                self._judge.tell(connected.info.incarnation, renewal)

    def _end(self, info: AgentInfo) -> None:
        if len(self._over) >= MAX_OVER:
            del self._over[next(iter(self._over))]
        self._over[info.incarnation] = info.node
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def node_of(self, incarnation: str) -> str:
        """Return the name of an agent's machine, as far as it is known."""
        return self._over.get(incarnation, incarnation)

    async def remaining(self, incarnation: str) -> float | None:
        """Return after how many seconds of silence an agent has ended, so that its sessions run nowhere.

        0.0: it has certainly ended. None: it is connected, or nobody knows. All who ask within a moment share the
        requests to the store.
        """
        if incarnation in self._over:
            return 0.0
        if incarnation in self.up:
            return None
        # One who asks may be cancelled.
        return await asyncio.shield(self._begin_judging(incarnation))

    def _begin_judging(self, incarnation: str) -> "asyncio.Task[float | None]":
        judging = self._judging.get(incarnation)
        if judging is None:
            judging = asyncio.get_running_loop().create_task(self._judge_once(incarnation))
            self._judging[incarnation] = judging
        return judging

    async def _judge_once(self, incarnation: str) -> float | None:
        holds = JUDGED_SECONDS
        try:
            remaining = await self._judge.remaining(incarnation)
            if remaining:
                holds = min(holds, remaining)
            return remaining
        finally:
            loop = asyncio.get_running_loop()
            loop.call_later(holds, self._judging.pop, incarnation, None)

    async def wait_changed(self, seconds: float) -> None:
        """Wait until an agent has come or gone, or for `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def stop(self) -> None:
        # The end of a link begins to judge its agent.
        for tasks in (self._following, self._judging):
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        await self._directory.stop()


def _is_refused(error: errors.Unreachable) -> bool:
    cause = error.__context__
    return isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED
