"""Servers of the official SDK, over both transports and by the current protocol."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from ingle.service import Service
from ingle.settings import Settings
from ingle.tools.shapes import NewServer
from support import sdk_server
from support.cells import run as run_cell
from support.cells import value
from support.sdk_server import TOKEN, HttpServer
from support.service import make_settings
from support.tools import servers_file

SERVER = sdk_server.__file__
TRANSPORTS = pytest.mark.parametrize("name", ["pipe", "web"])


@pytest.fixture(scope="module")
def web() -> Iterator[HttpServer]:
    made = HttpServer()
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def settings(web: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    url = f"http://127.0.0.1:{web.port}/mcp"
    file = servers_file(
        tmp_path_factory.mktemp("sdk") / "servers.json",
        pipe={"command": sys.executable, "args": [SERVER]},
        web={"url": url, "headers": {"Authorization": TOKEN}},
        locked={"url": url, "headers": {"Authorization": "Bearer another"}},
    )
    return make_settings(preload=[], pool=1, servers=[file])


@pytest.fixture
async def call(service: Service) -> Callable[[str], Any]:
    """Return the value of an expression, where `sdk` is the server."""
    await service.create_session("s")

    async def evaluate(expression: str) -> str:
        return await value(service, "s", expression)

    return evaluate


@pytest.mark.req("tools.call")
@TRANSPORTS
async def test_results_failures_and_state_come_over_both_transports(service: Service, call: Any, name: str) -> None:
    await run_cell(service, "s", f"import tools; sdk = tools.{name}; before = sdk.add(0)['total']")
    assert await call("[sdk.add(n)['total'] - before for n in (1, 2, 3)]") == "[1, 3, 6]"
    assert await call("bytes(sdk.picture())") == r"b'\x89PNG'"
    failed = await service.execute("s", "sdk.fails()")
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == (
        "ingle_tools.ToolError",
        "Error executing tool fails: no luck today",
    )
    wrong = await service.execute("s", "sdk.add('x')")
    assert wrong.error is not None
    assert wrong.error.value == f"{name}.add(): number must be an integer, not str"
    assert "Add a number" in await call("sdk.add.__doc__")


@pytest.mark.req("tools.cancel")
@TRANSPORTS
async def test_an_interrupt_reaches_the_server_over_both_transports(service: Service, call: Any, name: str) -> None:
    await run_cell(service, "s", f"import tools; sdk = tools.{name}; sdk.add(-sdk.add(0)['total'])")
    running = await service.execute("s", "sdk.hangs()", wait=0.2)
    assert running.status == "running"
    assert (await service.interrupt("s", wait=20)).status == "interrupted"
    async with asyncio.timeout(20):
        while int(await call("sdk.add(0)['total']")) < 1000:
            await asyncio.sleep(0.01)


@pytest.mark.req("tools.secrets")
async def test_a_token_is_the_headers_and_no_sessions(service: Service, call: Any, web: HttpServer) -> None:
    await run_cell(service, "s", "import tools, gc, os")
    assert await call("'total' in tools.web.add(1)") == "True"
    found = "any('the-token' in each for each in gc.get_objects() if isinstance(each, str) and len(each) < 100)"
    assert await call(f"'the-token' in str(os.environ), {found}") == "(False, False)"
    refused = await service.execute("s", "tools.locked.add(1)")
    assert refused.error is not None
    assert refused.error.name == "ingle_tools.ToolError"


@pytest.mark.req("tools.call")
async def test_a_server_over_http_that_goes_away_is_named_and_used_again(
    service: Service, call: Any, web: HttpServer
) -> None:
    await run_cell(service, "s", "import tools; tools.web.add(1)")
    web.stop()
    gone = await service.execute("s", "tools.web.add(1)")
    assert gone.error is not None
    assert gone.error.name == "ingle_tools.ToolError"
    web.start()
    async with asyncio.timeout(20):
        while (await service.execute("s", "tools.web.add(1)")).error is not None:
            await asyncio.sleep(0.1)


class StatefulServer(BaseHTTPRequestHandler):
    """A server of the earlier protocol, which refuses clients that have not introduced themselves to it."""

    known: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers.get("Mcp-Session-Id", "")
        if message["method"] == "initialize":
            session = uuid4().hex
            self.known.add(session)
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            self.reply(message, {**about, "serverInfo": {"name": "old", "version": "1"}}, session)
        elif session not in self.known:
            self.send_error(404 if session else 400)
        elif "id" not in message:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif message["method"] == "tools/list":
            self.reply(message, {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}, session)
        else:
            self.reply(message, {"content": [{"type": "text", "text": "hello"}]}, session)

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET

    def reply(self, message: Any, result: Any, session: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        self.send_response(200)
        for name, text in (("Content-Type", "application/json"), ("Mcp-Session-Id", session)):
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.req("tools.call")
async def test_a_server_that_has_forgotten_its_clients_is_asked_by_a_new_connection(service: Service) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), StatefulServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            await service.create_session("s")
            await service.add_tool_server("s", "old", NewServer(url=f"http://127.0.0.1:{server.server_port}/mcp"))
            await run_cell(service, "s", "import tools")
            assert await value(service, "s", "tools.old.hello()") == "'hello'"
            StatefulServer.known.clear()
            assert await value(service, "s", "tools.old.hello()") == "'hello'"
            assert await value(service, "s", "tools.old.hello()") == "'hello'"
            assert len(StatefulServer.known) == 1
            await service.end_session("s")
        finally:
            server.shutdown()
            thread.join()
