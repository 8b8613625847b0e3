"""The HTTP door, over real sockets, to a server that is a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import marked_processes, wait_until
from ingle import errors
from ingle.http.app import make_app
from ingle.http.guard import Guard, check_bind
from ingle.http.problems import Border
from ingle.service import Service
from ingle.settings import Settings

PATIENCE = 60.0
NDJSON = {"Accept": "application/x-ndjson"}


class Server:
    """`ingle serve` as a subprocess, and a client that has its token."""

    def __init__(self, home: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingle", "serve", "--port", "0", "--preload", "", "--pool", "1", *flags],
            env={**os.environ, "INGLE_HOME": str(home), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "stop" in line:
                break
        found = re.search(r"http://\S+", "".join(self.said))
        assert found, "".join(self.said)
        self.url = found[0]
        self.port = int(self.url.rpartition(":")[2])
        self._listening = threading.Thread(target=lambda: self.said.extend(self.process.stderr or []))
        self._listening.start()
        self.token = (env or {}).get("INGLE_TOKEN") or (home / "token").read_text().strip()
        self.client = self.make_client()

    def make_client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def make_session(self, name: str = "main", **options: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/sessions", json={"session_id": name, **options})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def execute(self, code: str, name: str = "main", **options: Any) -> dict[str, Any]:
        answer = self.client.post(f"/v1/sessions/{name}/execute", json={"code": code, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def cell(self, number: int, name: str = "main", **query: Any) -> dict[str, Any]:
        answer = self.client.get(f"/v1/sessions/{name}/cells/{number}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(PATIENCE)
        self._listening.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


@pytest.fixture
def start(mark: str, home: Path) -> Iterator[Callable[..., Server]]:
    """Start servers; whatever is left of them ends with the test."""
    servers: list[Server] = []

    def make(*flags: str, env: dict[str, str] | None = None) -> Server:
        servers.append(Server(home, *flags, env=env))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start()


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that the answer is that problem, whole; the problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["type"] == f"urn:ingle:problem:{code}"
    assert body["title"]
    assert len(body["detail"]) > 20
    assert "Traceback" not in answer.text
    return body


def raw_exchange(port: int, data: bytes) -> bytes:
    """Send these bytes; all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


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
        connection.sendall(f"GET /v1/sessions HTTP/1.1\r\n{head}\r\n".encode())
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


def test_a_refused_stream_is_a_problem(server: Server) -> None:
    with stream(server.client, "1") as answer:
        answer.read()
    problem(answer, 404, "session_not_found")


# Problems


