"""What sessions and uploads send takes no more memory in the server than its bounds allow, whatever it decodes to."""

import asyncio
import hashlib
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from ingle import errors
from ingle.service import Service
from ingle.sessions.files import Agent, Listed
from ingle.snapshots.pack import END, HEAD, TAIL, Index
from ingle.trees.agent import AgentLost, TreeAgent
from ingle_worker.wire import files as wire
from ingle_worker.wire import snapshot_channel

pytestmark = [pytest.mark.req("safe.isolation")]

MAX_GROWTH = 200_000_000


def big_manifest() -> str:
    """Return the manifest of a snapshot, of thirty megabytes that decode to nine hundred."""
    empty_lists = ",".join(["[]"] * 10_000_000)
    summary = (
        '{"groups":[{"names":[],"stream":[],"buffers":['
        + empty_lists
        + ']}],"skipped":[],"sources":[],"random":{"stream":[]},"flags":0,"packages":{},"environ":{}}'
    )
    return (
        '{"version":1,"session_id":"s","saved_at":0,"python":"3.12","isolation":"none","cell":0,"stdlib":true,"summary":'
        + summary
        + "}"
    )


async def peak_of(call: Callable[[], Awaitable[object]], failure: type[Exception]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(failure):
            await call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_an_uploaded_list_of_contents_stays_within_its_bounds(service: Service) -> None:
    index = msgspec.json.encode(Index([], big_manifest(), ""))
    data = HEAD + index + END.pack(hashlib.sha256(index).digest(), len(index), TAIL)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1 << 20):
            yield data[start : start + (1 << 20)]

    assert await peak_of(lambda: service.write_snapshot("x", chunks()), errors.SnapshotDamaged) < MAX_GROWTH


async def test_a_summary_of_a_save_stays_within_its_bounds(service: Service, run) -> None:
    await run("""
import ingle_worker.snapshot.chunks as channel
class Json:
    @staticmethod
    def dumps(summary, **options):
        summary["groups"] = [{"names": [], "stream": [], "buffers": [[]] * 10_000_000}]
        return __import__("json").dumps(summary, separators=(",", ":"))
channel.json = Json
""")
    assert await peak_of(lambda: service.save_session("s", "x"), errors.SaveFailed) < MAX_GROWTH
    assert (await run("1 + 1")).status == "ok"


async def test_a_save_has_no_more_chunks_than_its_bound(service: Service, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_channel, "MAX_CHUNKS", 100)
    await run("""
import ingle_worker.snapshot.chunks as channel
def finish(self, summary):
    for number in range(200):
        self.chunk(memoryview(b"%d" % number), owned=True)
        self.flush()
channel.Offers.finish = finish
""")
    with pytest.raises(errors.TooLarge, match="more than 100 parts"):
        await service.save_session("s", "x")


@pytest.mark.parametrize(
    "reply",
    [
        lambda: '{"files":[' + ",".join(['["","file",0,0]'] * 1_000_000) + "]}",
        lambda: '{"files":[["' + "x" * 10_000_000 + '","file",0,0]]}',
        lambda: '{"files":[["x","anything",0,0]]}',
        lambda: '{"files":[["x","file",-1,0]]}',
        lambda: '{"why":"' + "x" * 1_000_000 + '"}',
        lambda: "[" * 1_000_000,
    ],
    ids=["many", "a long name", "a kind of its own", "a negative size", "a long reason", "depth"],
)
async def test_a_reply_of_a_file_agent_stays_within_its_bounds(reply: Callable[[], str]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    agent = Agent(ours)
    data = reply().encode()
    with ours, theirs:
        sending = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(theirs, wire.LENGTH.pack(len(data)) + data)
        )
        try:
            assert await peak_of(lambda: agent.receive_reply(Listed), errors.Unavailable) < 4 * len(data) + 1_000_000
        finally:
            sending.cancel()


def test_an_answer_of_an_agent_for_a_whole_folder_stays_within_its_bounds() -> None:
    ours, theirs = socket.socketpair()
    entry = b'["f","",0,0,0,0,0,""],'
    data = b"[" + entry * 700_000 + entry[:-1] + b"]"
    with ours, theirs:

        def answer() -> None:
            for each in (b"{}", data):
                theirs.recv(1000)
                # Not joined: the copy would count as memory of the reader.
                theirs.sendall(wire.LENGTH.pack(len(each)))
                theirs.sendall(each)

        answering = threading.Thread(target=answer)
        answering.start()
        agent = TreeAgent(ours, "/")
        tracemalloc.start()
        try:
            with pytest.raises(AgentLost):
                agent.entries(10)
            assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
        finally:
            tracemalloc.stop()
            answering.join()
