"""A host for tests: starts `ingle mcp` as hosts do and speaks JSON-RPC by hand, so that every byte is seen."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

LEGACY = "2025-06-18"
CURRENT = "2026-07-28"

INITIALIZE = {
    "protocolVersion": LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "by-hand", "version": "1"},
}

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": CURRENT,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "by-hand", "version": "1"},
}

ANSWER_WITHIN = 30.0


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "ingle", "mcp", "--preload", "", "--pool", "1", *args]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "INGLE_HOME": str(home)}


class Host:
    """One `ingle mcp` and its host. Everything that came on stdout is in `lines`."""

    def __init__(self, home: Path, *args: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            command(*args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(home),
            cwd=cwd,
        )
        self.lines: list[bytes] = []
        self.notifications: list[dict[str, Any]] = []
        self._answers: dict[Any, dict[str, Any]] = {}
        self._arrived: queue.Queue[bytes | None] = queue.Queue()
        self._number = 0
        self.stderr = b""
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_stderr)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._arrived.put(line)
        self._arrived.put(None)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self.stderr = self.process.stderr.read()

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: dict[str, Any]) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def begin(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method}
        if params is not None:
            message["params"] = params
        self.send(message)
        return self._number

    def answer(self, number: int | None, within: float = ANSWER_WITHIN) -> dict[str, Any]:
        """The answer to a request, with `result` or `error`; for None the next one without an id."""
        while number not in self._answers:
            line = self._arrived.get(timeout=within)
            assert line is not None, f"the server has gone: {self.stderr.decode()}"
            message = json.loads(line)
            if "method" in message:
                self.notifications.append(message)
            else:
                self._answers[message["id"]] = message
        return self._answers.pop(number)

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.answer(self.begin(method, params))

    def initialize(self) -> dict[str, Any]:
        answered = self.request("initialize", INITIALIZE)
        self.send({"method": "notifications/initialized"})
        result: dict[str, Any] = answered["result"]
        return result

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answered = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert "result" in answered, answered
        result: dict[str, Any] = answered["result"]
        return result

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait(10)
        for thread in self._threads:
            thread.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def text_of(result: Any) -> str:
    """All the text a model is shown, from a result as the SDK or as raw JSON gives it."""
    content = result["content"] if isinstance(result, dict) else result.content
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    return "\n".join(part["text"] for part in parts if part["type"] == "text")
