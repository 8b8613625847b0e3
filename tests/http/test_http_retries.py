"""Retried requests: with an `Idempotency-Key` code runs once, and every answer is that of the one cell."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingle.snapshots.registry import KEYS
from support.internals import session_of
from support.server import NDJSON, PATIENCE, Server, problem
from support.waiting import wait_until

PATH = "/v1/sessions/main/execute"
COUNT = "count = globals().get('count', 0) + 1\ncount"


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **more}


@pytest.mark.req("cell.once")
def test_a_retry_gets_the_result_of_the_first_and_runs_nothing(server: Server) -> None:
    server.make_session()
    first = server.client.post(PATH, json={"code": COUNT}, headers=keyed("a")).json()
    again = server.client.post(PATH, json={"code": COUNT}, headers=keyed("a")).json()
    assert again == first
    assert (first["cell"], first["result"]) == (1, {"text/plain": "1"})
    another = server.client.post(PATH, json={"code": COUNT}, headers=keyed("b")).json()
    assert (another["cell"], another["result"]) == (2, {"text/plain": "2"})
    # Without a key each request is one of its own.
    assert server.execute(COUNT)["result"] == {"text/plain": "3"}


@pytest.mark.req("cell.once")
def test_a_retry_while_the_cell_runs_waits_for_it_also_after_a_disconnect(server: Server, tmp_path: Path) -> None:
    server.make_session()
    gate = tmp_path / "gate"
    code = f"import os, time\nprint('on')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + COUNT
    with server.make_client() as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post(PATH, json={"code": code}, headers=keyed("k"), timeout=0.3)
    answers: list[dict[str, Any]] = []

    def retry() -> None:
        with server.make_client() as client:
            answers.append(client.post(PATH, json={"code": code, "wait": PATIENCE}, headers=keyed("k")).json())

    # The retry may wait for another time than the first: that is no other request.
    running = server.client.post(PATH, json={"code": code, "wait": 0}, headers=keyed("k")).json()
    assert (running["cell"], running["status"]) == (1, "running")
    threads = [threading.Thread(target=retry) for _ in range(5)]
    for thread in threads:
        thread.start()
    gate.touch()
    for thread in threads:
        thread.join(PATIENCE)
    assert [(each["cell"], each["status"], each["result"]) for each in answers] == [(1, "ok", {"text/plain": "1"})] * 5
    streamed = server.client.post(PATH, json={"code": code}, headers=keyed("k", **NDJSON))
    events = [json.loads(line) for line in streamed.text.splitlines()]
    assert {event["cell"] for event in events} == {1}
    assert (events[0]["state"], events[-1]["type"]) == ("running", "done")
    assert server.client.get("/v1/sessions/main").json()["execution_count"] == 1


@pytest.mark.req("cell.once")
def test_many_at_once_with_one_key_run_one_cell_also_when_they_queue(server: Server, tmp_path: Path) -> None:
    server.make_session()
    gate = tmp_path / "gate"
    server.execute(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)", wait=0)
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        with server.make_client() as client:
            body = {"code": COUNT, "queue": True, "wait": PATIENCE}
            answers.append(client.post(PATH, json=body, headers=keyed("k")).json())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    # The first of them is in the queue when a cell without the queue is refused for it, and not for the running one.
    assert wait_until(lambda: server.client.get("/v1/sessions/main").json()["state"] == "running")
    gate.touch()
    for thread in threads:
        thread.join(PATIENCE)
    assert [(each["cell"], each["result"]) for each in answers] == [(2, {"text/plain": "1"})] * 8


@pytest.mark.req("cell.once")
def test_a_key_with_another_body_is_refused_and_one_whose_request_failed_is_free(server: Server) -> None:
    server.make_session()
    server.client.post(PATH, json={"code": "1"}, headers=keyed("k"))
    for body in ({"code": "2"}, {"code": "1", "envs": {"A": "1"}}, {"code": "1", "timeout": 5}):
        problem(server.client.post(PATH, json=body, headers=keyed("k")), 422, "key_reused")
    server.execute("import time; time.sleep(600)", wait=0)
    problem(server.client.post(PATH, json={"code": COUNT}, headers=keyed("busy")), 409, "busy")
    server.client.post("/v1/sessions/main/interrupt", json={"wait": PATIENCE})
    tried = server.client.post(PATH, json={"code": COUNT}, headers=keyed("busy")).json()
    assert (tried["cell"], tried["result"]) == (3, {"text/plain": "1"})
    for bad in ("", "x" * 256, "caf\xe9"):
        headers = [(b"Idempotency-Key", bad.encode("latin-1"))]
        problem(server.client.post(PATH, json={"code": "1"}, headers=headers), 422, "invalid_request")


@pytest.mark.req("cell.once")
def test_a_key_is_of_one_session_and_ends_with_it(server: Server) -> None:
    server.make_session()
    server.make_session("other")
    server.client.post(PATH, json={"code": COUNT}, headers=keyed("k"))
    elsewhere = server.client.post("/v1/sessions/other/execute", json={"code": COUNT}, headers=keyed("k")).json()
    assert (elsewhere["session_id"], elsewhere["result"]) == ("other", {"text/plain": "1"})
    server.client.delete("/v1/sessions/main")
    problem(server.client.post(PATH, json={"code": COUNT}, headers=keyed("k")), 404, "session_not_found")


async def test_the_memory_of_keys_is_bounded(service: Any) -> None:
    await service.create_session("main")
    session = session_of(service, "main")
    for number in range(KEYS + 300):
        await service.execute("main", "1", key=f"k{number}")
    assert len(session._requests._known) <= KEYS
    last = await service.execute("main", "1", key=f"k{number}")
    assert last.cell == KEYS + 300


def test_the_end_of_a_session_asked_for_again_ends_no_other_of_its_name(server: Server) -> None:
    path = "/v1/sessions/main"
    server.make_session()
    first = server.client.delete(path, headers=keyed("end"))
    assert (first.status_code, first.json()["state"]) == (200, "dead")
    server.make_session()
    assert server.client.delete(path, headers=keyed("end")).json() == first.json()
    assert server.execute("1")["result"] == {"text/plain": "1"}
    other = server.client.delete("/v1/sessions/other", headers=keyed("end"))
    problem(other, 422, "key_reused")
    problem(server.client.delete(path, headers=keyed("k" * 300)), 422, "invalid_request")
    assert server.client.delete(path, headers=keyed("another end")).status_code == 200
    problem(server.client.delete(path, headers=keyed("one more")), 404, "session_not_found")
