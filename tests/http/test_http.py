"""The HTTP door, over real sockets, to a server that is a process of its own."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server import NDJSON, PATIENCE, Server, problem
from support.waiting import wait_until

pytestmark = pytest.mark.both_levels

# Sessions and cells


def test_a_session_is_made_used_listed_and_ended(server: Server) -> None:
    made = server.make_session("main", env={"COLOUR": "teal"}, idle_timeout=7)
    assert (made["session_id"], made["state"], made["execution_count"]) == ("main", "idle", 0)
    assert made["idle_timeout"] == 7.0

    first = server.execute("import os; x = os.environ['COLOUR']; print(x)")
    second = server.execute("x.upper()")
    assert (first["status"], first["stdout"]) == ("ok", "teal\n")
    assert (second["cell"], second["success"], second["result"]) == (2, True, {"text/plain": "'TEAL'"})

    listed = server.client.get("/v1/sessions").json()["sessions"]
    assert [(each["session_id"], each["variables"]) for each in listed] == [("main", ["os", "x"])]
    assert server.client.get("/v1/sessions/main").json() == listed[0]
    cells = server.client.get("/v1/sessions/main/cells", params={"first": 2, "count": 5}).json()["cells"]
    assert [(each["cell"], each["code"], each["status"]) for each in cells] == [(2, "x.upper()", "ok")]

    ended = server.client.delete("/v1/sessions/main")
    assert (ended.status_code, ended.json()["state"]) == (200, "dead")
    assert server.client.get("/v1/sessions").json() == {"sessions": []}


def test_a_session_without_a_name_is_given_one_and_says_where_it_is(server: Server) -> None:
    answer = server.client.post("/v1/sessions")
    assert answer.status_code == 201
    where = answer.headers["location"]
    assert server.client.get(where).json()["session_id"] == answer.json()["session_id"] == where.rpartition("/")[2]


def test_output_is_read_by_line_and_by_pattern(server: Server) -> None:
    server.make_session()
    server.execute("import sys\nfor n in range(100): print('line', n)\nprint('oops', file=sys.stderr)")
    path = "/v1/sessions/main/cells/1/output"
    page = server.client.get(path, params={"from_line": 3, "lines": 2}).json()
    assert page["lines"] == [{"number": 3, "text": "line 2"}, {"number": 4, "text": "line 3"}]
    assert page["next_line"] == 5
    found = server.client.get(path, params={"grep": "7$", "lines": 50}).json()
    assert [line["text"] for line in found["lines"]] == [f"line {n}" for n in range(7, 100, 10)]
    errors_page = server.client.get(path, params={"stream": "stderr"}).json()
    assert errors_page["lines"] == [{"number": 1, "text": "oops"}]


def test_a_cell_is_read_back_as_it_was_told(server: Server) -> None:
    def told(cell: int, **query: int) -> tuple[list[tuple[str, str]], bool]:
        found = server.client.get(f"/v1/sessions/main/cells/{cell}/events", params=query).json()
        kept = [(each["type"], each.get("text", each.get("state", ""))) for each in found["events"]]
        return kept, found["more"]

    server.make_session()
    server.client.post("/v1/sessions/main/notes", json={"text": "before"})
    code = "import sys\nfor n in range(3): print(n, flush=True)\nprint('x', file=sys.stderr, flush=True)\nprint('y'); 7"
    server.execute(code)
    server.client.post("/v1/sessions/main/notes", json={"text": "after"})
    server.execute("1 / 0")
    texts = [("stdout", "0\n1\n2\n"), ("stderr", "x\n"), ("stdout", "y\n")]
    around = [("note", "before"), ("state", "running")]
    done = [("result", ""), ("done", ""), ("state", "idle"), ("note", "after")]
    assert told(1) == ([*around, *texts, *done], False)
    assert [kind for kind, _ in told(2)[0]] == ["state", "error", "done", "state"]
    few, more = told(1, characters=len("before" + code + "0"))
    assert (few[: len(around)], more) == (around, True)
    assert server.client.get("/v1/sessions/main/cells/3/events").status_code == 404


def test_input_is_answered_and_its_end_told(server: Server) -> None:
    server.make_session()
    asked = server.execute("print([input('one? '), input('two? ')])\nimport sys\nsys.stdin.read()")
    assert (asked["status"], asked["prompt"]) == ("waiting_for_input", "one? ")
    again = server.client.post("/v1/sessions/main/input", json={"text": "1"}).json()
    assert (again["status"], again["prompt"], again["cell"]) == ("waiting_for_input", "two? ", 1)
    third = server.client.post("/v1/sessions/main/input", json={"text": "2"}).json()
    assert third["status"] == "waiting_for_input"
    done = server.client.post("/v1/sessions/main/input", json={"text": "rest", "eof": True}).json()
    assert (done["status"], done["result"]) == ("ok", {"text/plain": "'rest'"})
    assert done["stdout"] == "one? two? ['1', '2']\n"


def test_an_interrupt_answers_with_the_cell_it_stopped_and_says_when_there_was_none(server: Server) -> None:
    server.make_session()
    idle = server.client.post("/v1/sessions/main/interrupt").json()
    assert idle["interrupted"] is False
    assert "no cell" in idle["notice"]
    server.execute("x = 1\nimport time\nprint('on')\nwhile True: time.sleep(1)", wait=0)
    assert wait_until(lambda: server.cell(1)["stdout"] == "on\n")
    stopped = server.client.post("/v1/sessions/main/interrupt", json={"wait": 30}).json()
    assert (stopped["cell"], stopped["status"], stopped["error"]["name"]) == (1, "interrupted", "KeyboardInterrupt")
    assert server.execute("x")["result"] == {"text/plain": "1"}


def test_a_busy_session_refuses_a_cell_and_takes_it_in_turn_when_asked(server: Server, tmp_path: Path) -> None:
    server.make_session()
    gate = tmp_path / "gate"
    server.execute(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nx = 5", wait=0)
    refused = server.client.post("/v1/sessions/main/execute", json={"code": "x = 6"})
    assert problem(refused, 409, "busy")["cell"] == 1
    body = json.dumps({"code": "x + 1", "queue": True}).encode()
    head = f"Host: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET /healthz HTTP/1.1\r\n{head}\r\n".encode())
        assert connection.recv(65536)
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        connection.sendall(f"POST /v1/sessions/main/execute HTTP/1.1\r\n{head}\r\n".encode() + body)
        # What is answered after it was sent shows that the server, which reads in turn, has had it.
        for _ in range(5):
            assert server.cell(1)["status"] == "running"
        gate.touch()
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    result = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (result["cell"], result["status"], result["result"]) == (2, "ok", {"text/plain": "6"})


# Waiting


@pytest.mark.req("wait.budget")
def test_wait_bounds_the_call_and_a_dropped_connection_leaves_the_cell_running(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    # A call that did not mind its own `wait` would wait for an hour, and this client gives up sooner.
    server = start("--wait", "3600")
    gate = tmp_path / "gate"
    server.make_session()
    hold = f"import os, time\nprint('begun')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('over')"
    early = server.execute(hold, wait=0)
    assert (early["status"], early["success"], early["cell"]) == ("running", False, 1)
    assert wait_until(lambda: server.cell(1)["stdout"] == "begun\n")

    # Neither a reader that goes away nor one whose time is over changes anything for the cell.
    with pytest.raises(httpx.ReadTimeout), server.make_client() as hasty:
        hasty.get("/v1/sessions/main/cells/1", params={"wait": 60}, timeout=0.2)
    assert server.cell(1, wait=0.05)["status"] == "running"
    gate.touch()
    late = server.cell(1, wait=60)
    assert (late["status"], late["stdout"]) == ("ok", "begun\nover\n")

    # Nor does the connection that began it.
    gate.unlink()
    with pytest.raises(httpx.ReadTimeout), server.make_client() as hasty:
        hasty.post("/v1/sessions/main/execute", json={"code": hold}, timeout=0.2)
    with server.make_client() as client:
        assert client.get("/v1/sessions/main/cells/2").json()["status"] == "running"
    gate.touch()
    assert server.cell(2, wait=60)["stdout"] == "begun\nover\n"


@pytest.mark.req("wait.cursor")
def test_polling_reads_from_an_event_on_deletes_nothing_and_finished_cells_stay(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server.make_session()
    server.execute(
        f"import os, time\nprint('one')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('two')",
        wait=0,
    )
    assert wait_until(lambda: server.cell(1)["stdout"] == "one\n")
    seen = server.cell(1)
    nothing_new = server.cell(1, **{"from": seen["next_event"]})
    assert (nothing_new["stdout"], nothing_new["status"]) == ("", "running")
    assert server.cell(1)["stdout"] == "one\n"
    gate.touch()
    rest = server.cell(1, wait=60, **{"from": seen["next_event"]})
    assert (rest["stdout"], rest["status"]) == ("two\n", "ok")
    server.execute("print('another')")
    server.execute("import os; os._exit(1)")
    for _ in range(2):
        whole = server.cell(1)
        assert (whole["stdout"], whole["status"], whole["cell"]) == ("one\ntwo\n", "ok", 1)
        assert server.cell(1, **{"from": seen["next_event"]})["stdout"] == "two\n"


# Streaming


def stream(client: httpx.Client, code: str, **options: Any) -> contextlib.AbstractContextManager[httpx.Response]:
    return client.stream("POST", "/v1/sessions/main/execute", json={"code": code, **options}, headers=NDJSON)


def test_a_stream_has_the_events_of_its_cell_from_the_first_to_done(server: Server) -> None:
    server.make_session()
    server.execute("print('before')")
    with stream(server.client, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n7") as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
        events = [json.loads(line) for line in answer.iter_lines()]
    assert {event["cell"] for event in events} == {2}
    assert [event["seq"] for event in events] == list(range(events[0]["seq"], events[0]["seq"] + len(events)))
    assert (events[0]["type"], events[0]["state"], events[-1]["type"]) == ("state", "running", "done")
    texts = {kind: "".join(e["text"] for e in events if e["type"] == kind) for kind in ("stdout", "stderr")}
    assert texts == {"stdout": "out\n", "stderr": "err\n"}
    assert [event["data"] for event in events if event["type"] == "result"] == [{"text/plain": "7"}]
    assert events[-1]["result"]["status"] == "ok"
    assert events[-1]["characters"] == {"stdout": 4, "stderr": 4}


def test_a_stream_is_live_and_its_client_may_go_without_ending_the_cell(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server.make_session()
    code = f"import os, time\nprint('seen')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('on')"
    with server.make_client() as client, stream(client, code) as answer:
        for line in answer.iter_lines():
            if json.loads(line).get("text", "").startswith("seen"):
                break
    assert server.cell(1)["status"] == "running"
    gate.touch()
    finished = server.cell(1, wait=60)
    assert (finished["status"], finished["stdout"]) == ("ok", "seen\non\n")


def test_a_stream_ends_with_done_when_its_session_is_ended(server: Server) -> None:
    server.make_session()
    with server.make_client() as client, stream(client, "import time\nprint('in')\ntime.sleep(600)") as answer:
        events = []
        for line in answer.iter_lines():
            events.append(json.loads(line))
            if events[-1]["type"] == "stdout":
                server.client.delete("/v1/sessions/main")
    assert events[-1]["type"] == "done"
    assert events[-1]["result"]["status"] == "exit"


def test_a_stream_comes_as_server_sent_events_when_asked_for(server: Server) -> None:
    server.make_session()
    answer = server.client.post(
        "/v1/sessions/main/execute", json={"code": "print('a\\nb')\n7"}, headers={"Accept": "text/event-stream"}
    )
    assert answer.headers["content-type"] == "text/event-stream"
    frames = [dict(line.split(": ", 1) for line in frame.split("\n")) for frame in answer.text.split("\n\n") if frame]
    lines = server.client.get("/v1/sessions/main/cells/1").json()
    assert lines["stdout"] == "a\nb\n"
    events = [json.loads(frame["data"]) for frame in frames]
    assert [(frame["id"], frame["event"]) for frame in frames] == [(str(e["seq"]), e["type"]) for e in events]
    assert [event["type"] for event in events] == ["state", "stdout", "result", "done"]


def test_a_refused_stream_is_a_problem(server: Server) -> None:
    with stream(server.client, "1") as answer:
        answer.read()
    problem(answer, 404, "session_not_found")
