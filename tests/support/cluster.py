"""Clusters for tests: agents as processes of their own, and a gateway in this one."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import msgspec

from ingle import errors
from ingle.callers import Caller
from ingle.cluster.directory import AgentInfo, StaticDirectory
from ingle.cluster.node import ClusterNode
from ingle.cluster.token import ClusterToken
from ingle.service import Service
from ingle.service.access import Shared
from ingle.settings import Settings
from ingle.store.store import open_store
from support.waiting import until

TOKEN = "the token of a cluster of tests"

TENANTS = ("", "alice", "bob", "one", "two")
"""Tenants whose sessions are ended between tests."""


class AgentProcess:
    """One agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, info: AgentInfo) -> None:
        self.process = process
        self.info = info
        self.killed = False

    @classmethod
    async def start(
        cls, home: Path, node: str, store: str, settings: Settings, *, port: int = 0, labels: tuple[str, ...] = ()
    ) -> "AgentProcess":
        read, write = os.pipe()
        os.write(write, TOKEN.encode())
        os.close(write)
        arguments = [f"--home={home}", f"--node={node}", f"--port={port}", f"--token-fd={read}", "--until-eof"]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ingle.cluster.agent", *arguments, *(f"--label={each}" for each in labels)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=[read],
                env={**os.environ, **variables(settings), "INGLE_STORE": store},
            )
        finally:
            os.close(read)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        return cls(process, msgspec.json.decode(line, type=AgentInfo))

    def kill(self) -> None:
        self.killed = True
        self.process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), 60)


def variables(settings: Settings) -> dict[str, str]:
    """Return the environment that gives an agent these settings, where they are not the usual ones."""
    usual = Settings()
    found = {}
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != getattr(usual, each.name):
            found[f"INGLE_{each.name.upper()}"] = ",".join(value) if isinstance(value, list) else str(value)
    return found


def cluster_node_of(gateway: Service) -> ClusterNode:
    assert isinstance(gateway._node, ClusterNode)
    return gateway._node


class Cluster:
    """Agents with a common store, and the gateways that a test asks for."""

    def __init__(self, folder: Path, settings: Settings, store: str | None = None) -> None:
        """`store` is the URL of a bucket. Without one the cluster has a folder."""
        self.folder = folder
        self.settings = settings
        self.store = store or str(folder / "store")
        self.agents: list[AgentProcess] = []
        self._gateways: list[Service] = []

    async def grow(self, count: int = 1, *labels: str) -> None:
        first = len(self.agents) + 1
        self.agents += await asyncio.gather(
            *(
                AgentProcess.start(self.folder / f"n{number}", f"n{number}", self.store, self.settings, labels=labels)
                for number in range(first, first + count)
            )
        )

    async def gateway(self) -> Service:
        """Return a new gateway, connected to all agents."""
        directory = StaticDirectory([(each.info.host, each.info.port) for each in self.agents])
        store = await asyncio.to_thread(open_store, self.store)
        node = ClusterNode(self.settings, self.folder / "gateway", directory, ClusterToken(TOKEN), store)
        service = Service(self.settings, node, shared=Shared(node.key_store))
        await service.start()
        self._gateways.append(service)
        alive = [each for each in self.agents if not each.killed]
        assert await until(lambda: len(node.agents.up) == len(alive), 30)
        return service

    async def stop(self) -> None:
        for gateway in self._gateways:
            if not gateway.stopping:
                await gateway.stop()
        await asyncio.gather(*(each.stop() for each in self.agents))


async def clean(gateway: Service) -> None:
    """End the sessions and tasks of the owner and of the tenants that tests have."""
    for tenant in TENANTS:
        service = gateway.acting_for(Caller("cleaner", tenant))
        for task in await service.shell_tasks():
            if task.status in ("running", "paused"):
                await service.shell_cancel(task.task_id)
        for session in await service.list_sessions():
            with contextlib.suppress(errors.SessionNotFound):
                await service.end_session(session.session_id)
        for snapshot in await service.list_snapshots():
            await service.delete_snapshot(snapshot.name)


@contextlib.asynccontextmanager
async def cluster(settings: Settings, count: int, store: str | None = None) -> AsyncIterator[Cluster]:
    """Start a cluster for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="ingle-cluster-") as folder:
        made = Cluster(Path(folder), settings, store)
        try:
            await made.grow(count)
            yield made
        finally:
            await made.stop()
