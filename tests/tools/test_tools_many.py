"""Many calls: one after another, at once, and from many sessions."""

from __future__ import annotations

import asyncio

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.cells import value
from support.service import make_settings
from support.tools import entry, servers_file

SESSIONS = 50

CALLS = 2000
"""The bench makes 10,000; a busy machine takes milliseconds for each."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    file = servers_file(tmp_path_factory.mktemp("many") / "servers.json", box=entry())
    return make_settings(preload=[], pool=1, servers=[file], max_sessions=SESSIONS + 1)


@pytest.mark.req("tools.call")
async def test_thousands_of_calls_in_a_loop_and_32_at_once(service: Service) -> None:
    await service.create_session("s")
    loop = f"import tools\nsum(tools.box.add(n, 1)['sum'] for n in range({CALLS}))"
    result = await service.execute("s", loop, wait=50)
    assert result.result == {"text/plain": str(sum(range(CALLS)) + CALLS)}
    code = (
        "import asyncio\n"
        "found = await asyncio.gather(*(tools.box.add.aio(n, 1) for n in range(32)))\n"
        "[each['sum'] for each in found] == list(range(1, 33))"
    )
    assert await value(service, "s", code) == "True"
    # The timeline stays bounded, and the session works on.
    assert await value(service, "s", "tools.box.add(1, 1)") == "{'sum': 2}"


@pytest.mark.req("tools.call")
async def test_fifty_sessions_call_at_once(service: Service) -> None:
    async def call(number: int) -> str:
        await service.create_session(f"s{number}")
        return await value(
            service, f"s{number}", f"import tools\n[tools.box.add({number}, n)['sum'] for n in range(20)]"
        )

    found = await asyncio.gather(*(call(number) for number in range(SESSIONS)))
    assert found == [str([number + n for n in range(20)]) for number in range(SESSIONS)]
