"""Functions of a client that cells call, and tools over HTTP and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ingle import AsyncClient, Client, errors
from ingle.client import Session
from ingle.client.address import Address
from support.server import Server
from support.tokens import client_with, ingle_token
from support.tools import entry, servers_file
from support.waiting import wait_until


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Client(server.url, server.token) as client, client.session("main") as made:
        yield made


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def later(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "later"


def fails() -> None:
    raise ValueError("no luck")


def picture(size: int) -> bytes:
    return bytes(size)


def serving_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ingle-functions"]


@pytest.mark.req("tools.client")
def test_cells_call_functions_of_the_client(session: Session) -> None:
    session.provide(add, later, fails, picture)
    result = session.run("import tools; tools.client.add(2), tools.client.add(2, b=5), tools.client.later(0.01)")
    assert result.result == {"text/plain": "(3, 7, 'later')"}
    assert session.run("tools.client.picture(3)").result == {"text/plain": "b'\\x00\\x00\\x00'"}
    failed = session.run("tools.client.fails()")
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == ("ingle_tools.ToolError", "ValueError: no luck")
    wrong = session.run("tools.client.add('x')")
    assert wrong.error is not None
    assert wrong.error.value == "client.add(): a must be an integer, not str"
    (server,) = session.tools()
    assert [(each.signature, each.description) for each in server.tools][:1] == [
        ("client.add(a: int, b: int = 1)", "Add two numbers.")
    ]


@pytest.mark.req("tools.client")
@pytest.mark.parametrize("near", [True, False], ids=["this machine", "elsewhere"])
def test_calls_of_one_cell_run_at_once(session: Session, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    monkeypatch.setattr(Address, "near", near)
    together = threading.Barrier(8, timeout=20)

    def meet(number: int) -> int:
        together.wait()
        return number

    with session.provide(meet):
        code = "import asyncio, tools\nsum(await asyncio.gather(*(tools.client.meet.aio(n) for n in range(8))))"
        assert session.run(code).result == {"text/plain": "28"}
        assert wait_until(lambda: len(serving_threads()) > 1)
    gone = session.run("tools.client.meet(1)")
    assert gone.error is not None
    assert gone.error.value == "no client provides 'meet' now"
    assert wait_until(lambda: not serving_threads())


@pytest.mark.req("tools.client")
def test_a_function_waits_for_the_next_call(session: Session) -> None:
    called = threading.Event()

    def first() -> bool:
        return called.wait(20)

    with session.provide(add, first, called.set):
        assert session.run("import tools\n[tools.client.add(n) for n in range(3)]").ok
        code = """
            import threading
            waiting = threading.Thread(target=lambda: print(tools.client.first()))
            waiting.start()
            tools.client.set()
            waiting.join()
        """
        assert session.run(textwrap.dedent(code)).stdout == "True\n"


@pytest.mark.req("tools.client", "tools.cancel")
def test_a_client_that_goes_away_fails_the_call_by_name(session: Session) -> None:
    called, over = threading.Event(), threading.Event()

    def stay() -> None:
        called.set()
        over.wait(20)

    provided = session.provide(stay)
    running = threading.Thread(target=lambda: (called.wait(20), provided.close()))
    running.start()
    result = session.run("import tools\ntools.client.stay()")
    running.join()
    over.set()
    assert result.error is not None
    assert result.error.value == "the call was given up: the client that provides it has disconnected"


@pytest.mark.req("tools.client", "tools.cancel")
async def test_an_interrupt_cancels_the_function_of_an_async_client(server: Server) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait_long() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
        await session.provide(wait_long, server="mine")
        running = asyncio.create_task(session.run("import tools\ntools.mine.wait_long()"))
        await began.wait()
        stopped = await session.interrupt()
        assert stopped is not None
        assert stopped.status == "interrupted"
        assert (await running).status == "interrupted"
        async with asyncio.timeout(20):
            await ended.wait()


@pytest.mark.req("tools.client")
@pytest.mark.parametrize(("answer", "code"), [(b"{not JSON", 4400), (b'{"id":1,"op":"return","value":"\xff"}', 1007)])
def test_an_answer_that_cannot_be_read_ends_the_connection(
    server: Server, session: Session, answer: bytes, code: int
) -> None:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/sessions/main/functions"
    session.run("import tools")
    with connect(url, additional_headers={"authorization": f"Bearer {server.token}"}) as socket:
        told = {"name": "strange", "description": "", "input_schema": {}}
        socket.send(json.dumps({"op": "provide", "functions": [told]}))
        assert json.loads(socket.recv()) == {"type": "provided", "server": "client"}
        session.run("tools.client.strange()", wait=0)
        assert json.loads(socket.recv()) == {"type": "call", "id": 1, "tool": "strange", "arguments": {}}
        socket.send(answer, text=True)
        with pytest.raises(ConnectionClosed):
            socket.recv()
        assert socket.close_code == code
    failed = session.wait()
    assert failed.error is not None
    assert failed.error.value == "the call was given up: the client that provides it has disconnected"


def test_what_cannot_be_a_tool_is_refused(session: Session) -> None:
    with pytest.raises(errors.InvalidRequest, match="has no name that a call could give"):
        session.provide(lambda *many: many, name="many")
    with pytest.raises(errors.InvalidRequest, match="not a name"):
        session.provide(add, server="../x")
    with pytest.raises(errors.InvalidRequest, match="needs a function"):
        session.provide()


@pytest.mark.req("tools.client")
def test_many_sessions_call_at_once(server: Server) -> None:
    with Client(server.url, server.token) as client:
        sessions = [client.session(f"s{n}") for n in range(8)]
        for session in sessions:
            session.provide(add)
        code = "import tools\nsum(tools.client.add(n) for n in range(50))"
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda each=each: results.append(each.run(code).result)) for each in sessions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [{"text/plain": "1275"}] * 8
        for session in sessions:
            session.close()


def approve_command(home: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "ingle", "approve", *flags]
    environment = {**os.environ, "INGLE_HOME": str(home)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.req("tools.policy")
def test_a_person_answers_over_http_and_the_command_line(
    home: Path, tmp_path: Path, start: Callable[..., Server]
) -> None:
    home.mkdir(mode=0o700)
    execute = ingle_token(home, "new", "model", "--tenant", "t", "--scope", "execute")
    approve = ingle_token(home, "new", "person", "--tenant", "t", "--scope", "approve")
    file = servers_file(tmp_path / "servers.json", box=entry(tenants=["t"]))
    server = start("--servers", file)
    with client_with(server, execute) as model, client_with(server, approve) as person:
        model.post("/v1/sessions", json={"session_id": "s"})
        code = {"code": "import tools\ntools.box.delete(1)"}
        waiting = model.post("/v1/sessions/s/execute", json=code).json()
        assert waiting["status"] == "waiting_for_approval"
        path = f"/v1/sessions/s/approvals/{waiting['approval']['id']}"
        assert model.post(path, json={"allow": True}).status_code == 403
        assert person.post("/v1/sessions/s/execute", json=code).status_code == 403
        assert person.post(path, json={"allow": True, "more": 1}).status_code == 422
        assert person.get("/v1/sessions/s/approvals").json()["approvals"] == [waiting["approval"]]
        assert person.post(path, json={"allow": True}).json()["tool"] == "delete"
        done = model.get(f"/v1/sessions/s/cells/{waiting['cell']}?wait=20").json()
        assert done["result"] == {"text/plain": """'{"number": 1}'"""}
        assert person.post(path, json={"allow": True}).json()["code"] == "approval_not_found"
    with Client(server.url, server.token) as client, client.session("mine") as session:
        assert session.run("import tools\ntools.box.delete(2)").status == "waiting_for_approval"
        listed = approve_command(home)
        assert 'mine  box.delete  (may destroy)\n    {"number":2}\n' in listed
        (told,) = map(json.loads, approve_command(home, "--json").splitlines())
        assert (told["session"], told["tool"], told["allowed"]) == ("mine", "delete", None)
        answered = json.loads(approve_command(home, told["id"], "--deny", "--json"))
        assert answered == {**told, "allowed": False}
        refused = session.wait()
        assert refused.error is not None
        assert refused.error.value == "box.delete was not approved"
        assert wait_until(lambda: session.info().state == "idle")
