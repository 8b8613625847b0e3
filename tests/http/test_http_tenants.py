"""Tokens with tenants, scopes and limits: who sees what, who may do what, and how much."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import stat
import typing
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingle import errors
from ingle.callers import IMPLIED, Caller, Limits, Meter
from ingle.http.auth.sign_in_page import SIGN_IN
from ingle.requests import Bounds, NewCell, NewSession, NewTask, SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from support.server import NDJSON, PATIENCE, Server, problem
from support.service import make_settings
from support.tokens import client_with, ingle_token
from support.waiting import until, wait_until


@pytest.fixture
def tokens(home: Path) -> dict[str, str]:
    """Made before the server starts: two tenants, and one who may only look."""
    home.mkdir(mode=0o700)
    made = {"a": ingle_token(home, "new", "a"), "b": ingle_token(home, "new", "b", "--scope", "admin")}
    made["reader"] = ingle_token(home, "new", "reader", "--tenant", "a", "--scope", "read")
    return made


@pytest.mark.req("safe.token")
def test_a_tenant_never_sees_anothers_sessions_and_names_are_its_own(tokens: dict[str, str], server: Server) -> None:
    with client_with(server, tokens["a"]) as a, client_with(server, tokens["b"]) as b:
        for client, value in ((a, "'a'"), (b, "'b'"), (server.client, "'owner'")):
            assert client.post("/v1/sessions", json={"session_id": "main"}).json()["session_id"] == "main"
            client.post("/v1/sessions/main/execute", json={"code": f"x = {value}"})
        for client, value in ((a, "'a'"), (b, "'b'"), (server.client, "'owner'")):
            result = client.post("/v1/sessions/main/execute", json={"code": "x"}).json()
            assert (result["session_id"], result["result"]) == ("main", {"text/plain": value})
            assert [each["session_id"] for each in client.get("/v1/sessions").json()["sessions"]] == ["main"]
        a.post("/v1/sessions", json={"session_id": "private"})
        a.put("/v1/sessions/private/files/f", content=b"secret")
        for other in (b, server.client):
            for name in ("private", "a%2Fprivate", "a/private"):
                for method, tail, body in (
                    ("GET", "", None),
                    ("DELETE", "", None),
                    ("POST", "/execute", {"code": "1"}),
                    ("POST", "/input", {"text": ""}),
                    ("POST", "/interrupt", {}),
                    ("GET", "/cells", None),
                    ("GET", "/cells/1", None),
                    ("GET", "/cells/1/output", None),
                    ("GET", "/files", None),
                    ("GET", "/files/f", None),
                    ("PUT", "/files/f", None),
                    ("DELETE", "/files/f", None),
                ):
                    answer = other.request(method, f"/v1/sessions/{name}{tail}", json=body)
                    assert answer.status_code == 404, (name, method, tail, answer.text)
                    assert "secret" not in answer.text
        problem(b.post("/v1/sessions", json={"session_id": "a/x"}), 422, "invalid_name")
        assert a.get("/v1/sessions/private").status_code == 200
        one, other = (
            client.post("/process/interpreter/execute", json={"code": "import os; print(os.getcwd())"}).json()["stdout"]
            for client in (a, b)
        )
        assert one != other


async def outcome_of(verb: Any, caller: Service, given: dict[str, Any]) -> None:
    outcome = verb(caller, **given)
    if inspect.isasyncgen(outcome):
        await anext(outcome)
    elif inspect.isawaitable(outcome):
        await outcome


def names_a_session(verb: Callable[..., Any]) -> bool:
    """Return whether the verb takes the name of a session, or a request that has one."""
    if "session_id" in inspect.signature(verb).parameters:
        return True
    request = typing.get_type_hints(verb).get("new")
    return request is not None and "session_id" in typing.get_type_hints(request)


@pytest.mark.req("safe.token")
async def test_no_verb_of_the_service_takes_the_id_of_another_tenant(service: Service) -> None:
    """Whatever verb is added later, too: each that names a session must turn the name into the caller's own."""
    other = service.acting_for(Caller("b", "b"))
    await service.acting_for(Caller("a", "a")).create_session("x")
    for caller in (other, service):
        # What they could make a session of, if they gave it a name of another's.
        await caller.create_session("mine")
        await caller.save_session("mine", "x")
    verbs = [
        (name, verb)
        for name, verb in inspect.getmembers(Service, inspect.isfunction)
        if not name.startswith("_") and names_a_session(verb)
    ]
    assert len(verbs) >= 16
    requests = {
        "NewCell": NewCell("1"),
        "NewSession": NewSession(session_id="a/x"),
        "NewTask": NewTask("true", session_id="a/x"),
    }
    checked: list[str] = []
    for caller in (other, service):
        for name, verb in verbs:
            given: dict[str, Any] = {}
            for parameter in list(inspect.signature(verb).parameters.values())[1:]:
                if parameter.name == "session_id":
                    given["session_id"] = "a/x"
                elif parameter.name == "new":
                    given["new"] = requests[inspect.formatannotation(parameter.annotation).rpartition(".")[2]]
                elif parameter.default is inspect.Parameter.empty:
                    given[parameter.name] = 1 if parameter.annotation in (int, "int") else "x"
            with pytest.raises((errors.SessionNotFound, errors.InvalidName)):
                await outcome_of(verb, caller, given)
            checked.append(name)
    assert len(checked) == 2 * len(verbs)


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
@pytest.mark.req("safe.token")
def test_a_tenant_is_not_told_which_folders_and_programs_exist(
    tokens: dict[str, str], server: Server, tmp_path: Path
) -> None:
    (tmp_path / "there" / "bin").mkdir(parents=True)
    (tmp_path / "there" / "bin" / "python").touch(0o755)
    with client_with(server, tokens["a"]) as a:
        for field, below in (("cwd", ""), ("cwd", "/bin"), ("cwd", "/.."), ("python", "/bin/python")):
            answers = []
            for name in ("there", "none"):
                told = problem(a.post("/v1/sessions", json={field: f"{tmp_path}/{name}{below}"}), 403, "not_granted")
                answers.append(str(told).replace(f"{tmp_path}/{name}", "PATH"))
            assert answers[0] == answers[1]


