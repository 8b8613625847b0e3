"""A store that fails or hangs under a cluster: sessions go on through any gateway, and nothing has two owners."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from ingle import errors
from ingle.cluster.directory import AgentInfo
from ingle.cluster.fence.watchdog import END_SECONDS, FENCED, now
from ingle.service import Service
from ingle.settings import Settings
from support.cluster import TOKEN, AgentProcess, Cluster, cluster, variables
from support.faulty_store import FaultyStore, faulty_store, refuse, reset, writes
from support.object_store import bucket, environment, s3_server
from support.waiting import until

pytestmark = pytest.mark.req("node.once", "store.remote")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def proxy(s3: str) -> Iterator[FaultyStore]:
    with faulty_store(s3) as made:
        yield made


@pytest.fixture
async def troubled(proxy: FaultyStore, cluster_settings: Settings) -> AsyncIterator[Cluster]:
    """A cluster of two agents, whose bucket is behind the proxy."""
    with bucket(proxy.url, f"b-{uuid4().hex}") as url:
        async with cluster(cluster_settings, 2, url) as made:
            yield made


async def test_any_gateway_serves_any_session_while_the_store_fails(troubled: Cluster, proxy: FaultyStore) -> None:
    first, second = await troubled.gateway(), await troubled.gateway()
    await first.create_session("plain")
    await first.create_session("kept", durable=True)
    with proxy.failing(reset):
        for name in ("plain", "kept"):
            assert (await first.execute(name, "x = 1")).success
            # This gateway has to find out where they are.
            assert (await second.execute(name, "x")).result == {"text/plain": "1"}
        # A generated name needs no claim. A chosen one cannot be given now.
        generated = (await second.create_session()).session_id
        assert (await first.execute(generated, "1")).success
        with pytest.raises(errors.StoreFailed, match="check the network and the store"):
            await second.create_session("chosen")
        with pytest.raises(errors.StoreFailed):
            await second.execute("missing", "1")
    assert (await second.create_session("chosen")).session_id == "chosen"
    async with asyncio.timeout(30):
        while (await first.get_session("kept")).saved_cell != 2:
            await asyncio.sleep(0.05)


async def test_a_session_whose_restore_met_a_full_store_is_restored_later(
    troubled: Cluster, proxy: FaultyStore
) -> None:
    """An agent has taken the claim and could not write the save. The next call restores the session, once."""
    gateway, other = await troubled.gateway(), await troubled.gateway()
    node = (await gateway.create_session("kept", durable=True)).node
    await gateway.execute("kept", "x = 41")
    async with asyncio.timeout(30):
        while (await gateway.get_session("kept")).saved_cell != 1:
            await asyncio.sleep(0.05)
    lost, left = sorted(troubled.agents, key=lambda each: each.info.node != node)
    with proxy.failing(writes(refuse(507, "InsufficientStorage"), "/saves/")):
        lost.kill()
        with pytest.raises(errors.StoreFull, match="is full"):
            await answered(gateway, "kept")
    asked = (each.execute("kept", "x + 1") for each in (gateway, other))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    results = [each.result for each in answers if not isinstance(each, BaseException)]
    # One of the two may find the session busy with the cell of the other.
    assert results in ([{"text/plain": "42"}], [{"text/plain": "42"}] * 2), answers
    assert [each.node for each in await other.list_sessions()] == [left.info.node]


async def answered(gateway: Service, name: str) -> None:
    """Call a session until its agent is known to be lost."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(errors.NodeLost, errors.Unavailable):
                await gateway.execute(name, "x")
                return


async def test_a_store_that_hangs_ends_no_session_while_the_head_answers(
    proxy: FaultyStore, cluster_settings: Settings, apart: Path, mark: str
) -> None:
    with bucket(proxy.url, f"b-{uuid4().hex}") as url:
        async with watched_agent(apart, url, proxy, cluster_settings) as (process, info, head):
            made = Cluster(apart, cluster_settings, url)
            made.agents = [AgentProcess(process, info)]
            gateway = await made.gateway()
            await gateway.create_session("s")
            with proxy.held():
                held_at = now()
                # Longer than sessions live without a renewal. The head alone renews the lease.
                while now() - held_at < END_SECONDS + 1.0:
                    assert (await gateway.execute("s", "1")).success
                head.kill()
                assert await until(lambda: process.returncode is not None, 30)
            assert process.returncode == FENCED
            made.agents[0].killed = True
            await gateway.stop()


HEAD = """
import time
while True:
    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    time.sleep(0.1)
"""
"""Program that renews a lease at the head. A process of its own: nothing in this one delays it."""


@contextlib.asynccontextmanager
async def watched_agent(
    home: Path, store: str, proxy: FaultyStore, settings: Settings
) -> AsyncIterator[tuple[asyncio.subprocess.Process, AgentInfo, "subprocess.Popen[bytes]"]]:
    """An agent below its watchdog, as an actor of Ray starts it, and the process that renews its lease at the head."""
    token = home / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    arguments = [f"--home={home / 'agent'}", "--node=n1", f"--token-file={token}"]
    reading, writing = os.pipe()
    head = subprocess.Popen([sys.executable, "-S", "-c", HEAD], stdout=writing)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ingle.cluster.fence.watchdog"),
        *(sys.executable, "-m", "ingle.cluster.agent", *arguments),
        stdin=reading,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment(proxy.url), **variables(settings), "INGLE_STORE": store},
    )
    os.close(reading)
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield process, msgspec.json.decode(line, type=AgentInfo), head
    finally:
        head.kill()
        head.wait()
        # The end of this pipe would end the agent gracefully.
        os.close(writing)
        await process.wait()
