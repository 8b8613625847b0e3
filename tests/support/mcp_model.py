"""A model that calls tools over a transport, for tests that hold on stdio and over HTTP alike."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx

from support.mcp_host import LEGACY, text_of

Call = Callable[[str, dict[str, Any]], dict[str, Any]]
"""A request: its method and its parameters. Returns the whole answer."""


class Model:
    """Calls tools, and reads what a model reads."""

    def __init__(self, request: Call, instructions: str) -> None:
        self.request = request
        self.instructions = instructions

    def raw(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def __call__(self, tool: str, **arguments: Any) -> str:
        """The text of an answer that is none of an error."""
        result = self.raw(tool, **arguments)
        assert not result.get("isError"), text_of(result)
        return text_of(result)

    def refused(self, tool: str, **arguments: Any) -> str:
        """The text of a refusal."""
        result = self.raw(tool, **arguments)
        assert result.get("isError"), text_of(result)
        return text_of(result)

    def run(self, code: str, **arguments: Any) -> str:
        return self("python_session", code=code, **arguments)

    def task_id(self, text: str) -> str:
        found = re.search(r"task (t[0-9a-f]+)", text)
        assert found, text
        return found[1]


def over_http(client: httpx.Client) -> Call:
    """Requests written by hand, each answered as JSON or in an event stream."""

    def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": LEGACY}
        answer = client.post("/mcp", json=message, headers=headers)
        assert answer.status_code == 200, answer.text
        if answer.headers["content-type"].startswith("application/json"):
            body: dict[str, Any] = answer.json()
            return body
        data = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
        last: dict[str, Any] = json.loads(data[-1])
        return last

    return request