@pytest.mark.req("safe.token")
async def test_a_request_cannot_choose_its_tenant_or_its_bounds(service: Service) -> None:
    a = service.acting_for(Caller("a", "a"))
    b = service.acting_for(Caller("b", "b", bounds=Bounds(limits=SessionLimits(files=150))))
    await a.create_session("x")
    with pytest.raises(errors.SessionNotFound):
        await b.run_task(NewTask("true", session_id="x", tenant="a"))
    task = await b.run_task(NewTask("true", tenant="a"))
    assert [each.task_id for each in await b.shell_tasks()] == [task.task_id]
    assert await a.shell_tasks() == []
    made = await b.create(NewSession(session_id="y", tenant="a", bounds=Bounds()))
    assert made.limits.files == 150
    assert [each.session_id for each in await a.list_sessions()] == ["x"]
    assert [each.session_id for each in await b.list_sessions()] == ["y"]


@pytest.mark.req("safe.token")
def test_a_scope_allows_what_it_says(tokens: dict[str, str], server: Server) -> None:
    with client_with(server, tokens["a"]) as a, client_with(server, tokens["reader"]) as reader:
        a.post("/v1/sessions", json={"session_id": "main"})
        a.post("/v1/sessions/main/execute", json={"code": "print('seen')"})
        assert reader.get("/v1/sessions/main/cells/1").json()["stdout"] == "seen\n"
        assert reader.get("/v1/sessions/main/files").status_code == 200
        for method, path, body in (
            ("POST", "/v1/sessions", {}),
            ("DELETE", "/v1/sessions/main", None),
            ("POST", "/v1/sessions/main/execute", {"code": "1"}),
            ("POST", "/v1/sessions/main/input", {}),
            ("POST", "/v1/sessions/main/interrupt", {}),
            ("PUT", "/v1/sessions/main/files/f", None),
            ("DELETE", "/v1/sessions/main/files/f", None),
            ("POST", "/process/interpreter/execute", {"code": "1"}),
            ("GET", "/metrics", None),
        ):
            problem(reader.request(method, path, json=body), 403, "forbidden")
        lacking = problem(a.get("/metrics"), 403, "forbidden")
        create = "create one with `ingle token new NAME --scope admin`"
        assert lacking["detail"] == f"this token lacks the scope 'admin'; {create}"
        with client_with(server, tokens["b"]) as admin:
            assert admin.get("/metrics").status_code == 200
            admin.post("/v1/sessions", json={"session_id": "main"})
            # These reach other tenants, or the machine itself, so no scope is enough.
            for method, path, body in (
                ("PUT", "/v1/sessions/main/tools/own", {"command": "sh"}),
                ("DELETE", "/v1/sessions/main/tools/own", None),
                ("PUT", "/v1/nodes", {"count": 1}),
                ("POST", "/v1/nodes/local/drain", {}),
                ("GET", "/v1/grants", None),
                ("DELETE", "/v1/environments/e", None),
                ("GET", "/v1/tokens", None),
            ):
                for caller in (reader, a, admin):
                    told = problem(caller.request(method, path, json=body), 403, "forbidden")
                    assert told["detail"].startswith("only the owner of the server may "), (path, told)


