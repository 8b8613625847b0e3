"""The MCP door over HTTP, behind the guard: both eras, reconnecting, and who is not let in."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.mcp_host import CURRENT, ENVELOPE, INITIALIZE, LEGACY, text_of
from support.server import Server, problem
from support.tokens import ingle_token
from support.waiting import until

ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def official(server: Server, mode: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    http = httpx2.AsyncClient(headers=headers, timeout=60)
    async with http, Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as client:
        yield client


def by_hand(server: Server, method: str, params: dict[str, Any], **headers: str) -> dict[str, Any]:
    """One request in JSON, and its answer, as JSON or out of an event stream."""
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = server.client.post("/mcp", json=message, headers={**ACCEPT, **headers})
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        body: dict[str, Any] = answer.json()
        return body
    data = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
    last: dict[str, Any] = json.loads(data[-1])
    return last


@pytest.mark.req("mcp.eras", "mcp.handles")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_is_served_over_http_in_either_era(server: Server, mode: str) -> None:
    async with official(server, mode) as client:
        assert client.protocol_version == {"auto": CURRENT, "legacy": "2025-11-25"}[mode]
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[0] == "python_session"
        told: list[str | None] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        code = "x = 20; print('TEXT'); x + 1"
        result = await client.call_tool("python_session", {"code": code}, progress_callback=on_progress)
        assert text_of(result) == "TEXT\n21"
        assert result.structured_content is None
        await client.call_tool("create_repl_session", {"session_id": "other"})
        result = await client.call_tool("python_session", {"code": "'apart'", "session_id": "other"})
        assert text_of(result).splitlines()[0] == "'apart'"


@pytest.mark.req("mcp.eras")
def test_requests_by_hand_are_served_in_either_era(server: Server) -> None:
    assert by_hand(server, "initialize", INITIALIZE)["result"]["protocolVersion"] == LEGACY
    call = {"name": "python_session", "arguments": {"code": "1 + 1"}}
    legacy = by_hand(server, "tools/call", call, **{"MCP-Protocol-Version": LEGACY})
    assert text_of(legacy["result"]) == "2"
    headers = {"MCP-Protocol-Version": CURRENT, "Mcp-Method": "tools/call", "Mcp-Name": "python_session"}
    current = by_hand(server, "tools/call", {**call, "_meta": ENVELOPE}, **headers)
    assert text_of(current["result"]) == "2"
    assert current["result"]["_meta"]["ingle/result"]["cell"] == 2


@pytest.mark.req("mcp.handles", "mcp.patient")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_disconnects_in_the_middle_finds_its_cell_when_it_comes_back(
    server: Server, mode: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = f"import os, time\nprint('begun')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')"

    def runs() -> bool:
        answer = server.client.get("/v1/sessions/main")
        return answer.status_code == 200 and answer.json()["state"] == "running"

    async def call_and_go() -> None:
        async with official(server, mode) as client:
            await client.call_tool("python_session", {"code": code})

    calling = asyncio.create_task(call_and_go())
    assert await until(runs, 60)
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()
    assert runs()
    gate.touch()
    async with official(server, mode) as client:
        result = await client.call_tool("wait")
        assert result.meta is not None
        assert result.meta["ingle/result"]["stdout"] == "begun\nend\n"
        assert result.meta["ingle/result"]["status"] == "ok"


def test_the_guard_stands_in_front_of_it(server: Server) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    problem(
        server.client.post("/mcp", json=message, headers={**ACCEPT, "Authorization": "Bearer no"}), 401, "unauthorized"
    )
    problem(server.client.post("/mcp", json=message, headers={**ACCEPT, "Host": "evil.example"}), 421, "misdirected")
    foreign = {**ACCEPT, "Origin": "http://evil.example"}
    problem(server.client.post("/mcp", json=message, headers=foreign), 403, "forbidden")


def test_there_is_nothing_to_listen_on_and_nothing_to_delete(server: Server) -> None:
    for method in ("GET", "DELETE", "PUT"):
        answer = server.client.request(method, "/mcp", headers=ACCEPT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_body_that_is_no_json_or_too_large_costs_one_answer(server: Server) -> None:
    assert (
        server.client.post("/mcp", content=b"{", headers={**ACCEPT, "Content-Type": "application/json"}).status_code
        == 400
    )
    huge = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + b"x" * (18 << 20) + b'"}}'
    answer = server.client.post("/mcp", content=huge, headers={**ACCEPT, "Content-Type": "application/json"})
    assert answer.status_code == 413
    assert text_of(by_hand(server, "tools/call", {"name": "python", "arguments": {"code": "'fine'"}})["result"])


def test_a_session_made_over_mcp_is_the_one_of_the_http_api(server: Server) -> None:
    call = {"name": "python_session", "arguments": {"code": "shared = 'seen'"}}
    by_hand(server, "tools/call", call, **{"MCP-Protocol-Version": LEGACY})
    assert server.execute("shared")["result"] == {"text/plain": "'seen'"}


@pytest.mark.req("safe.token", "mcp.handles")
def test_each_tenant_meets_its_own_sessions_only(home: Path, mark: str) -> None:
    home.mkdir(mode=0o700)
    tokens = [ingle_token(home, "new", name) for name in ("a", "b")]
    server = Server(home)
    try:
        told = []
        for code in ("x = 'mine'", "globals().get('x')"):
            for token in (*tokens, server.token):
                call = {"name": "python_session", "arguments": {"code": code}}
                answer = by_hand(
                    server, "tools/call", call, **{"MCP-Protocol-Version": LEGACY, "Authorization": f"Bearer {token}"}
                )
                told.append(text_of(answer["result"]))
            if code.startswith("x"):
                server.execute("x = 'the owner'")
        assert [each.splitlines()[0] for each in told[3:]] == ["'mine'", "'mine'", "'the owner'"]
        reader = {"name": "list_repl_sessions", "arguments": {}}
        for token in tokens:
            headers = {"MCP-Protocol-Version": LEGACY, "Authorization": f"Bearer {token}"}
            assert text_of(by_hand(server, "tools/call", reader, **headers)["result"]).count("main") == 1
    finally:
        assert server.stop() == 0
