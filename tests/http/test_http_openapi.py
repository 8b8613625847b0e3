"""The server about itself: the document it serves is what it does; readiness, metrics, the page to read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.http.app import operations
from ingle.service import Service
from support.document import DOCUMENT_FLAGS, assert_document_holds
from support.server import Server, problem
from support.service import make_settings


# The fuzzer's own inventions are tried by `make soak`. These cases name each bound of each field.
@pytest.mark.req("http.problems", "safe.input")
def test_the_server_does_what_its_document_says_whatever_it_is_sent(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    assert_document_holds(start(*DOCUMENT_FLAGS), tmp_path, "--phases", "examples,coverage")


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
