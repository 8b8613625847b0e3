"""The server about itself: the document it serves is what it does; readiness, metrics, the page to read."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.http.app import operations
from ingle.service import Service
from support.server import Server, problem
from support.service import make_settings

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance"
)


@pytest.mark.req("http.problems", "safe.input")
def test_the_server_does_what_its_document_says_whatever_it_is_sent(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    # Whatever is sent as a shell command is given to a program that does nothing.
    # A trial makes the session busy for a moment only.
    server = start("--wait", "1", "--shell", "true", "--trial-seconds", "0.2")
    server.make_session()
    server.execute("print('seen')")
    # Most requests are to reach a session that is there; those that end or copy it meet none. A variable is told in
    # time: the answer to a limit of nanoseconds is 504, which the tool takes for a fault.
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        """
[parameters]
"path.session_id" = "main"
"path.cell" = 1
[[operations]]
include-name = "DELETE /v1/sessions/{session_id}"
parameters = { "path.session_id" = "gone" }
[[operations]]
include-name = "POST /v1/sessions/{session_id}/try"
parameters = { "path.session_id" = "gone" }
[[operations]]
include-name = "POST /v1/sessions/{session_id}/probe"
parameters = { "path.session_id" = "gone" }
[[operations]]
include-name = "GET /v1/sessions/{session_id}/variables/{name}"
parameters = { "query.limit" = 5 }
"""
    )
    # One thread: with two, `ast` of CPython 3.11 fails now and then.
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{server.url}/openapi.json",
        "--header", f"Authorization: Bearer {server.token}",
        "--checks", CHECKS, "--max-examples", "10", "--workers", "1", "--generation-database", "none",
        "--phases", "examples,coverage,fuzzing", "--request-timeout", "20", "--no-color", "--seed", "1",
        "--suppress-health-check", "all",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
    assert re.search(r"\b(\d{3,}) generated, \1 passed", ended.stdout), ended.stdout[-1000:]
    assert server.execute("1 + 1", queue=True)["result"] == {"text/plain": "2"}
    # Some are durable, and would outlive the server.
    for session in server.client.get("/v1/sessions").json()["sessions"]:
        assert server.client.delete(f"/v1/sessions/{session['session_id']}").status_code == 200
    assert "Traceback" not in "".join(server.said)


def test_the_document_has_every_operation_and_every_field_that_a_request_may_have(quiet_server: Server) -> None:
    document = quiet_server.client.get("/openapi.json").json()
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    rows = operations(Service(make_settings(), None))  # type: ignore[arg-type]
    assert told == {(row.method, re.sub(r":\w+}", "}", row.path)) for row in rows}
    execute = document["paths"]["/v1/sessions/{session_id}/execute"]["post"]
    shape = document["components"]["schemas"]["Execute"]
    assert execute["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Execute"}
    assert (set(shape["properties"]), shape["required"]) == (
        {"code", "timeout", "wait", "envs", "queue", "script", "trial", "network", "policy"},
        ["code"],
    )
    assert shape["additionalProperties"] is False
    assert "Idempotency-Key" in [each["name"] for each in execute["parameters"]]


def test_the_page_needs_nothing_from_elsewhere(quiet_server: Server) -> None:
    answer = quiet_server.client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "/v1/sessions/{session_id}/execute" in answer.text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|<script|@import|url\(", answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_ready_means_that_a_worker_answers(start: Callable[..., Server]) -> None:
    server = start()
    assert server.client.get("/readyz").json()["status"] == "ok"
    assert server.client.get("/v1/sessions").json() == {"sessions": []}
    broken = start("--python", "/no/such/python", "--isolation", "none")
    assert broken.client.get("/healthz").status_code == 200
    problem(broken.client.get("/readyz"), 503, "unavailable")


@pytest.mark.fresh_service
def test_metrics_count_and_name_no_session(server: Server) -> None:
    for name in ("one", "two"):
        server.make_session(name)
    server.execute("print('x' * 99)", "one")
    server.execute("1/0", "one")
    server.execute("import os; os._exit(3)", "two")
    server.execute("import os; os.kill(os.getpid(), 9)", "two")
    server.execute("import time; time.sleep(600)", "one", wait=0)
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert lines['ingle_sessions{state="running"}'] == "1"
    assert lines['ingle_cells_total{status="ok"}'] == "1"
    assert lines['ingle_cells_total{status="error"}'] == "1"
    assert lines['ingle_cells_total{status="exit"}'] == "2"
    assert lines['ingle_worker_exits_total{reason="failed"}'] == "1"
    assert lines['ingle_worker_exits_total{reason="SIGKILL"}'] == "1"
    assert lines["ingle_output_bytes_total"] == "100"
    assert lines["ingle_cell_seconds_count"] == lines['ingle_cell_seconds_bucket{le="+Inf"}'] == "4"
    assert lines["ingle_start_seconds_count"] == "2"
    buckets = [int(value) for name, value in lines.items() if name.startswith("ingle_start_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert "one" not in re.sub(r"# .*", "", answer.text)
