"""The client with `await`: what it has beyond the one without. What both have is proven in test_client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle import AsyncClient, errors
from ingle.client import AsyncSession, kind_of
from ingle.support.running_servers import find_servers
from support.cutting_proxy import Cutter
from support.processes import marked_processes
from support.server import PATIENCE, Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, server.token) as made:
        yield made


@pytest.fixture
async def session(client: AsyncClient) -> AsyncIterator[AsyncSession]:
    async with client.session("main") as made:
        yield made


async def test_it_is_the_same_with_await(session: AsyncSession) -> None:
    await session.run("x = 21")
    result = await session.run("x * 2")
    assert (result.text, result.ok) == ("42", True)
    asked = await session.run("input('? ')")
    assert (asked.status, (await session.input("yes")).text) == ("waiting_for_input", "? \n'yes'")
    assert (await session.write_file("a", b"1")).size == 1
    assert await session.read_file("a") == b"1"
    assert [cell.cell for cell in await session.cells()] == [1, 2, 3]


async def test_callbacks_may_be_coroutine_functions(session: AsyncSession) -> None:
    heard: list[str] = []

    async def hear(text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)

    async def answer(prompt: str, secret: bool) -> str:
        await asyncio.sleep(0)
        return f"{prompt}{secret}"

    assert (await session.run("print(input('q'))", on_stdout=hear, on_input=answer)).ok
    assert "".join(heard) == "qqFalse\n"


async def test_many_sessions_run_at_once_over_one_client(client: AsyncClient) -> None:
    meeting = "import os, time\nopen('here', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"

    async def work(number: int) -> str:
        async with client.session() as session:
            running = await session.run(meeting + f"{number}", wait=0)
            begun.append(session)
            async with asyncio.timeout(PATIENCE):
                while len(begun) < 10:
                    await asyncio.sleep(0.01)
            # All cells run now; each is waited for while the others are.
            await session.write_file("go", b"")
            return (await session.wait(running.cell)).text

    begun: list[AsyncSession] = []
    assert await asyncio.gather(*(work(number) for number in range(10))) == [str(number) for number in range(10)]
    assert await client.sessions() == []


async def test_cancelling_a_run_ends_nothing(session: AsyncSession) -> None:
    code = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n'end'"
    running = asyncio.create_task(session.run(code))
    async with asyncio.timeout(PATIENCE):
        while not [info for info in await session.list_files() if info.name == "begun"]:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await session.wait(wait=0)).status == "running"
    await session.write_file("go", b"")
    assert (await session.wait()).text == "'end'"


async def test_streams_are_left_at_any_time(session: AsyncSession) -> None:
    async for event in session.stream("print('one', flush=True)\nimport time\ntime.sleep(0.2)\n1"):
        if kind_of(event) == "stdout":
            break
    assert (await session.wait()).text == "one\n1"

    async def read_on() -> None:
        async for _ in session.stream("while True: pass"):
            pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_on(), 0.2)
    stopped = await session.interrupt()
    assert stopped is not None
    assert stopped.status == "interrupted"


@pytest.mark.req("cell.once")
async def test_events_are_neither_lost_nor_doubled_when_connections_break(mark: str, server: Server) -> None:
    dice, cuts = random.Random(11), 20

    def budget() -> int | None:
        return dice.randint(0, 2000) if cutter.cuts < cuts else None

    with Cutter(server.port, budget) as cutter:
        async with AsyncClient(cutter.url, server.token) as client:
            session = client.session("main")
            code = "import time\nfor n in range(4000):\n    print(n)\n    if n % 10 == 0: time.sleep(0.002)"
            events = [event async for event in session.stream(code)]
            text = "".join(getattr(event, "text", "") for event in events)
            assert text == "".join(f"{n}\n" for n in range(4000))
            numbers = [event.seq for event in events]
            assert numbers == sorted(set(numbers))
            assert cutter.cuts >= cuts
            await session.close()


async def test_a_service_is_started_and_ended_without_blocking_the_loop(
    home: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGLE_HOME", str(home))
    monkeypatch.setenv("INGLE_PRELOAD", "")
    monkeypatch.delenv("INGLE_URL", raising=False)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    beating = asyncio.create_task(beat())
    async with AsyncClient() as client:
        assert beats > 20
        [(_, info)] = find_servers(home)
        assert info.kind == "client"
        async with client.session() as session:
            assert [kind_of(event) async for event in session.stream("6 * 7")] == ["state", "result", "done"]
    beating.cancel()
    assert marked_processes(mark) == []
    with pytest.raises(errors.Unreachable, match="closed"):
        await client.sessions()


def test_streams_that_are_left_open_are_closed_with_the_event_loop_without_a_complaint(server: Server) -> None:
    complaints: list[str] = []
    left = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
        async with AsyncClient(server.url, server.token) as client:
            session = client.session("main", keep=True)
            for stream in (session.stream("import time\nwhile True: time.sleep(0.01)"), session.events()):
                await anext(stream)
                left.append(stream)

    asyncio.run(main())
    assert (len(left), complaints) == (2, [])
    server.client.delete("/v1/sessions/main")
