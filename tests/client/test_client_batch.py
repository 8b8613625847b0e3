"""`Client.map`: code run once for each input, sync and async."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ingle import errors
from ingle.client import AsyncClient, CellFailed, Client, Item, batch
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.req("batch.map")


@pytest.fixture(scope="module")
def server(module_server: Server) -> Server:
    return module_server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


def sessions(client: Client) -> list[str]:
    return [info.session_id for info in client.sessions()]


def test_results_come_in_the_order_of_the_inputs(client: Client) -> None:
    code = "import time; time.sleep(0.2 if item == 0 else 0); item * 2"
    results = list(client.map(code, range(10), concurrency=4))
    assert [(each.id, each.ok, each.text) for each in results] == [(str(n), True, str(n * 2)) for n in range(10)]


def test_on_request_results_come_as_they_end(client: Client) -> None:
    code = "import time; time.sleep(item)"
    results = client.map(code, [100, 0], concurrency=2, ordered=False)
    assert next(results).id == "1"
    results.close()
    assert wait_until(lambda: not sessions(client))


def test_an_item_can_have_more_than_an_input(client: Client) -> None:
    code = "import os; (item, input(), open('f', 'rb').read(), open('g').read(), os.environ['E'])"
    item = Item([1, None], stdin="line\n", files={"f": b"\xff\0", "g": "text"}, env={"E": "é"}, id="all")
    (result,) = client.map(code, [item])
    assert (result.id, result.text) == ("all", repr(([1, None], "line", b"\xff\0", "text", "é")))


def test_failures_and_limits_are_in_the_results(client: Client) -> None:
    code = "if item == 1: 1 / 0\nif item == 2:\n    while True: pass"
    results = list(client.map(code, [0, 1, 2, Item(files={"/x": ""})], timeout=1, concurrency=4))
    assert [(each.status, each.limit) for each in results] == [
        ("ok", None),
        ("error", None),
        ("interrupted", "time"),
        ("not_run", None),
    ]
    with pytest.raises(CellFailed, match=r"item '1' failed\n[^$]*ZeroDivisionError"):
        results[1].raise_for_error()
    with pytest.raises(CellFailed, match="item '2' was stopped at its timeout"):
        results[2].raise_for_error()
    with pytest.raises(CellFailed, match="item '3' failed\nthe archive is refused"):
        results[3].raise_for_error()


def test_memory_limits_apply_to_each_item(client: Client) -> None:
    (result,) = client.map("x = b'1' * (400 << 20)", [None], limits={"memory": 128 << 20})
    assert result.limit == "memory"


def test_inputs_that_are_many_are_sent_in_several_requests(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_ITEMS", 3)
    for ordered in (True, False):
        results = list(client.map("item", iter("abcdefgh"), ordered=ordered))
        assert sorted((each.id, each.text) for each in results) == [
            (str(n), f"'{c}'") for n, c in enumerate("abcdefgh")
        ]
    assert list(client.map("item", [])) == []


def test_an_input_that_is_no_json_is_named(client: Client) -> None:
    with pytest.raises(errors.InvalidRequest, match="the code is not a text"):
        client.map(lambda item: item, [1])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="input 1 cannot be sent as JSON"):
        list(client.map("item", [1, object()]))


def test_a_refused_batch_raises(client: Client) -> None:
    with pytest.raises(errors.InvalidRequest, match="concurrency is 1000"):
        next(client.map("1", [1], concurrency=1000))


def test_a_server_that_dies_is_told(start: Callable[..., Server]) -> None:
    server = start()
    with Client(server.url, server.token) as client:
        results = client.map("import time; time.sleep(item)", [0, 1000], concurrency=2)
        assert next(results).ok
        server.process.kill()
        with pytest.raises(errors.Unreachable, match="broke"):
            next(results)
    start()  # it removes what the dead server has left


async def test_the_async_client_maps_too(server: Server) -> None:
    async with AsyncClient(server.url, server.token) as client:
        results = [result.text async for result in client.map("item + 1", range(5))]
        assert results == ["1", "2", "3", "4", "5"]
        stream = client.map("import time; time.sleep(1000 * item)", [0, 1], concurrency=2)
        assert (await anext(stream)).id == "0"
        await stream.aclose()
        while await client.sessions():
            await asyncio.sleep(0)
