"""A local Ray cluster as `ingle cluster up` makes it, and gateways on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingle import errors
from ingle.cluster.fence.watchdog import descendants
from ingle.cluster.node import ClusterNode
from ingle.cluster.ray.directory import RayDirectory
from ingle.cluster.ray.local import LocalCluster
from ingle.cluster.token import FILE, ClusterToken
from ingle.service import Service
from ingle.service.access import Shared
from ingle.settings import Settings
from ingle.store.store import open_store
from support.cluster import cluster_node_of, variables
from support.processes import command_line
from support.server import Server
from support.waiting import until, wait_until

AGENT = "ingle.cluster.agent"

UP_SECONDS = 300.0
"""Time limit of one command. A node takes some seconds, more beside other work."""

SETTINGS = {"INGLE_PRELOAD": "", "INGLE_POOL": "1"}
"""Settings of agents and gateways."""


class RayCluster:
    """A cluster with some nodes. Tests kill parts of it; `repair` starts them again."""

    def __init__(self, home: Path, nodes: int, settings: Settings | None = None) -> None:
        """Agents have these settings; usually those of `SETTINGS`."""
        self.home = home
        self.nodes = nodes
        self.local = LocalCluster(home)
        self.settings = settings
        given = SETTINGS if settings is None else variables(settings)
        self.environment = {**os.environ, **given, "INGLE_HOME": str(home)}

    def ingle(self, *words: str) -> str:
        """Run a command line of ingle; what it prints."""
        ran = subprocess.run(
            [sys.executable, "-m", "ingle", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def repair(self) -> None:
        """Start what a test has killed."""
        self.ingle("cluster", "up", "--nodes", str(self.nodes), "--no-gateway")

    def gateway(self, *flags: str, home: Path | None = None) -> Server:
        """Start a gateway of its own, beside others."""
        environment = {**SETTINGS, **self.local.cluster_variables(), **self.local.ray_variables()}
        return Server(home or self.home, "--cluster", f"ray://{self.local.address}", *flags, env=environment)

    async def service(self) -> Service:
        """Return a gateway in this process, connected to all agents."""
        assert self.settings is not None
        directory = RayDirectory(self.local.address, self.local.ray_variables())
        store = await asyncio.to_thread(open_store, self.local.store)
        token = ClusterToken.read(self.local.folder / FILE)
        node = ClusterNode(self.settings, self.home / "service", directory, token, store, directory.silence)
        made = Service(self.settings, node, shared=Shared(node.key_store))
        await made.start()
        assert await until(lambda: len(node.agents.up) == self.nodes, UP_SECONDS)
        return made

    async def wait_reached(self, gateway: Service) -> None:
        """Wait until a gateway in this process reaches all agents. While its event loop stands still, links end."""
        node = cluster_node_of(gateway)
        async with asyncio.timeout(UP_SECONDS):
            while True:
                with contextlib.suppress(errors.Unavailable, errors.NodeLost):
                    await gateway.list_sessions()
                    if len(node.agents.up) == self.nodes:
                        return
                await asyncio.sleep(0.05)

    def agent_of(self, node: str) -> int:
        """The pid of a node's agent."""
        assert wait_until(lambda: len(self.agents_of(node)) == 1, 60), self.agents_of(node)
        (found,) = self.agents_of(node)
        return found

    def agents_of(self, node: str) -> set[int]:
        """The agents of a node that run or start. Usually there is one."""
        return {pid for pid, _ in descendants(self._node(node).pid) if is_agent(pid)}

    def _node(self, name: str) -> Any:
        (found,) = [node for node in self.local.state.nodes if node.name == name]
        return found


def is_agent(pid: int) -> bool:
    words = command_line(pid).split()
    return AGENT in words and "ingle.cluster.fence.watchdog" not in words


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    assert wait_until(condition, seconds)
