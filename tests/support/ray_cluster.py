"""A local Ray cluster as `ingle cluster up` makes it, and gateways on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingle.cluster.fence.watchdog import descendants
from ingle.cluster.ray.local import LocalCluster
from support.processes import command_line
from support.server import Server
from support.waiting import wait_until

AGENT = "ingle.cluster.agent"

UP_SECONDS = 300.0
"""Time limit of one command. A node takes some seconds, more beside other work."""

SETTINGS = {"INGLE_PRELOAD": "", "INGLE_POOL": "1"}
"""Settings of agents and gateways."""


class RayCluster:
    """A cluster with some nodes. Tests kill parts of it; `repair` starts them again."""

    def __init__(self, home: Path, nodes: int) -> None:
        self.home = home
        self.nodes = nodes
        self.local = LocalCluster(home)
        self.environment = {**os.environ, **SETTINGS, "INGLE_HOME": str(home)}

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

    def agent_of(self, node: str) -> int:
        """The pid of a node's agent."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid, _ in descendants(self._node(node).pid) if is_agent(pid)]
            return len(found) == 1

        assert wait_until(look, 60), found
        return found[0]

    def _node(self, name: str) -> Any:
        (found,) = [node for node in self.local.state.nodes if node.name == name]
        return found


def is_agent(pid: int) -> bool:
    words = command_line(pid).split()
    return AGENT in words and "ingle.cluster.fence.watchdog" not in words


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    assert wait_until(condition, seconds)