@pytest.mark.req("http.problems")
@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/nowhere", "", 404, "not_found"),
        ("GET", "/v1/sessions/", "", 404, "not_found"),
        ("GET", "/v1/sessions/..%2Fmain", "", 404, "not_found"),
        ("PUT", "/v1/sessions", "", 405, "method_not_allowed"),
        ("GET", "/v1/sessions/main/execute", "", 405, "method_not_allowed"),
        ("GET", "/v1/sessions/none", "", 404, "session_not_found"),
        ("DELETE", "/v1/sessions/none", "", 404, "session_not_found"),
        ("POST", "/v1/sessions/none/execute", '{"code": "1"}', 404, "session_not_found"),
        ("POST", "/v1/sessions/none/interrupt", "", 404, "session_not_found"),
        ("GET", "/v1/sessions/main/cells/1", "", 404, "cell_not_found"),
        ("GET", "/v1/sessions/main/cells/one", "", 422, "invalid_request"),
        ("GET", "/v1/sessions/main/cells/" + "9" * 6000, "", 422, "invalid_request"),
        ("GET", "/v1/sessions/main/cells/1?wait=nan", "", 422, "invalid_request"),
        ("GET", "/v1/sessions/main/cells/1?wiat=1", "", 422, "invalid_request"),
        ("GET", "/v1/sessions/main/cells?count=0", "", 422, "invalid_request"),
        ("GET", "/v1/sessions/main/cells/1/output?stream=both%00", "", 404, "cell_not_found"),
        ("POST", "/v1/sessions", '{"session_id": "main"}', 409, "session_exists"),
        ("POST", "/v1/sessions", '{"session_id": "../x"}', 422, "invalid_name"),
        ("POST", "/v1/sessions", '{"session_id": "\\ud83d\\ude00\\u0000"}', 422, "invalid_name"),
        ("POST", "/v1/sessions", '{"python": "/no/such/python"}', 422, "interpreter_refused"),
        ("POST", "/v1/sessions", '{"cwd": "relative"}', 422, "invalid_request"),
        ("POST", "/v1/sessions", '{"env": {"A=B": "1"}}', 422, "invalid_request"),
        ("POST", "/v1/sessions", '{"idle_timeout": -1}', 422, "invalid_request"),
        ("POST", "/v1/sessions", "[]", 422, "invalid_request"),
        ("POST", "/v1/sessions", "{", 400, "invalid_json"),
        ("POST", "/v1/sessions", "[" * 100_000, 422, "invalid_request"),
        ("POST", "/v1/sessions/main/execute", "", 422, "invalid_request"),
        ("POST", "/v1/sessions/main/execute", '{"code": 1}', 422, "invalid_request"),
        ("POST", "/v1/sessions/main/execute", '{"code": "1", "lang": "R"}', 422, "invalid_request"),
        ("POST", "/v1/sessions/main/execute", '{"code": "1", "timeout": -1}', 422, "invalid_request"),
        ("POST", "/v1/sessions/main/input", '{"text": "x"}', 409, "not_waiting"),
    ],
)
def test_whatever_is_wrong_with_a_request_is_told_as_a_problem(
    quiet_server: Server, method: str, path: str, content: str, status: int, code: str
) -> None:
    answer = quiet_server.client.request(method, path, content=content)
    body = problem(answer, status, code)
    if code == "method_not_allowed":
        assert set(answer.headers["allow"].split(", ")) <= {"GET", "HEAD", "POST", "DELETE"}
        assert answer.headers["allow"].split(", ")[0] in body["detail"]
    # Nothing ran, nothing was made, and the server goes on.
    sessions = quiet_server.client.get("/v1/sessions").json()["sessions"]
    assert [(each["session_id"], each["execution_count"]) for each in sessions] == [("main", 0)]


