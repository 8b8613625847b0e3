"""Whatever is wrong with a request is told as a problem of RFC 9457, and harms nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ingle import errors
from ingle.callers import Caller
from ingle.http.app import make_app
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.principals import Principals
from ingle.http.problems import RangeNotSatisfiable
from ingle.service import Service
from support.checkout import beside
from support.server import Server, problem, raw_exchange
from support.service import make_settings

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
        pytest.param(
            *("POST", "/v1/sessions", '{"python": "/no/such/python"}', 422, "interpreter_refused"),
            marks=pytest.mark.level("none", "elsewhere only interpreters of the operator's list are started"),
        ),
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


@pytest.mark.req("http.problems")
def test_a_missing_and_an_unknown_field_are_named(quiet_server: Server) -> None:
    post = quiet_server.client.post
    missing = problem(post("/v1/sessions/main/execute", json={}), 422, "invalid_request")
    assert missing["detail"].startswith("the body lacks the required field `code`")
    unknown = problem(post("/v1/sessions/main/execute", json={"code": "", "cod": ""}), 422, "invalid_request")
    assert unknown["detail"] == (
        "the body contains unknown field `cod`; the fields of this body are: code, timeout, wait, envs, queue, script, "
        "trial, network, policy"
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
    refused = server.client.post("/v1/sessions")
    told = problem(refused, 503, "too_many_sessions")
    assert told["detail"] == (
        "all 1 sessions are in use: the setting max_sessions is 1; end one, try again later, or raise it"
    )
    assert (told["retry_after"], refused.headers["retry-after"]) == (10.0, "10")


def every_error() -> list[errors.IngleError]:
    """One of each class of ours, whatever its arguments."""
    examples: list[errors.IngleError] = [
        errors.SessionNotFound("x"),
        errors.CellNotFound("x", 2, 1),
        errors.ApprovalNotFound("x", "y"),
        errors.FigureNotFound("x", "y"),
        errors.VariableNotFound("x", ["y"]),
        errors.ShellBusy("x", "t1", 1.5),
        errors.TooManyTasks(2),
        errors.SessionExists("x"),
        errors.SessionDiffers("x", "has no environment by name, not 'y'"),
        errors.Busy(3, 1.5),
        errors.NotWaiting("x"),
        errors.TooManySessions(2, "the setting max_sessions is 2", "raise it"),
        errors.Overloaded(7.0),
        errors.BatchBegun(),
        errors.EnvironmentNotFound("x", ["y"]),
        errors.EnvironmentFailed("x", "pip says no"),
        errors.KeyReused(),
        errors.FileNotThere("a/b"),
        errors.FigureNotFound("x", "y"),
        errors.VariableNotFound("x", ["y"]),
        errors.ShellBusy("x", "t1", 1.5),
        errors.CellElsewhere("x", 2, "y"),
        errors.CellNotKept("s", 3, [1, 5], auto=True),
        errors.CheckpointNotFound("x", "y", ["z"], None),
        errors.TrialNotFound("x", "y", []),
        errors.FailureNotFound("x", 1, [], kept=True),
        errors.TrialOpen(3, "trial-1"),
        errors.TrialRefused("connections cannot be held"),
        errors.SessionHeldBack("x", "its level is not granted"),
        errors.SnapshotNotFound("x"),
        errors.SnapshotDamaged("x", "its end is missing"),
        errors.SnapshotUntrusted("x"),
        errors.TaskNotFound("t1"),
        errors.TaskOver("t1"),
        errors.IsolationUnavailable("sandbox", "the kernel has no user namespaces"),
        errors.LimitUnavailable("files", "files is unlimited"),
        errors.NodeLost("n2", "the connection was closed"),
        errors.SessionLost("a", "n2"),
        RangeNotSatisfiable(10),
        errors.InputClosed("t1"),
        errors.TooManyTasks(2),
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
        super().__init__(make_settings(), None)  # type: ignore[arg-type]
        self.failure = failure

    def acting_for(self, caller: Caller) -> Service:
        return self

    def sent_by(self, via: str, client: str = "") -> Service:
        return self

    async def list_sessions(self) -> Any:
        raise self.failure


async def ask_failing(failure: Exception) -> httpx.Response:
    service = FailingService(failure)
    transport = httpx.ASGITransport(make_app(service, Credentials(Principals(service, "secret"))))
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


# Hostile requests


def test_a_hostile_session_name_harms_nobody(server: Server) -> None:
    server.make_session()
    for name in ("..", "%2e%2e%2fx", "a%00b", "x" * 60_000, "%F0%9F%98%80", "%ff"):
        answer = server.client.get(f"{server.url}/v1/sessions/{name}")
        assert answer.status_code in (404, 400, 414), (name[:20], answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json"
    assert server.execute("1")["status"] == "ok"


def _kinds(of: type[errors.IngleError]) -> list[type[errors.IngleError]]:
    return [of, *(kind for each in of.__subclasses__() for kind in _kinds(each))]


def test_every_problem_is_in_the_table_by_its_status() -> None:
    page = beside("docs/reference/http.md").read_text()
    rows = {int(line.split("|")[1]): line for line in page.splitlines() if re.match(r"\| \d{3} \|", line)}
    known = {kind for kind in _kinds(errors.IngleError) if kind is not errors.Unreachable}
    # Those of other protocols are answered in the form of that protocol.
    told = {kind for kind in known if not kind.__module__.startswith("ingle.compat.")}
    missing = {(kind.status, kind.code) for kind in told if f"`{kind.code}`" not in rows.get(kind.status, "")}
    assert missing == set()