@pytest.mark.req("safe.token")
def test_only_hashes_are_kept_and_a_token_is_shown_once(tmp_path: Path) -> None:
    made = json.loads(ingle_token(tmp_path, "new", "ci", "--sessions", "3", "--json"))
    file = tmp_path / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made["token"] not in file.read_text()
    listed = json.loads(ingle_token(tmp_path, "list", "--json"))["tokens"]
    assert [(each["name"], each["tenant"], each["scope"], each["limits"]) for each in listed] == [
        ("ci", "ci", "execute", {"sessions": 3})
    ]
    assert "hash" not in json.dumps(listed)
    assert made["token"] not in ingle_token(tmp_path, "list")
    assert "already" in ingle_token(tmp_path, "new", "ci", code=2)
    assert "not a name" in ingle_token(tmp_path, "new", "../x", code=2)
    assert "no token" in ingle_token(tmp_path, "revoke", "nobody", code=2)
    ingle_token(tmp_path, "revoke", "ci")
    assert json.loads(ingle_token(tmp_path, "list", "--json")) == {"tokens": []}
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]
    file.write_text("{")
    assert "damaged" in ingle_token(tmp_path, "list", code=2)


@pytest.mark.req("safe.token")
async def test_a_running_server_takes_over_new_and_revoked_tokens_and_closes_what_they_had_open(
    tokens: dict[str, str], server: Server
) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed

    made = ingle_token(server.home, "new", "late")
    with client_with(server, made) as late, client_with(server, tokens["a"]) as a:
        assert late.get("/v1/sessions").status_code == 200
        late.post("/v1/sessions", json={"session_id": "main"})
        url = f"{server.url.replace('http', 'ws')}/v1/sessions/main/events"
        async with connect(url, additional_headers={"Authorization": f"Bearer {made}"}, proxy=None) as watching:
            ingle_token(server.home, "revoke", "late")
            assert wait_until(lambda: late.get("/v1/sessions").status_code == 401)
            await watching.send(json.dumps({"op": "execute", "id": "1", "code": "1"}))
            with contextlib.suppress(ConnectionClosed):
                while True:
                    frame = json.loads(await asyncio.wait_for(watching.recv(), PATIENCE))
                    assert frame.get("cell") is None
            assert (watching.close_code, watching.close_reason) == (1008, "the token was revoked")
        assert a.get("/v1/sessions").status_code == 200
        # A file that cannot be read changes nothing for those who are known.
        (server.home / "tokens.json").write_text("{")
        for _ in range(3):
            assert a.get("/v1/sessions").status_code == 200


