"""Sessions over WebSockets, by the `websockets` library: many watchers, from any event, and clients that take part."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.server import NDJSON, PATIENCE, Server
from support.waiting import wait_until


@asynccontextmanager
async def watch(server: Server, name: str = "main", query: str = "", **options: Any) -> AsyncIterator[ClientConnection]:
    url = f"{server.url.replace('http', 'ws')}/v1/sessions/{name}/events{query}"
    headers = {"Authorization": f"Bearer {server.token}", **options.pop("headers", {})}
    async with connect(url, additional_headers=headers, compression=None, proxy=None, **options) as socket:
        yield socket


async def next_frame(connection: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        return json.loads(await connection.recv())


async def until_done(connection: ClientConnection, cell: int = 1) -> list[dict[str, Any]]:
    """Frames up to the `done` of a cell."""
    frames = []
    while True:
        frames.append(await next_frame(connection))
        if frames[-1]["type"] == "done" and frames[-1]["cell"] == cell:
            return frames


async def closing(connection: ClientConnection) -> tuple[int, str]:
    """Read to the end; code and reason of it."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            async with asyncio.timeout(PATIENCE):
                await connection.recv()
    assert connection.close_code is not None
    return connection.close_code, connection.close_reason or ""


async def ask(connection: ClientConnection, **message: Any) -> dict[str, Any]:
    """Send a message; its reply, passing over events."""
    await connection.send(json.dumps(message))
    while True:
        frame = await next_frame(connection)
        if frame["type"] == "reply":
            assert frame["id"] == message["id"]
            return frame


@pytest.mark.req("http.stream")
async def test_many_watch_one_session_and_late_ones_from_any_event(server: Server) -> None:
    server.make_session()
    async with watch(server) as first, watch(server) as second:
        streamed = server.client.post(
            "/v1/sessions/main/execute", json={"code": "print('one')\nprint('two')\n3"}, headers=NDJSON
        )
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        seen, also = await until_done(first), await until_done(second)
    assert seen == also
    assert [frame["seq"] for frame in seen] == list(range(1, len(seen) + 1))
    # The same events, in the same JSON, as a stream of the execute has.
    assert [frame for frame in seen if frame["cell"] == 1] == lines
    async with watch(server, query="?from=3") as late, watch(server, query="?from=1000") as early:
        assert await until_done(late) == seen[2:]
        server.execute("4")
        # One who asks for numbers to come gets nothing before them.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await early.recv()


@pytest.mark.req("http.stream")
async def test_a_client_executes_answers_and_interrupts_over_its_websocket(server: Server) -> None:
    server.make_session()
    async with watch(server) as connection:
        assert await ask(connection, op="interrupt", id="idle") == {"type": "reply", "id": "idle", "cell": None}
        code = "import os\nprint(os.environ['COLOUR'], input('name? '))"
        begun = await ask(connection, op="execute", id="r1", code=code, envs={"COLOUR": "teal"})
        assert begun == {"type": "reply", "id": "r1", "cell": 1}
        while (await next_frame(connection))["type"] != "input_wait":
            pass
        assert await ask(connection, op="input", id="r2", text="Ada") == {"type": "reply", "id": "r2", "cell": 1}
        frames = await until_done(connection)
        assert "".join(frame["text"] for frame in frames if frame["type"] == "stdout").endswith("teal Ada\n")

        assert (await ask(connection, op="execute", id="r3", code="while True: pass"))["cell"] == 2
        refused = await ask(connection, op="execute", id="r4", code="x = 1")
        assert (refused["problem"]["code"], refused["problem"]["status"], refused["problem"]["cell"]) == (
            "busy",
            409,
            2,
        )
        # A message that waits for its turn does not hold up those behind it.
        await connection.send(json.dumps({"op": "execute", "id": "r5", "code": "5", "queue": True}))
        assert (await ask_among(connection, op="interrupt", id="r6"))["cell"] == 2
        results = [frame for frame in await until_done(connection, 3) if frame["type"] == "done"]
        assert [(done["cell"], done["result"]["status"]) for done in results][-2:] == [(2, "interrupted"), (3, "ok")]


async def ask_among(connection: ClientConnection, **message: Any) -> dict[str, Any]:
    """As `ask`, where other replies may come first."""
    await connection.send(json.dumps(message))
    while True:
        frame = await next_frame(connection)
        if frame["type"] == "reply" and frame["id"] == message["id"]:
            return frame


@pytest.mark.req("http.stream")
async def test_closing_a_websocket_ends_nothing(server: Server) -> None:
    server.make_session()
    async with watch(server) as connection:
        await ask(connection, op="execute", id="1", code="import time\ntime.sleep(0.5)\nprint('on')")
        await connection.send(json.dumps({"op": "execute", "id": "2", "code": "6 * 7", "queue": True}))
        await ask_among(connection, op="execute", id="3", code="")
    assert wait_until(lambda: server.client.get("/v1/sessions/main").json()["execution_count"] == 2)
    assert server.cell(1)["stdout"] == "on\n"
    assert server.cell(2, wait=PATIENCE)["result"] == {"text/plain": "42"}


async def test_an_unknown_session_and_one_that_ends_close_with_4404(server: Server) -> None:
    async with watch(server, "nobody") as connection:
        code, reason = await closing(connection)
    assert (code, reason) == (4404, "there is no session 'nobody'; list the sessions, or create it first")
    server.make_session()
    async with watch(server) as connection:
        await next_frame(connection)
        server.client.delete("/v1/sessions/main")
        assert await closing(connection) == (4404, "session 'main' has ended")


@pytest.mark.req("safe.input")
@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]",
        "{}",
        '{"op": "execute", "id": "1"}',
        '{"op": "execute", "id": "1", "code": 5}',
        '{"op": "execute", "id": "1", "code": "", "lang": "R"}',
        '{"op": "destroy", "id": "1"}',
        b"\xff\xfe",
        "[" * 100_000,
    ],
)
async def test_a_bad_message_closes_with_4400_and_says_why(server: Server, message: Any) -> None:
    server.make_session()
    async with watch(server) as other, watch(server) as connection:
        await connection.send(message)
        code, reason = await closing(connection)
        assert (code, reason[:15]) == (4400, "not a message: ")
        assert (await ask(other, op="execute", id="1", code="1"))["cell"] == 1


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Authorization": "Bearer wrong"}, 401),
    ],
)
async def test_a_websocket_is_refused_before_it_is_accepted(
    server: Server, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with watch(server, headers=headers):
            pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"")["status"] == status


async def test_a_websocket_elsewhere_or_with_a_bad_query_is_a_problem(server: Server) -> None:
    for name, query, status in (("main/more", "", 404), ("main", "?from=x", 422), ("main", "?form=1", 422)):
        with pytest.raises(InvalidStatus) as refused:
            async with watch(server, name, query):
                pass
        assert refused.value.response.status_code == status


@pytest.mark.fresh_service
async def test_a_server_that_stops_tells_watchers_the_end_of_their_cells_first(server: Server) -> None:
    server.make_session()
    async with watch(server) as connection:
        await ask(connection, op="execute", id="1", code="import time\ntime.sleep(600)")
        server.process.terminate()
        frames = await until_done(connection)
        assert frames[-1]["result"]["status"] == "exit"
        assert await closing(connection) == (1001, "the server is stopping")
    assert server.process.wait(PATIENCE) == 0
