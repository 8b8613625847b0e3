"""The node of this machine as its agent serves it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from ingle.cluster.offer import AgentStatus
from ingle.isolation.limits.usage_samples import machine_memory
from ingle.nodes.local import LocalNode
from ingle.settings import Settings

PLACE = "agent"
"""Kind of server, for the durable sessions of a data folder."""

STATUS_SECONDS = 0.1
"""Time between two looks at how busy this machine is."""


MEMORY_STEP = 64 * 1024 * 1024
"""Bytes to which the available memory is rounded: smaller changes are not told."""


class ServedNode:
    """Implementation of the protocol `Agent`."""

    def __init__(self, settings: Settings, home: Path, incarnation: str) -> None:
        self.incarnation = incarnation
        self.node = LocalNode(settings, home, PLACE)
        self._draining = False

    async def start(self) -> None:
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()

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