@pytest.fixture(scope="module")
def quiet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with one session that has run nothing, for requests that all are refused."""
    server = Server(tmp_path_factory.mktemp("quiet"))
    server.make_session()
    yield server
    assert server.stop() == 0
    assert [path.name for path in server.home.rglob("*") if path.is_file()] == ["token"]


@pytest.mark.req("http.problems")
def test_a_missing_and_an_unknown_field_are_named(quiet_server: Server) -> None:
    post = quiet_server.client.post
    missing = problem(post("/v1/sessions/main/execute", json={}), 422, "invalid_request")
    assert missing["detail"].startswith("the body lacks the required field `code`")
    unknown = problem(post("/v1/sessions/main/execute", json={"code": "", "cod": ""}), 422, "invalid_request")
    assert unknown["detail"] == (
        "the body contains unknown field `cod`; the fields of this body are: code, timeout, wait, envs, queue"
    )


@pytest.mark.req("http.problems")
def test_a_body_above_the_limit_is_refused_before_it_is_read(start: Callable[..., Server]) -> None:
    server = start("--max-code", "1000")
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n".encode()
    # A body that is only announced: the answer cannot have waited for it.
    announced = raw_exchange(server.port, head + b"Content-Length: 1000000000000\r\n\r\n{")
    assert announced.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in announced
    # One of unknown length is given up as soon as it is too long; it never ends here either.
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    unending = raw_exchange(server.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17)
    assert unending.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in unending
    server.make_session()
    refused = server.client.post("/v1/sessions/main/execute", json={"code": "#" * 1001})
    problem(refused, 422, "invalid_request")
    assert server.execute("#" * 1000)["status"] == "ok"


@pytest.mark.req("http.problems")
def test_bytes_that_are_no_http_are_answered_with_a_problem(quiet_server: Server) -> None:
    answer = raw_exchange(quiet_server.port, b"\x16\x03\x01 this is no request\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert (json.loads(body)["status"], json.loads(body)["code"]) == (400, "invalid_http")


@pytest.mark.req("http.problems")
def test_too_many_sessions_are_refused(start: Callable[..., Server]) -> None:
    server = start("--max-sessions", "1")
    server.make_session()
    problem(server.client.post("/v1/sessions"), 429, "too_many_sessions")


def every_error() -> list[errors.IngleError]:
    """One of each class of ours, whatever its arguments."""
    examples: list[errors.IngleError] = [
        errors.SessionNotFound("x"),
        errors.CellNotFound("x", 2, 1),
        errors.SessionExists("x"),
        errors.Busy(3, 1.5),
        errors.ShellBusy("x", "t1", 1.5),
        errors.NotWaiting("x"),
        errors.TooManySessions(2),
    ]
    covered = {type(each) for each in examples}
    stack: list[type[errors.IngleError]] = [errors.IngleError]
    while stack:
        kind = stack.pop()
        stack += kind.__subclasses__()
        if kind not in covered:
            examples.append(kind("this is what happened; that is what to do"))
    return examples


class FailingService(Service):
    """Fails at whatever it is asked."""

    def __init__(self, failure: Exception) -> None:
        self.settings = Settings()
        self.failure = failure

    async def list_sessions(self) -> Any:
        raise self.failure


async def ask_failing(failure: Exception) -> httpx.Response:
    transport = httpx.ASGITransport(make_app(FailingService(failure), "secret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get("/v1/sessions", headers={"Authorization": "Bearer secret"})


@pytest.mark.req("http.problems")
@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
async def test_each_error_of_ours_is_a_problem_with_its_status_and_code(error: errors.IngleError) -> None:
    body = problem(await ask_failing(error), error.status, error.code)
    assert body["detail"] == error.message


@pytest.mark.req("http.problems")
async def test_the_unexpected_is_logged_and_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask_failing(RuntimeError("a private matter"))
    problem(answer, 500, "internal")
    assert "private" not in answer.text
    assert "a private matter" in caplog.text
    assert "GET /v1/sessions failed" in caplog.text


# The guard

GUARDED = [
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions/main"),
    ("DELETE", "/v1/sessions/main"),
    ("POST", "/v1/sessions/main/execute"),
    ("POST", "/v1/sessions/main/input"),
    ("POST", "/v1/sessions/main/interrupt"),
    ("GET", "/v1/sessions/main/cells"),
    ("GET", "/v1/sessions/main/cells/1"),
    ("GET", "/v1/sessions/main/cells/1/output"),
    ("GET", "/nowhere"),
    ("GET", "/healthz/"),
]


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_every_route_needs_the_token(quiet_server: Server, method: str, path: str) -> None:
    token = quiet_server.token
    for authorization in (
        None,
        "",
        "Bearer",
        f"Basic {token}",
        token,
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
    ):
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = httpx.request(method, quiet_server.url + path, headers=headers, timeout=PATIENCE)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    in_url = httpx.request(method, f"{quiet_server.url}{path}?token={token}&access_token={token}", timeout=PATIENCE)
    problem(in_url, 401, "unauthorized")
    assert quiet_server.client.get("/v1/sessions/main").json()["execution_count"] == 0


def test_health_is_open(quiet_server: Server) -> None:
    from ingle import __version__

    assert httpx.get(quiet_server.url + "/healthz").json() == {"status": "ok", "version": __version__}


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(("method", "path"), [*GUARDED, ("GET", "/healthz")])
def test_every_route_checks_host_and_origin(quiet_server: Server, method: str, path: str) -> None:
    request = quiet_server.client.request
    for host in (
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "localhost:1:2",
        "",
    ):
        problem(request(method, path, headers={"Host": host}), 421, "misdirected")
    for origin in ("null", "http://evil.example", "http://localhost.evil.example", "file://", "localhost", ""):
        problem(request(method, path, headers={"Origin": origin}), 403, "forbidden")


@pytest.mark.req("safe.token")
def test_a_request_with_no_host_two_hosts_or_two_tokens_is_refused(quiet_server: Server) -> None:
    bearer = f"Authorization: Bearer {quiet_server.token}\r\n"
    for headers, status in (
        (bearer, 421),
        (bearer + "Host: localhost\r\nHost: evil.example\r\n", 421),
        (bearer + "Host: localhost\r\nAuthorization: Bearer x\r\n", 401),
        (bearer + "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n", 403),
        (bearer + "Host: localhost\r\n", 200),
    ):
        request = f"GET /v1/sessions HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        assert raw_exchange(quiet_server.port, request.encode()).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.req("safe.token")
def test_loopback_names_are_hosts_and_origins_of_ours(quiet_server: Server) -> None:
    for host in ("localhost", "LOCALHOST:99", "localhost.", "127.0.0.1", "127.1.2.3:8", "[::1]", "[::1]:8377"):
        answer = quiet_server.client.get("/v1/sessions", headers={"Host": host, "Origin": f"http://{host}"})
        assert answer.status_code == 200, host


@pytest.mark.req("safe.token")
def test_other_hosts_are_answered_when_they_are_named(start: Callable[..., Server]) -> None:
    server = start("--host", "0.0.0.0", "--allowed-hosts", "box.example,10.1.2.3")
    named = {"Host": "Box.example:80", "Origin": "https://10.1.2.3"}
    assert server.client.get("/v1/sessions", headers=named).status_code == 200
    problem(server.client.get("/v1/sessions", headers={"Host": "0.0.0.0"}), 421, "misdirected")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "box.example"])
def test_listening_to_other_machines_needs_a_named_host(host: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="--allowed-hosts"):
        check_bind(host, [])
    check_bind(host, ["192.0.2.1", "box.example"])


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example", "authorization": "Bearer secret"}, 421),
        ({"host": "localhost", "origin": "http://evil.example", "authorization": "Bearer secret"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 401),
        ({"host": "localhost", "origin": "http://localhost", "authorization": "Bearer wrong"}, 401),
        ({"host": "localhost", "origin": "http://localhost", "authorization": "Bearer secret"}, None),
    ],
)
@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}], ids=["plain", "with answer"])
async def test_a_websocket_passes_the_same_guard(
    headers: dict[str, str], status: int | None, extensions: dict[str, Any]
) -> None:
    reached, sent = [], []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    scope = {
        "type": "websocket",
        "path": "/v1/sessions/main/events",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "extensions": extensions,
    }
    await Border(Guard(inner, "secret"))(scope, receive, send)
    if status is None:
        assert (reached, sent) == (["/v1/sessions/main/events"], [])
    elif extensions:
        assert (reached, sent[0]["type"], sent[0]["status"]) == ([], "websocket.http.response.start", status)
    else:
        assert (reached, [message["type"] for message in sent]) == ([], ["websocket.close"])


@pytest.mark.req("safe.token")
def test_tokens_are_compared_in_constant_time_as_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import hmac

    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    guard = Guard(lambda *_: None, "secret")  # type: ignore[arg-type,return-value]
    for given in ("s", "secret", "x" * 100_000):
        with contextlib.suppress(errors.Unauthorized):
            guard._check_token([f"Bearer {given}".encode()])
    digest = hashlib.sha256(b"secret").digest()
    assert [other for _, other in compared] == [digest] * 3
    assert {len(one) for one, _ in compared} == {32}


# The token


@pytest.mark.req("safe.token")
def test_the_token_is_made_once_for_its_owner_alone_and_shown_nowhere(start: Callable[..., Server], mark: str) -> None:
    server = start()
    file = server.home / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700
    assert re.fullmatch(r"[\w-]{43}", server.token)
    second = start()
    assert second.token == server.token
    assert not list(server.home.glob("token.*"))

    server.make_session()
    seen = server.execute("import os; str(dict(os.environ))")["result"]["text/plain"]
    httpx.get(server.url + "/v1/sessions", headers={"Authorization": f"Bearer {server.token}x"})
    raw_exchange(server.port, f"GET /{server.token} no http\r\n\r\n".encode())
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid, state in marked_processes(mark) if state != "Z"]
    assert len(commands) >= 4
    server.stop()
    assert server.process.returncode == 0
    for shown in (seen, "".join(server.said), str(commands)):
        assert server.token not in shown
    assert str(file) in "".join(server.said)


@pytest.mark.req("safe.token")
def test_the_token_of_the_environment_is_used_and_kept_from_the_sessions(start: Callable[..., Server]) -> None:
    server = start(env={"INGLE_TOKEN": "a-token-of-my-own"})
    assert not (server.home / "token").exists()
    server.make_session()
    assert server.execute("import os; os.environ.get('INGLE_TOKEN')")["result"] is None
    assert "a-token-of-my-own" not in "".join(server.said)
    assert "INGLE_TOKEN" in "".join(server.said)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [("secret\n", 0o644, "others can read"), ("", 0o600, "holds no token"), ("a b", 0o600, "holds no token")],
)
def test_a_token_that_is_no_secret_is_refused(tmp_path: Path, content: str, mode: int, words: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve", "--port", "0"],
        env={**os.environ, "INGLE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("ingle: ")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_line_to_try_works_as_it_is_printed(server: Server) -> None:
    [line] = [line for line in server.said if line.strip().startswith("try")]
    answer = subprocess.run(["sh", "-c", line.strip().removeprefix("try")], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["session_id"] == "main"
    assert [each["session_id"] for each in server.client.get("/v1/sessions").json()["sessions"]] == ["main"]


# Starting and ending


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order_and_answers_those_who_wait(
    start: Callable[..., Server], mark: str, number: signal.Signals
) -> None:
    server = start()
    server.make_session()
    server.make_session("idle")
    answers: list[dict[str, Any]] = []

    def wait_on_cell() -> None:
        with server.make_client() as client:
            code = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint('on')\nchild.wait()"
            answers.append(client.post("/v1/sessions/main/execute", json={"code": code, "wait": 600}).json())

    waiting = threading.Thread(target=wait_on_cell)
    waiting.start()
    assert wait_until(lambda: server.client.get("/v1/sessions/main").json()["execution_count"] == 1)
    assert wait_until(lambda: server.cell(1)["stdout"] == "on\n")
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 0
    waiting.join(PATIENCE)
    assert [(answer["status"], answer["stdout"]) for answer in answers] == [("exit", "on\n")]
    assert marked_processes(mark) == []


def test_a_port_in_use_is_told_in_a_sentence(server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve", "--port", str(server.port)],
        env={**os.environ, "INGLE_HOME": str(server.home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"ingle: port {server.port} of 127.0.0.1 is in use; stop what listens there, or choose another port with "
        "--port (0 takes any free one)\n"
    )


STRAYS = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait"], start_new_session=True)
print("started", flush=True)
"""


