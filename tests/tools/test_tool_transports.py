"""Servers of the official SDK, over both transports and by the current protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ingle.service import Service
from ingle.settings import Settings
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
