"""`ingle serve` as a process of its own, for the tests that go through real sockets."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 60.0
NDJSON = {"Accept": "application/x-ndjson"}


class Server:
    """`ingle serve` as a subprocess, and a client that has its token."""

    def __init__(
        self, home: Path, *flags: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> None:
        """`prefix` is a command that runs another one, with limits of its own."""
        self.home = home
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "ingle", "serve", "--port", "0", "--preload", "", "--pool", "1", *flags],
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
        no_token = "--no-auth" in flags
        self.token = (env or {}).get("INGLE_TOKEN") or ("none" if no_token else (home / "token").read_text().strip())
        self.client = self.make_client()

    def make_client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        # The URL is http: httpx would read all root certificates for nothing, which takes 20 ms.
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=False)

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
