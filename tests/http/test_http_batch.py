"""Batches: one request, many one-off runs, a line for each as it ends; and nothing left, however the request ends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Raw

from ingle import errors
from ingle.batches import BatchItem, NewBatch
from ingle.callers import Caller, Limits
from ingle.isolation.limits import cgroup_mounts
from ingle.requests import NewSession
from ingle.service import Service
from support.internals import manager_of
from support.server import Server, problem
from support.tokens import client_with, ingle_token
from support.waiting import until, wait_until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(module_server: Server) -> Server:
    return module_server


def run_batch(client: httpx.Client, code: str, items: list[Any], **options: Any) -> list[dict[str, Any]]:
    """Return the results, in the order in which they came."""
    headers = options.pop("headers", {})
    answer = client.post("/v1/batch", json={"code": code, "items": items, **options}, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def by_id(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {result["id"]: result for result in results}
    assert len(found) == len(results)
    return found


def new_batch(code: str, count: int, **options: Any) -> NewBatch:
    return NewBatch(code=code, items=[BatchItem() for _ in range(count)], session=NewSession(), **options)


# What an item has


@pytest.mark.req("batch.map")
def test_an_id_comes_back_as_it_was_sent(server: Server) -> None:
    items = [{"id": 7}, {"id": "seven"}, {}]
    assert {each["id"] for each in run_batch(server.client, "1", items)} == {7, "seven", "2"}


@pytest.mark.req("batch.map")
@pytest.mark.both_levels
def test_each_item_has_its_own_input_stdin_files_and_environment(server: Server) -> None:
    code = (
        "import os, sys\n"
        "files = {name: open(name, 'rb').read() for name in ('text', 'a/b') if os.path.exists(name)}\n"
        "(item, sys.stdin.read(), files, os.environ.get('ITEM'))"
    )
    items = [
        {"input": {"a": [1, 2.5, None, True, "é"]}},
        {"id": "in", "stdin": "one\ntwo"},
        {"id": "files", "files": {"text": "äö", "a/b": {"base64": base64.b64encode(b"\0\xff").decode()}}},
        {"id": "env", "env": {"ITEM": "x=y"}},
        {},
    ]
    results = by_id(run_batch(server.client, code, items))
    assert {name: eval(result["result"]["text/plain"]) for name, result in results.items()} == {
        "0": ({"a": [1, 2.5, None, True, "é"]}, "", {}, None),
        "in": (None, "one\ntwo", {}, None),
        "files": (None, "", {"text": "äö".encode(), "a/b": b"\0\xff"}, None),
        "env": (None, "", {}, "x=y"),
        "4": (None, "", {}, None),
    }
    for result in results.values():
        assert (result["status"], result["success"], result["limit"], result["problem"]) == ("ok", True, None, None)


@pytest.mark.req("batch.map")
def test_an_item_that_fails_or_cannot_start_costs_no_other_item(server: Server) -> None:
    code = "import os, sys\nif item == 'exit': sys.exit(3)\nif item == 'crash': os.abort()\n1 / item"
    items = [{"input": each} for each in (0, 1, "exit", "crash")]
    items += [{"id": "out", "files": {"../x": "1"}}, {"id": "deep", "input": eval("[" * 25 + "]" * 25)}]
    results = by_id(run_batch(server.client, code, items))
    assert {name: result["status"] for name, result in results.items()} == {
        "0": "error",
        "1": "ok",
        "2": "exit",
        "3": "exit",
        "out": "not_run",
        "deep": "error",
    }
    assert results["0"]["error"]["name"] == "ZeroDivisionError"
    assert results["2"]["exit"]["code"] == 3
    assert results["3"]["exit"]["signal"] == "SIGABRT"
    assert results["out"]["problem"]["code"] == "invalid_request"
    assert "leads out of the folder" in results["out"]["problem"]["detail"]
    assert {result["limit"] for result in results.values()} == {None}


@pytest.mark.req("batch.map")
@pytest.mark.both_levels
def test_a_limit_that_ends_an_item_is_named(server: Server) -> None:
    code = (
        "import time\n"
        "if item == 'time': time.sleep(100)\n"
        "if item == 'memory': x = b'1' * (400 << 20)\n"
        "if item == 'stubborn':\n"
        "    while True:\n"
        "        try: time.sleep(100)\n"
        "        except KeyboardInterrupt: pass\n"
    )
    items = [{"id": each, "input": each} for each in ("time", "memory", "stubborn", "none")]
    results = by_id(run_batch(server.client, code, items, timeout=2, limits={"memory": 128 * MIB}))
    assert {name: result["limit"] for name, result in results.items()} == {
        "time": "time",
        "memory": "memory",
        "stubborn": "time",
        "none": None,
    }
    assert results["time"]["status"] == results["stubborn"]["status"] == "interrupted"


@pytest.mark.req("batch.map")
def test_results_come_as_items_end(server: Server) -> None:
    items = [{"id": "slow", "input": 100}, {"id": "quick", "input": 0}]
    body = {"code": "import time; time.sleep(item)", "items": items, "concurrency": 2}
    with server.client.stream("POST", "/v1/batch", json=body) as answer:
        assert json.loads(next(answer.iter_lines()))["id"] == "quick"
    assert wait_until(lambda: server.client.get("/v1/sessions").json() == {"sessions": []}, 30)


@pytest.mark.req("batch.map")
def test_five_hundred_items_all_answer_and_nothing_is_left(start: Callable[..., Server]) -> None:
    server = start("--pool", "0")
    items = [{"input": number} for number in range(500)]
    results = run_batch(server.client, "print(item); item * 2", items, concurrency=8)
    told = {result["id"]: (result["stdout"], result["result"]) for result in results}
    assert told == {str(each): (f"{each}\n", {"text/plain": str(each * 2)}) for each in range(500)}
    assert server.client.get("/v1/sessions").json() == {"sessions": []}
    assert not list((server.home / "sessions").glob("*/workspace"))


# Bounds


@pytest.mark.req("batch.map")
async def test_only_so_many_items_run_at_once(service: Service) -> None:
    code = "import time\nbegan = time.monotonic()\ntime.sleep(0.1)\n(began, time.monotonic())"
    spans = []
    async with contextlib.aclosing(await service.batch(new_batch(code, 12, concurrency=3))) as results:
        async for result in results:
            assert result.result is not None
            spans.append(eval(result.result["text/plain"]))
    most = max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)
    assert 2 <= most <= 3


@pytest.mark.req("batch.map")
@pytest.mark.fresh_service
async def test_while_results_are_not_taken_no_further_item_begins(service: Service) -> None:
    results = await service.batch(new_batch("1", 50, concurrency=2))
    await anext(results)
    assert await until(lambda: not manager_of(service).everyone(), 30)
    assert sum((await service.metrics()).cells.values()) <= 2
    await results.aclose()
    assert sum((await service.metrics()).cells.values()) <= 2


@pytest.mark.req("batch.map")
def test_a_batch_out_of_bounds_is_refused_before_anything_runs(start: Callable[..., Server]) -> None:
    server = start("--max-batch", "1M")

    def refused(status: int, code: str, **body: Any) -> str:
        answer = server.client.post("/v1/batch", json={"code": "1", "items": [{}], **body})
        detail: str = problem(answer, status, code)["detail"]
        return detail

    assert "10001 items are more than 10000" in refused(422, "invalid_request", items=[{}] * 10_001)
    assert "1 to 256" in refused(422, "invalid_request", concurrency=257)
    refused(422, "invalid_request", concurrency=0)
    refused(422, "invalid_request", timeout=-1)
    refused(422, "invalid_request", items=[{"env": {"a=b": "c"}}])
    refused(422, "invalid_request", items=[{"id": ""}])
    refused(422, "invalid_request", items=[{"unknown": 1}])
    assert "share a folder" in refused(422, "invalid_request", cwd="/tmp", items=[{"files": {"a": "b"}}])
    refused(413, "too_large", items=[{"input": "x" * MIB}])
    assert run_batch(server.client, "1", []) == []


@pytest.mark.req("batch.map", "scale.bounds")
def test_items_wait_while_all_sessions_are_in_use(start: Callable[..., Server]) -> None:
    server = start("--max-sessions", "2")
    server.make_session()
    results = run_batch(server.client, "item", [{"input": number} for number in range(6)], concurrency=4)
    assert {result["status"] for result in results} == {"ok"}
    assert server.execute("1")["status"] == "ok"


@pytest.mark.req("batch.map", "safe.token")
def test_the_quotas_of_a_token_hold_for_its_items(home: Path, start: Callable[..., Server]) -> None:
    home.mkdir(mode=0o700)
    small = ingle_token(home, "new", "small", "--sessions", "1", "--running", "1")
    reader = ingle_token(home, "new", "reader", "--scope", "read")
    server = start()
    with client_with(server, small) as client, client_with(server, reader) as other:
        code = "import time\nbegan = time.monotonic()\ntime.sleep(0.05)\n(began, time.monotonic())"
        results = run_batch(client, code, [{}] * 4, concurrency=4)
        spans = sorted(eval(result["result"]["text/plain"]) for result in results)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        problem(other.post("/v1/batch", json={"code": "1", "items": [{}]}), 403, "forbidden")


async def test_an_item_waits_for_the_quota_and_is_told_when_it_waited_in_vain(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingle.service.batch.CAPACITY_SECONDS", 0.1)
    caller = service.acting_for(Caller("a", "a", limits=Limits(sessions=1)))
    await caller.create_session("held")
    async with contextlib.aclosing(await caller.batch(new_batch("1", 2))) as results:
        told = [result async for result in results]
    assert [(each.status, each.problem is not None and each.problem.code) for each in told] == [
        ("not_run", "quota_exceeded")
    ] * 2


@pytest.mark.req("batch.map", "cell.once")
def test_a_batch_that_is_sent_again_with_its_key_runs_nothing(server: Server, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    headers = {"Idempotency-Key": "one"}
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    assert len(run_batch(server.client, code, [{}], headers=headers)) == 1
    again = server.client.post("/v1/batch", json={"code": code, "items": [{}]}, headers=headers)
    problem(again, 409, "batch_begun")
    other = server.client.post("/v1/batch", json={"code": code, "items": [{}, {}]}, headers=headers)
    problem(other, 422, "key_reused")
    assert (tmp_path / "ran").read_text() == "x"


def test_each_item_is_in_the_audit_log(start: Callable[..., Server]) -> None:
    server = start("--audit", "on")
    run_batch(server.client, "1", [{}] * 3)
    server.stop()
    lines = [json.loads(line) for line in (server.home / "audit.log").read_text().splitlines()]
    assert [line["action"] for line in lines].count("cell") == 3


# Ends


def groups_of(server: Server) -> list[Path]:
    """Return the control groups of a server's sessions; none where it may make no groups."""
    place = cgroup_mounts.find_places(Path("/")).get(cgroup_mounts.MEMORY)
    found = [] if place is None else place.folder.glob(f"ingle-*-{server.process.pid}-*/*")
    return [path for path in found if path.is_dir()]


