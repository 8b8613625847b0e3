"""Requests that a tool makes up from the server's own document, and the answers that the document promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.server import Server

DOCUMENT_FLAGS = ("--wait", "1", "--shell", "true", "--trial-seconds", "0.2")
"""Whatever is sent as a shell command is given to a program that does nothing. A trial makes the session busy for a
moment only."""

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance"
)

CONFIG = """
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
"""Most requests are to reach a session that is there; those that end or copy it meet none. A variable is told in time:
the answer to a limit of nanoseconds is 504, which the tool takes for a fault."""

DOCTOR = "/v1/doctor"
"""Each request rehearses a whole service at each level, and has no field to vary: it is asked once."""


def assert_document_holds(server: Server, folder: Path, *flags: str, patience: float = 110.0) -> None:
    """Check the answers of a server that was started with `DOCUMENT_FLAGS`. `flags` choose the requests."""
    server.make_session()
    server.execute("print('seen')")
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    # One thread: with two, `ast` of CPython 3.11 fails now and then.
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{server.url}/openapi.json",
        "--header", f"Authorization: Bearer {server.token}",
        "--checks", CHECKS, "--workers", "1", "--generation-database", "none",
        "--request-timeout", "20", "--exclude-path", DOCTOR, "--no-color", "--suppress-health-check", "all", *flags,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
    assert re.search(r"\b(\d{3,}) generated, \1 passed", ended.stdout), ended.stdout[-1000:]
    checked = server.client.post(DOCTOR, json={})
    assert (checked.status_code, set(checked.json())) == (200, {"healthy", "findings"}), checked.text
    assert server.execute("1 + 1", queue=True)["result"] == {"text/plain": "2"}
    # Some are durable, and would outlive the server.
    for session in server.client.get("/v1/sessions").json()["sessions"]:
        assert server.client.delete(f"/v1/sessions/{session['session_id']}").status_code == 200
    assert "Traceback" not in "".join(server.said)
