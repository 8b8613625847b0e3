"""More requests for sessions than a machine holds or can start at once: all are answered, by name, and none is hurt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support.http_load import Client, ask_at_once
from support.server import Server, problem
from support.tokens import client_with, ingle_token

FEW_FILES = ("sh", "-c", 'ulimit -n 120; exec "$@"', "sh")
"""A server that may open so few files has them for a few busy sessions only."""


@pytest.mark.req("scale.bounds")
def test_sessions_past_the_open_files_are_refused_by_name_and_the_others_live_on(start: Callable[..., Server]) -> None:
    server = start("--pool", "0", prefix=FEW_FILES)
    (holds,) = re.findall(
        r"holds   up to (\d+) sessions at once, because this process may open 120 files",
        "".join(server.said),
    )
    made: list[str] = []
    while len(made) <= int(holds):
        answer = server.client.post("/v1/sessions")
        if answer.status_code != 201:
            break
        made.append(answer.json()["session_id"])
        # An idle session would give its descriptors back after a while.
        assert server.execute("import time; time.sleep(1000)", made[-1], wait=0)["status"] == "running"
    told = problem(answer, 503, "too_many_sessions")
    assert told["detail"].startswith(
        "the server is full: almost all file descriptors of the server are in use; end one"
    )
    assert (told["retry_after"], answer.headers["retry-after"]) == (10.0, "10")
    assert len(made) > 5
    states = {each["session_id"]: each["state"] for each in server.client.get("/v1/sessions").json()["sessions"]}
    assert states == dict.fromkeys(made, "running")
    server.client.delete(f"/v1/sessions/{made.pop()}").raise_for_status()
    server.make_session("after")
    assert server.execute("1", "after")["status"] == "ok"
    assert "Too many open files" not in "".join(server.said)


@pytest.mark.req("scale.fair")
async def test_a_tenant_with_many_requests_keeps_nobody_else_waiting(home: Path, start: Callable[..., Server]) -> None:
    home.mkdir(mode=0o700)
    tokens = {name: ingle_token(home, "new", name) for name in ("greedy", "modest")}
    server = start()
    clients = [Client(server, tokens[name]) for name in ["greedy"] * 150 + ["modest"] * 5]
    for client in clients:
        await client.open()
    ended: list[int] = []

    async def ask(number: int) -> None:
        await clients[number].ask("/v1/sessions", {})
        ended.append(number)

    # The requests are sent in this order, all of them before the first answer is read.
    await asyncio.gather(*map(ask, range(len(clients))))
    for client in clients:
        client.close()
    assert sorted(ended) == list(range(155))
    assert max(ended.index(number) for number in range(150, 155)) < 120


@pytest.mark.req("scale.fair")
def test_a_tenant_never_has_all_sessions(home: Path, start: Callable[..., Server]) -> None:
    home.mkdir(mode=0o700)
    tokens = {name: ingle_token(home, "new", name) for name in ("greedy", "modest")}
    server = start("--max-sessions", "10")
    with client_with(server, tokens["greedy"]) as greedy, client_with(server, tokens["modest"]) as modest:
        for _ in range(9):
            greedy.post("/v1/sessions").raise_for_status()
        told = problem(greedy.post("/v1/sessions"), 503, "too_many_sessions")
        assert told["detail"].startswith("all 9 sessions are in use: one tenant may have that many of the 10 sessions")
        modest.post("/v1/sessions").raise_for_status()
        problem(modest.post("/v1/sessions"), 503, "too_many_sessions")


@pytest.mark.req("scale.fair")
async def test_two_hundred_requests_at_once_are_all_answered(start: Callable[..., Server]) -> None:
    await ask_at_once(start(), 200)
