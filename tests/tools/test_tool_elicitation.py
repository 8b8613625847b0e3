"""Approvals that a person answers in an MCP host, by elicitation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

from support.tools import entry, servers_file

pytestmark = pytest.mark.req("tools.policy")


class Person:
    """Answers questions of the server as told, in order."""

    def __init__(self, *answers: ElicitResult) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        return self._answers.pop(0)


def host(tmp_path: Path, home: Path, person: Person | None, mode: str = "legacy") -> Client:
    file = servers_file(tmp_path / "servers.json", box=entry(tmp_path / "log"))
    args = ["-m", "ingle", "mcp", "--preload", "", "--pool", "1", "--isolation", "none", "--servers", file]
    environment = {**os.environ, "INGLE_HOME": str(home)}
    command = StdioServerParameters(command=sys.executable, args=args, env=environment, cwd=str(tmp_path))
    return Client(command, mode=mode, cache=None, elicitation_callback=person)


async def delete(client: Client, number: int) -> str:
    """Call a tool that asks first, from code. Return what the model reads."""
    code = f"import tools\ntools.box.delete({number})"
    result = await client.call_tool("python_session", {"code": code, "wait": 20})
    return "".join(getattr(block, "text", "") for block in result.content)


async def test_a_person_allows_and_refuses_in_the_host(tmp_path: Path, apart: Path) -> None:
    yes = ElicitResult(action="accept", content={"allow": True})
    person = Person(yes, ElicitResult(action="decline"), ElicitResult(action="accept", content={"allow": False}))
    async with host(tmp_path, apart / "home", person) as client:
        assert '{"number": 1}' in await delete(client, 1)
        assert "box.delete was not approved" in await delete(client, 2)
        assert "box.delete was not approved" in await delete(client, 3)
    assert person.questions[0] == (
        'Code in a session wants to call box.delete with {"number":1}. It says that it may destroy something. Allow it?'
    )
    assert (tmp_path / "log").read_text().count("call delete") == 1


async def test_without_an_answer_the_model_reads_that_a_person_has_to_answer(tmp_path: Path, apart: Path) -> None:
    person = Person(
        ElicitResult(action="cancel"),
        ElicitResult(action="accept", content={}),
        ElicitResult(action="accept", content={"allow": True}),
    )
    async with host(tmp_path, apart / "home", person) as client:
        assert "only a person can answer" in await delete(client, 1)
        # The cell goes on to wait; each call that waits for it asks again, and runs nothing again.
        waited = await client.call_tool("wait", {"wait": 20})
        assert "only a person can answer" in str(waited.content)
        assert "number" in str((await client.call_tool("wait", {"wait": 20})).content)
    assert (tmp_path / "log").read_text().count("call delete") == 1


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_host_that_cannot_be_asked_is_not_asked(tmp_path: Path, apart: Path, mode: str) -> None:
    person = Person() if mode == "auto" else None
    async with host(tmp_path, apart / "home", person, mode) as client:
        assert "only a person can answer" in await delete(client, 1)
