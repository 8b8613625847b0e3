"""Memory of the server: ordinary requests, repeated, leave nothing behind and are answered piece by piece."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from support.server import Server, problem
from support.waiting import wait_until

pytestmark = [pytest.mark.req("safe.input", "out.bounded")]

MIB = 1024**2

MANY_CORES = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
os.cpu_count = lambda: 16
begin = ThreadPoolExecutor.__init__
def begin_with_all_threads(self, *args, **options):
    begin(self, *args, **options)
    together = threading.Barrier(self._max_workers)
    for _ in range(self._max_workers):
        self.submit(together.wait)
ThreadPoolExecutor.__init__ = begin_with_all_threads
"""
"""A server with as many threads as on a machine of 16 cores, all of them in use."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(MANY_CORES)
        started = Server(
            Path(folder) / "home",
            *("--isolation", "limits", "--timeline-memory", "2000", "--timeline-disk", str(100 * MIB)),
            *("--max-snapshot", "1M"),
            env={"PYTHONPATH": folder},
        )
        started.make_session("first")
        started.execute("1", "first")
        yield started
        assert started.stop() == 0


class Taken:
    """Memory that the server takes from now on."""

    def __init__(self, server: Server) -> None:
        self._proc = Path(f"/proc/{server.process.pid}")
        (self._proc / "clear_refs").write_text("5")
        self._before = self._read("VmHWM")

    def _read(self, name: str) -> int:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    @property
    def at_most(self) -> int:
        return self._read("VmHWM") - self._before

    @property
    def now(self) -> int:
        return self._read("VmRSS") - self._before


def test_long_messages_stay_in_the_memory_of_no_thread(server: Server) -> None:
    taken = Taken(server)
    for number in range(5):
        name = f"shows{number}"
        server.make_session(name)
        result = server.execute("for _ in range(30): display({'text/plain': 'x' * 10_000_000}, raw=True)", name)
        assert result["status"] == "ok"
    assert taken.at_most < 200 * MIB
    assert wait_until(lambda: taken.now < 40 * MIB, 10)


def test_tasks_keep_neither_their_input_nor_long_commands(server: Server) -> None:
    taken = Taken(server)
    command = "cat >/dev/null # " + "x" * (8 * MIB)
    ids = []
    for _ in range(9):
        ran = server.client.post("/v1/shell", json={"command": command, "stdin": "y" * (8 * MIB)}).json()
        assert (ran["status"], ran["exit_code"], ran["command"]) == ("done", 0, command)
        ids.append(ran["task_id"])
    assert wait_until(lambda: taken.now < 60 * MIB, 10)
    taken = Taken(server)
    listed = server.client.get("/v1/shell").json()["tasks"]
    assert [task["task_id"] for task in listed][-9:] == ids
    assert {task["command"] for task in listed[-9:]} == {command[:2000]}
    assert taken.at_most < 20 * MIB
    assert server.client.get(f"/v1/shell/{ids[0]}").json()["command"] == command


def test_a_running_task_keeps_neither_its_input_nor_a_long_command(server: Server) -> None:
    taken = Taken(server)
    command = "sleep 1000 # " + "x" * (8 * MIB)
    ids = [server.client.post("/v1/shell", json={"command": command, "wait": 0}).json()["task_id"] for _ in range(9)]
    assert wait_until(lambda: taken.now < 60 * MIB, 10)
    for task in ids:
        server.client.post(f"/v1/shell/{task}/cancel", json={}).raise_for_status()


def test_tasks_are_listed_page_by_page(server: Server) -> None:
    ids = [server.client.post("/v1/shell", json={"command": f"echo {n}"}).json()["task_id"] for n in range(5)]

    def page(**query: object) -> list[str]:
        return [task["task_id"] for task in server.client.get("/v1/shell", params=query).json()["tasks"]]

    assert page(limit=2) == ids[3:]
    assert page(limit=2, before=ids[3]) == ids[1:3]
    assert page()[-5:] == ids
    problem(server.client.get("/v1/shell", params={"before": "t0"}), 404, "task_not_found")
    problem(server.client.get("/v1/shell", params={"limit": 1001}), 422, "invalid_request")


def test_cells_are_listed_one_by_one(server: Server) -> None:
    server.make_session("long")
    codes = [f"{number} # " + "x" * (8 * MIB) for number in range(15)]
    for code in codes:
        server.execute(code, "long")
    taken = Taken(server)
    with server.client.stream("GET", "/v1/sessions/long/cells") as answer:
        listed = json.loads(answer.read())["cells"]
    assert [(cell["cell"], cell["code"]) for cell in listed] == list(enumerate(codes, 1))
    assert taken.at_most < 100 * MIB


def test_an_empty_list_and_a_session_that_is_missing(server: Server) -> None:
    server.make_session("new")
    assert server.client.get("/v1/sessions/new/cells").json() == {"cells": []}
    problem(server.client.get("/v1/sessions/no/cells"), 404, "session_not_found")
    assert server.client.get("/v1/snapshots").json() == {"snapshots": []}


def test_names_of_variables_are_bounded(server: Server) -> None:
    code = "for number in range(50_000): globals()['x' * 990 + str(number)] = 1"
    server.make_session("names")
    assert server.execute(code, "names")["status"] == "ok"
    taken = Taken(server)  # after the first, whose message leaves free memory between what is kept
    for number in range(3):
        server.make_session(f"names{number}")
        assert server.execute(code, f"names{number}")["status"] == "ok"
    assert wait_until(lambda: taken.now < 30 * MIB, 10)
    listed = next(
        each for each in server.client.get("/v1/sessions").json()["sessions"] if each["session_id"] == "names"
    )
    assert 1000 < len(listed["variables"]) < 5000
    problem(server.client.get("/v1/sessions/names/variables/y"), 404, "variable_not_found")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_snapshot_above_the_limit_is_refused(server: Server, chunked: bool) -> None:
    data = bytes(2 * MIB)
    content = (data[start : start + 65536] for start in range(0, len(data), 65536)) if chunked else data
    answer = server.client.put("/v1/snapshots/large/file", content=content)
    assert str(MIB) in problem(answer, 413, "too_large")["detail"]
    assert server.client.get("/v1/snapshots").json() == {"snapshots": []}


def test_a_request_over_mcp_is_counted_before_it_is_decoded(server: Server) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

    def post(params: bytes) -> httpx.Response:
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + params + b"}"
        return server.client.post("/mcp", content=body, headers=headers)

    assert post(b"{}").status_code == 200
    taken = Taken(server)
    refused = post(b'{"x":[' + b"[]," * 5_000_000 + b"[]]}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600)
    assert "more than 100000 elements" in refused.json()["error"]["message"]
    assert taken.at_most < 100 * MIB
    assert post(b"{}").status_code == 200


@pytest.mark.req("compat.jupyter")
def test_output_for_a_client_of_jupyter_that_stops_reading_stays_in_the_timeline(server: Server) -> None:
    kernel = server.client.post("/api/kernels", json={}).json()["id"]
    (session,) = [each["session_name"] for each in server.client.get("/api/kernels").json() if each["id"] == kernel]
    code = "for number in range(500): print(str(number) * 50_000)"
    header = {"msg_id": "1", "msg_type": "execute_request", "username": "u", "session": "s", "version": "5.3"}
    request = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}}
    url = server.url.replace("http", "ws") + f"/api/kernels/{kernel}/channels"
    taken = Taken(server)
    # The client takes a few messages by itself, and no more until it reads.
    with connect(url, additional_headers={"Authorization": f"token {server.token}"}, max_size=None) as client:
        client.send(json.dumps(request))
        cells = f"/v1/sessions/{session}/cells"
        assert wait_until(lambda: [each["status"] for each in server.client.get(cells).json()["cells"]] == ["ok"], 60)
        assert taken.at_most < 40 * MIB
    server.client.delete(f"/v1/sessions/{session}")


@pytest.mark.req("compat.sandboxes")
def test_a_run_waits_for_a_client_of_e2b_that_does_not_read(server: Server) -> None:
    made = server.client.post("/v2/sandboxes", json={"templateID": "base"}, headers={"X-API-Key": server.token}).json()
    headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
    code = "for n in range(60): print(str(n) * 500_000)"
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        taken = Taken(server)
        with client.stream("POST", "/execute", json={"code": code}) as answer:
            session = f"/v1/sessions/{made['sandboxID']}"
            assert wait_until(lambda: server.client.get(session).json()["state"] == "idle", 30)
            assert wait_until(lambda: taken.now < 20 * MIB, 10), taken.now
            printed = "".join(line["text"] for line in map(json.loads, answer.iter_lines()) if line["type"] == "stdout")
        assert printed == "".join(str(n) * 500_000 + "\n" for n in range(60))
    server.client.delete(f"/sandboxes/{made['sandboxID']}", headers={"X-API-Key": server.token}).raise_for_status()