@pytest.mark.req("batch.map")
@pytest.mark.both_levels
def test_when_the_client_goes_away_everything_ends(start: Callable[..., Server]) -> None:
    server = start("--pool", "0")
    code = "import subprocess, time\nif item:\n    subprocess.Popen(['sleep', '1000'])\n    time.sleep(1000)"
    items = [{"input": number} for number in range(100)]
    # With limits of their own, sessions have inits and control groups that no later session uses.
    body = {"code": code, "items": items, "concurrency": 6, "limits": {"processes": 64}}
    with server.client.stream("POST", "/v1/batch", json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["id"] == "0"
        assert wait_until(lambda: len(server.client.get("/v1/sessions").json()["sessions"]) == 6, 30)
        assert len(groups_of(server)) in (0, 6)
    assert wait_until(lambda: server.client.get("/v1/sessions").json() == {"sessions": []}, 30)
    assert wait_until(lambda: not list((server.home / "sessions").glob("*/workspace")), 10)
    assert wait_until(lambda: not groups_of(server), 10), groups_of(server)
    assert len(run_batch(server.client, "1", [{}])) == 1


@pytest.mark.req("batch.map")
async def test_closed_results_have_ended_every_item(service: Service) -> None:
    code = "import time; time.sleep(1000 if item else 0)"
    items = [BatchItem(input=Raw(each)) for each in (b"0", b"1", b"1", b"1", b"1")]
    batch = NewBatch(code=code, items=items, session=NewSession(), concurrency=3)
    results = await service.batch(batch)
    assert (await anext(results)).id == "0"
    await results.aclose()
    assert manager_of(service).everyone() == []


async def test_a_cancelled_reader_leaves_nothing(service: Service) -> None:
    async def read() -> None:
        async with contextlib.aclosing(await service.batch(new_batch("import time; time.sleep(1000)", 4))) as results:
            await anext(results)

    reading = asyncio.create_task(read())
    assert await until(lambda: len(manager_of(service).everyone()) > 1, 30)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    assert manager_of(service).everyone() == []


def states_of(server: Server) -> list[str]:
    return [each["state"] for each in server.client.get("/v1/sessions").json()["sessions"]]


@pytest.mark.req("batch.map")
def test_a_server_that_stops_answers_for_every_item(start: Callable[..., Server]) -> None:
    server = start()
    items = [{"input": n} for n in range(20)]
    body = {"code": "import time; time.sleep(1000 if item else 0)", "items": items, "concurrency": 4}
    with server.client.stream("POST", "/v1/batch", json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["status"] == "ok"
        assert wait_until(lambda: "running" in states_of(server), 10)
        server.process.terminate()
        told = [json.loads(line) for line in lines]
    assert {result["status"] for result in told} == {"exit", "not_run"}
    assert len(told) == 19
    assert {result["problem"]["code"] for result in told if result["problem"]} == {"unavailable"}


async def test_a_batch_is_refused_by_a_server_that_drains(service: Service) -> None:
    other = Service(service.settings, service._node)
    await other.drain()
    with pytest.raises(errors.Unavailable):
        await other.batch(new_batch("1", 1))
