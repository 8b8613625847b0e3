"""Authors of cells: which token, interface and client asked for each."""

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from ingle import Client, errors
from ingle.requests import Author
from ingle.service import Service
from support.mcp_host import CURRENT, ENVELOPE, INITIALIZE
from support.mcp_model import over_http
from support.server import NDJSON, Server
from support.tokens import client_with, ingle_token


def authors(server: Server, name: str = "main") -> list[dict[str, Any]]:
    return [cell["author"] for cell in server.client.get(f"/v1/sessions/{name}/cells").json()["cells"]]


def test_cells_name_the_token_the_interface_and_the_client(server: Server) -> None:
    server.make_session()
    server.execute("1")
    server.client.post("/v1/sessions/main/execute", json={"code": "2"}, headers={"User-Agent": "curl/8.5.0 (x)"})
    with Client(server.url, server.token, name="research agent") as client:
        client.session("main", create=False).run("3")
    with connect(
        f"ws{server.url.removeprefix('http')}/v1/sessions/main/events?from=1",
        additional_headers={"Authorization": f"Bearer {server.token}"},
        user_agent_header="watcher",
    ) as socket:
        socket.send(json.dumps({"op": "execute", "id": "1", "code": "4", "queue": True}))
        events = []
        while not (events and events[-1]["type"] == "done" and events[-1]["cell"] == 4):
            events.append(json.loads(socket.recv(30)))
    expected = [
        {"name": "owner", "via": "http", "client": "python-httpx"},
        {"name": "owner", "via": "http", "client": "curl"},
        {"name": "owner", "via": "http", "client": "research agent"},
        {"name": "owner", "via": "http", "client": "watcher"},
    ]
    assert authors(server) == expected
    begun = [event["author"] for event in events if event["type"] == "state" and event["state"] == "running"]
    assert begun == expected
    assert not [event for event in events if "author" in event and event.get("state") != "running"]


def test_answers_and_interrupts_name_who_gave_them(server: Server) -> None:
    server.make_session()
    person = {"User-Agent": "person/1"}
    server.execute("print(input('Name? '))\ninput('Again? ')")
    server.client.post("/v1/sessions/main/input", json={"text": "Ada"}, headers=person)
    server.client.post("/v1/sessions/main/interrupt", json={}, headers=person)
    server.execute("1 / 0")
    told = server.client.get("/v1/sessions/main/cells/1/events").json()["events"]
    named = [
        (event["type"], event.get("state", "done"), event.get("author", event.get("interrupted_by", {})).get("client"))
        for event in told
        if event["type"] in ("state", "done") and event["cell"] == 1
    ]
    assert named == [
        ("state", "running", "python-httpx"),
        ("state", "waiting_for_input", None),
        ("state", "running", "person"),
        ("state", "waiting_for_input", None),
        ("state", "running", None),
        ("done", "done", "person"),
    ]
    told = server.client.get("/v1/sessions/main/cells/2/events").json()["events"]
    assert [event.get("interrupted_by") for event in told if event["type"] == "done"] == [None]


def test_a_page_of_the_server_is_named_as_the_console(server: Server) -> None:
    signed_in = server.client.post(
        "/v1/signin", data={"token": server.token, "to": "/"}, headers={"Origin": server.url, "Authorization": ""}
    )
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    server.make_session()
    headers = {"Cookie": cookie, "Origin": server.url, "User-Agent": "Mozilla/5.0"}
    request = server.client.build_request("POST", "/v1/sessions/main/execute", json={"code": "1"}, headers=headers)
    del request.headers["authorization"]
    assert server.client.send(request).status_code == 200
    assert authors(server) == [{"name": "owner", "via": "console"}]


def test_a_client_cannot_choose_whose_cell_it_is(home: Path, server: Server) -> None:
    token = ingle_token(home, "new", "alice")
    body = {"code": "1", "author": {"name": "owner", "via": "console"}}
    with client_with(server, token) as alice:
        alice.post("/v1/sessions", json={"session_id": "main"})
        assert alice.post("/v1/sessions/main/execute", json=body).status_code == 422
        alice.post("/v1/sessions/main/execute", json={"code": "1"}, headers={"User-Agent": "(owner)"})
        stream = alice.post("/v1/sessions/main/execute", json={"code": "1"}, headers=NDJSON)
        begun = json.loads(stream.text.splitlines()[0])
        cells = alice.get("/v1/sessions/main/cells").json()["cells"]
    assert begun["author"] == {"name": "alice", "via": "http", "client": "python-httpx"}
    assert [cell["author"]["name"] for cell in cells] == ["alice", "alice"]
    assert "client" not in cells[0]["author"]


def test_cells_of_a_model_name_the_mcp_client(server: Server) -> None:
    request = over_http(server.client)
    request("initialize", INITIALIZE)
    call = {"name": "python_session", "arguments": {"code": "1"}}
    request("tools/call", call)
    modern = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**call, "_meta": ENVELOPE}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": CURRENT,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "python_session",
    }
    server.client.post("/mcp", json=modern, headers=headers).raise_for_status()
    assert authors(server) == [
        {"name": "owner", "via": "mcp", "client": "python-httpx"},
        {"name": "owner", "via": "mcp", "client": "by-hand"},
    ]


async def test_cells_of_the_process_itself_are_local(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "1")
    await service.sent_by("mcp", "\x1b[31mroot\n" + "x" * 100).execute("s", "2")
    assert [cell.author for cell in await service.cells("s")] == [
        Author("owner", "local"),
        Author("owner", "mcp", "[31mroot" + "x" * 54),
    ]


@pytest.mark.parametrize("name", ["", " a", "a/b", "a (b)", "é", "x" * 65, "a\n"])
def test_a_client_has_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="name"):
        Client("http://127.0.0.1:1", name=name)