@pytest.mark.req("exit.tree")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_when_the_server_is_killed_all_that_its_sessions_started_is_gone_within_a_second(
    mark: str, tmp_path: Path, method: str
) -> None:
    server = Server(tmp_path, "--start-method", method)
    try:
        for name, then in (("idle", ""), ("busy", "while True: pass"), ("child", "subprocess.run(['sleep', '600'])")):
            server.make_session(name)
            server.execute(STRAYS + then, name, wait=0)
            assert wait_until(lambda name=name: server.cell(1, name)["stdout"] == "started\n")
        before = marked_processes(mark)
        assert len(before) >= 3 * 5 + 1, before
    finally:
        os.kill(server.process.pid, signal.SIGKILL)
        killed = time.monotonic()
    assert wait_until(lambda: not [pid for pid, _ in marked_processes(mark) if pid != server.process.pid], 1.0), (
        time.monotonic() - killed,
        marked_processes(mark),
    )
    assert server.stop() == -signal.SIGKILL

    # The next server on this folder clears away what the killed one left in it.
    following = Server(tmp_path)
    assert following.stop() == 0
    assert [*(tmp_path / "sessions").iterdir(), *(tmp_path / "run").iterdir()] == []


@pytest.mark.req("exit.tree")
def test_when_a_session_is_ended_all_that_it_started_is_gone(server: Server, mark: str) -> None:
    def strays() -> list[str]:
        names = []
        for pid, _ in marked_processes(mark):
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
        return sorted(name for name in names if name in ("sh", "sleep"))

    server.make_session("other")
    server.make_session("strays")
    server.execute(STRAYS, "strays")
    assert wait_until(lambda: strays() == ["sh", "sleep", "sleep", "sleep"]), strays()
    server.client.delete("/v1/sessions/strays")
    assert strays() == []
    assert server.execute("1", "other")["status"] == "ok"


# Hostile requests


def test_a_hostile_session_name_harms_nobody(server: Server) -> None:
    server.make_session()
    for name in ("..", "%2e%2e%2fx", "a%00b", "x" * 60_000, "%F0%9F%98%80", "%ff"):
        answer = server.client.get(f"{server.url}/v1/sessions/{name}")
        assert answer.status_code in (404, 400), (name[:20], answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json"
    assert server.execute("1")["status"] == "ok"