class TestCountedPerTenant:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, tasks_kept=2, max_tasks=1)

    async def test_no_tenant_uses_up_tasks_kept_tasks_or_keys_of_another(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ingle.service.access.MAX_KEYS", 2)
        monkeypatch.setattr("ingle.shell.tasks.MAX_SHELLS", 1)
        a, b = (service.acting_for(Caller(name, name)) for name in "ab")
        first = await b.shell("echo once", request_key="key")
        for number in range(4):
            await a.shell(f"echo {number}", request_key=f"key-{number}")
        # None of a's tasks and keys pushed those of b out.
        assert (await b.shell("echo once", request_key="key")).task_id == first.task_id
        assert len(await a.shell_tasks()) == 2
        await a.shell("true", shell_session="s")
        running = await a.shell("sleep 600", wait=0)
        with pytest.raises(errors.TooManyTasks):
            await a.shell("true")
        assert (await b.shell("true", shell_session="s")).exit_code == 0
        await a.shell_cancel(running.task_id)
        with pytest.raises(errors.TooManyTasks):
            await a.shell("true", shell_session="other")

    async def test_requests_that_come_together_get_no_more_than_is_left(self, service: Service) -> None:
        few = service.acting_for(Caller("few", "few", limits=Limits(running=1)))
        starts = [few.shell("sleep 600", wait=0) for _ in range(5)]
        ended = await asyncio.gather(*starts, return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["QuotaExceeded"] * 4 + ["Task"]
        for task in await few.shell_tasks():
            await few.shell_cancel(task.task_id)


@pytest.mark.req("safe.token")
def test_a_new_token_works_at_once(tokens: dict[str, str], server: Server) -> None:
    for number in range(3):
        with client_with(server, ingle_token(server.home, "new", f"new-{number}")) as client:
            assert client.get("/v1/sessions").status_code == 200
    with client_with(server, ingle_token(server.home, "new", "browser")) as client:
        made = {"token": client.headers.pop("Authorization").removeprefix("Bearer ")}
        assert client.post(SIGN_IN, json=made).status_code == 204


async def _last_of(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


@pytest.mark.req("safe.token")
@pytest.mark.parametrize("media", ["application/x-ndjson", "text/event-stream"])
async def test_a_stream_of_a_revoked_token_ends(start: Callable[..., Server], media: str) -> None:
    server = start()
    token = ingle_token(server.home, "new", "leaving")
    headers = {"Authorization": f"Bearer {token}", "Accept": media}
    code = {"code": "import time\nwhile True: print('more', flush=True); time.sleep(0.01)"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
        await client.post("/v1/sessions", json={"session_id": "main"})
        async with client.stream("POST", "/v1/sessions/main/execute", json=code) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await asyncio.to_thread(ingle_token, server.home, "revoke", "leaving")
            with pytest.raises(httpx.RemoteProtocolError):
                await asyncio.wait_for(_last_of(lines), PATIENCE)


@pytest.mark.req("safe.token")
async def test_a_request_that_waits_when_its_token_is_revoked_is_refused(start: Callable[..., Server]) -> None:
    server = start()
    token = ingle_token(server.home, "new", "leaving")
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
        await client.post("/v1/sessions", json={"session_id": "main"})
        await client.post("/v1/sessions/main/execute", json={"code": "import time; time.sleep(600)", "wait": 0})
        waiting = [
            asyncio.create_task(client.get("/v1/sessions/main/cells/1", params={"wait": 600})),
            asyncio.create_task(client.post("/v1/shell", json={"command": "sleep 600", "wait": 600})),
        ]
        while not (await client.get("/v1/shell")).json()["tasks"]:
            pass
        await asyncio.to_thread(ingle_token, server.home, "revoke", "leaving")
        for request in waiting:
            problem(await asyncio.wait_for(request, PATIENCE), 401, "unauthorized")


def test_limits_on_sessions_cells_and_bytes_are_kept_with_a_time_to_come_back(
    home: Path, start: Callable[..., Server]
) -> None:
    home.mkdir(mode=0o700)
    few = ingle_token(home, "new", "few", "--sessions", "2", "--running", "1")
    slow = ingle_token(home, "new", "slow", "--bytes-per-minute", "100000")
    server = start()
    with client_with(server, few) as client:
        for name in ("one", "two"):
            assert client.post("/v1/sessions", json={"session_id": name}).status_code == 201
        refused = client.post("/v1/sessions", json={"session_id": "three"})
        problem(refused, 429, "quota_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        problem(client.post("/process/interpreter/execute", json={"code": "1"}), 429, "quota_exceeded")
        client.post("/v1/sessions/one/execute", json={"code": "import time; time.sleep(600)", "wait": 0})
        refused = client.post("/v1/sessions/two/execute", json={"code": "1"})
        problem(refused, 429, "quota_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        client.post("/v1/sessions/one/interrupt", json={"wait": PATIENCE})
        assert client.post("/v1/sessions/two/execute", json={"code": "1"}).status_code == 200
        client.delete("/v1/sessions/one")
        assert client.post("/v1/sessions", json={"session_id": "three"}).status_code == 201
        client.delete("/v1/sessions/three")
        # Shell tasks count as cells do, and persistent shells as sessions.
        running = client.post("/v1/shell", json={"command": "sleep 600", "wait": 0}).json()["task_id"]
        problem(client.post("/v1/shell", json={"command": "true"}), 429, "quota_exceeded")
        problem(client.post("/v1/sessions/two/execute", json={"code": "1"}), 429, "quota_exceeded")
        client.post(f"/v1/shell/{running}/cancel", json={"wait": PATIENCE})
        client.post("/v1/sessions/two/execute", json={"code": "import time; time.sleep(600)", "wait": 0})
        problem(client.post("/v1/shell", json={"command": "true"}), 429, "quota_exceeded")
        client.post("/v1/sessions/two/interrupt", json={"wait": PATIENCE})
        in_shell = {"command": "true", "shell_session": "s"}
        assert client.post("/v1/shell", json=in_shell).json()["exit_code"] == 0
        assert client.post("/v1/shell", json=in_shell).json()["exit_code"] == 0
        problem(client.post("/v1/shell", json={**in_shell, "shell_session": "other"}), 429, "quota_exceeded")
        problem(client.post("/v1/sessions", json={"session_id": "three"}), 429, "quota_exceeded")
        assert client.post("/v1/shell", json={**in_shell, "command": "exit 3"}).json()["exit_code"] == 3
        assert client.post("/v1/sessions", json={"session_id": "three"}).status_code == 201
        # Others are not concerned.
        server.make_session("three")
    with client_with(server, slow) as client:
        client.post("/v1/sessions", json={"session_id": "main"})
        big = client.post("/v1/sessions/main/execute", json={"code": "print('x' * 150_000)"})
        assert len(big.content) > 150_000
        refused = client.get("/v1/sessions")
        problem(refused, 429, "quota_exceeded")
        assert 10 < int(refused.headers["retry-after"]) < 60
        problem(client.post("/v1/sessions/main/execute", json={"code": "1"}, headers=NDJSON), 429, "quota_exceeded")


def test_a_meter_fills_up_again_and_never_above_a_minutes_worth() -> None:
    now = [0.0]
    meter = Meter(600, lambda: now[0])
    meter.take(500)
    assert meter.delay() == 0
    meter.take(200)
    assert 10 < meter.delay() < 11
    now[0] = 12
    assert meter.delay() == 0
    now[0] = 10_000
    meter.take(601)
    assert 0 < meter.delay() < 1


async def test_cells_that_wait_for_their_turn_count_as_running(service: Service) -> None:
    limited = service.acting_for(Caller("a", "a", IMPLIED["execute"], Limits(running=3)))
    for name in ("one", "two"):
        await limited.create_session(name)
    await limited.begin("one", "import time; time.sleep(600)")
    asked = [asyncio.create_task(limited.begin("one", "1", queue=True)) for _ in range(10)]
    await asyncio.sleep(0)
    assert await until(lambda: sum(task.done() for task in asked) == 8)
    refused = [task.exception() for task in asked if task.done()]
    assert {type(error) for error in refused} == {errors.QuotaExceeded}
    with pytest.raises(errors.QuotaExceeded):
        await limited.begin("two", "1")
    await limited.interrupt("one")
    assert await until(lambda: all(task.done() for task in asked))
    assert [task.result() for task in asked if task.exception() is None] == [2, 3]
    assert (await limited.execute("two", "6 * 7")).success


@pytest.mark.req("safe.token", "shell.manage")
def test_a_tenant_never_meets_the_tasks_of_another(tokens: dict[str, str], server: Server) -> None:
    with client_with(server, tokens["a"]) as a, client_with(server, tokens["b"]) as b:
        task = a.post("/v1/shell", json={"command": "pwd"}).json()
        assert task["stdout"].endswith("/tenants/a\n")
        assert b.post("/v1/shell", json={"command": "pwd"}).json()["stdout"].endswith("/tenants/b\n")
        path = f"/v1/shell/{task['task_id']}"
        assert a.get(path).json()["stdout"] == task["stdout"]
        for other in (b, server.client):
            for answer in (other.get(path), other.post(path + "/cancel"), other.get(path + "/output")):
                problem(answer, 404, "task_not_found")
            assert task["task_id"] not in [each["task_id"] for each in other.get("/v1/shell").json()["tasks"]]
        assert [each["task_id"] for each in a.get("/v1/shell").json()["tasks"]] == [task["task_id"]]
    with client_with(server, tokens["reader"]) as reader:
        assert reader.get(path).json()["stdout"] == task["stdout"]
        problem(reader.post("/v1/shell", json={"command": "pwd"}), 403, "forbidden")


@pytest.mark.req("safe.token")
async def test_a_tenant_cannot_take_all_connections(tokens: dict[str, str], start: Callable[..., Server]) -> None:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import InvalidStatus

    server = start("--max-connections", "16")
    with client_with(server, tokens["a"]) as a, client_with(server, tokens["b"]) as b:
        a.post("/v1/sessions", json={"session_id": "main"})
        url = f"{server.url.replace('http', 'ws')}/v1/sessions/main/events"
        watching: list[ClientConnection] = []

        async def watch_without_end() -> None:
            while True:
                headers = {"Authorization": f"Bearer {tokens['a']}"}
                watching.append(await connect(url, additional_headers=headers, proxy=None))

        with pytest.raises(InvalidStatus) as refused:
            await watch_without_end()
        assert (refused.value.response.status_code, len(watching) <= 12) == (503, True)
        assert b"this tenant has 12 connections" in refused.value.response.body
        for other in (b, server.client):
            assert other.get("/v1/sessions").status_code == 200
        for each in watching:
            await each.close()
        assert wait_until(lambda: a.get("/v1/sessions").status_code == 200)
