"""Directory of agents that Ray has placed, read through a child process."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ingle.cluster.directory import AgentInfo
from ingle.errors import InvalidRequest, Unavailable
from ingle.support.background import run_forever

logger = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
"""Time limit for the first agent of a cluster."""

FRESH_SECONDS = 2.0
"""Age up to which a report says something about now. The link reports ten times a second."""

PROBE_SECONDS = 0.5
"""Interval at which a head that is away is looked for, and time limit of one look."""

MAX_LINE_BYTES = 16 * 1024 * 1024

SCHEME = "ray://"


class Seen(Struct, frozen=True):
    """What the head knows of an agent."""

    info: AgentInfo
    silent: float
    """Seconds without a renewal when the head was read."""


class Report(Struct, frozen=True):
    """One reading of the head."""

    agents: dict[str, Seen] = field(default_factory=dict)
    draining: list[str] = field(default_factory=list)
    target: int | None = None


class RayDirectory:
    """Agents of a Ray cluster. What was known stays known while the link or the head is away."""

    def __init__(self, address: str, environment: dict[str, str] | None = None) -> None:
        self._address = address
        self._environment = environment or {}
        self._report = Report()
        self._read_at = float("-inf")
        self._heard = asyncio.Event()
        """Set once an agent is known."""
        self._link: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self, on_change: Callable[[], None]) -> None:
        """Begin to follow the agents. Wait for the first one, which Ray may have to start, or for a while.

        A wrong address is an error of the start.
        """
        self._following = asyncio.get_running_loop().create_task(
            run_forever("following the agents of Ray", lambda: self._follow(on_change))
        )
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                await self._heard.wait()
        except TimeoutError:
            if self._read_at > float("-inf"):
                return  # the cluster has no node for an agent yet
            await self.stop()
            raise Unavailable(
                f"no Ray cluster answers at {self._address!r} within {FIRST_SECONDS:.0f} s; check the address and "
                "RAY_AUTH_TOKEN_PATH, and run `ray start --address=...` on this machine first"
            ) from None

    def agents(self) -> dict[str, AgentInfo]:
        """Return the agents, also those that were silent for a moment."""
        return {incarnation: seen.info for incarnation, seen in self._report.agents.items()}

    def draining(self) -> set[str]:
        """Return the nodes that get no more sessions."""
        return set(self._report.draining)

    def silence(self, incarnation: str) -> float | None:
        """Return the seconds without a renewal at the head, or None while the head cannot be read.

        An agent that the head no longer lists has been replaced or ended long ago.
        """
        age = time.monotonic() - self._read_at
        if age > FRESH_SECONDS:
            return None
        seen = self._report.agents.get(incarnation)
        return float("inf") if seen is None else seen.silent

    async def scale(self, count: int) -> None:
        await self._order({"scale": count})

    async def drain(self, node: str) -> None:
        await self._order({"drain": node})

    async def undrain(self, node: str) -> None:
        """Let a node have sessions again."""
        await self._order({"undrain": node})

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
            self._following = None

    async def _order(self, order: dict[str, int] | dict[str, str]) -> None:
        link = self._link
        if link is None or link.stdin is None:
            raise Unavailable("the link to Ray is away; try again in a few seconds")
        try:
            link.stdin.write(msgspec.json.encode(order) + b"\n")
            await link.stdin.drain()
        except ConnectionError:
            raise Unavailable("the link to Ray has just ended; try again in a few seconds") from None

    async def _wait_for_head(self) -> None:
        """Wait until the head accepts connections: starting a link in vain takes a second of a processor."""
        host, _, port = self._address.rpartition(":")
        while port.isdecimal():
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:  # TimeoutError is one
                await asyncio.sleep(PROBE_SECONDS)
            else:
                writer.close()
                return

    async def _follow(self, on_change: Callable[[], None]) -> None:
        """Run one link until it ends."""
        await self._wait_for_head()
        link = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ingle.cluster.ray.raylink",
            self._address,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment},
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
        self._link = link
        assert link.stdout is not None
        try:
            async for line in link.stdout:
                report = msgspec.json.decode(line, type=Report)
                changed = report.agents.keys() != self._report.agents.keys() or report.draining != self._report.draining
                self._report, self._read_at = report, time.monotonic()
                if report.agents:
                    self._heard.set()
                if changed:
                    on_change()
            logger.warning("the link to Ray ended; sessions go on, and the link is started again")
        finally:
            self._link = None
            with contextlib.suppress(ProcessLookupError):
                link.kill()
            await link.wait()


def read_address(text: str, home: Path) -> tuple[str, dict[str, str]]:
    """Return the head's address of `auto` or `ray://host:port`, and the variables that a process of Ray needs.

    `auto` is the local cluster of this data folder if there is one, else the cluster that this machine is a node of.
    """
    from ingle.cluster.ray.local import LocalCluster

    local = LocalCluster(home)
    if text == "auto":
        return (local.address, local.ray_variables()) if local.exists() else ("auto", {})
    address = text.removeprefix(SCHEME).rstrip("/")
    host, _, port = address.rpartition(":")
    if not text.startswith(SCHEME) or not host or not port.isdecimal():
        raise InvalidRequest(f"{text[:80]!r} is not the address of a Ray head; write ray://host:port, or auto")
    known = local.exists() and local.address == address
    return address, local.ray_variables() if known else {}
