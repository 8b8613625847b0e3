"""Budgets and the audit log of calls, and what is left when the service ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingle.requests import NewSession
from ingle.service import Service
from ingle.tools.shapes import FunctionCall, FunctionCancelled, ToolSpec
from support.cells import run as run_cell
from support.cells import value
from support.processes import MARK
from support.service import make_settings
from support.tools import entry, servers_file
from support.waiting import until


@pytest.mark.req("tools.policy")
async def test_budgets_hold_and_each_call_is_a_line_of_the_audit_log(mark: str, home: Path, tmp_path: Path) -> None:
    file = servers_file(tmp_path / "servers.json", box=entry(env={MARK: mark}))
    settings = make_settings(preload=[], pool=1, servers=[file], tool_calls_cell=3, tool_bytes_session=1000, audit="on")
    async with Service.local(settings, home) as service:
        await service.create_session("s")
        await run_cell(service, "s", "import tools")
        result = await service.execute("s", "for n in range(9):\n    print(tools.box.add(n, 0)['sum'])")
        assert result.stdout == "0\n1\n2\n"
        assert result.error is not None
        assert result.error.value == "this cell has used its budget for tools: 3 calls (tool_calls_cell)"
        assert await value(service, "s", "tools.box.add(1, 1)") == "{'sum': 2}"
        result = await service.execute("s", "tools.box.large(size=2000); tools.box.add(1, 1)")
        assert result.error is not None
        assert result.error.value == "this session has used its budget for tools: 1000 bytes (tool_bytes_session)"
    lines = [json.loads(line) for line in (home / "audit.log").read_text().splitlines()]
    told = [(line["server"], line["tool"], line["outcome"]) for line in lines if line["action"] == "tool"]
    assert told[:4] == [("box", "add", "ok")] * 3 + [("box", "add", "budget")]
    assert not any("arguments" in line for line in lines)
    (home / "audit.log").unlink()


@pytest.mark.req("tools.cancel", "tools.call")
async def test_a_server_that_hangs_or_lies_fails_the_call(mark: str, home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    file = servers_file(tmp_path / "servers.json", box=entry(log, env={MARK: mark}))
    settings = make_settings(preload=[], pool=1, servers=[file], tool_timeout=0.5, tool_seconds_cell=0.4)
    async with Service.local(settings, home) as service:
        await service.create_session("s")
        await run_cell(service, "s", "import tools")
        late = await service.execute("s", "tools.box.hang()")
        assert late.error is not None
        assert late.error.value == "the server 'box' did not answer within 0.5 s"
        assert await until(lambda: "cancelled" in log.read_text())
        spent = await service.execute(
            "s", "try:\n    tools.box.hang()\nexcept tools.ToolError:\n    tools.box.add(1, 1)"
        )
        assert spent.error is not None
        assert spent.error.value == "this cell has used its budget for tools: 0.4 seconds (tool_seconds_cell)"
        lie = await service.execute("s", "tools.box.liar()")
        assert lie.error is not None
        assert lie.error.value.startswith("Invalid structured content returned by tool liar: 'not a number'")
        assert await value(service, "s", "tools.box.add(1, 1)") == "{'sum': 2}"
        provided = await service.provide("s", "mine", [ToolSpec("wait", "", {"type": "object", "properties": {}})])
        late = await service.execute("s", "tools.mine.wait()")
        assert late.error is not None
        assert late.error.value == "the client did not answer within 0.5 s"
        calls = provided.calls()
        assert [type(await anext(calls)) for _ in range(2)] == [FunctionCall, FunctionCancelled]
        provided.close()


async def test_config_toml_names_servers_and_wins_over_files(mark: str, home: Path, tmp_path: Path) -> None:
    file = servers_file(tmp_path / "servers.json", box={"command": "/wrong"}, ingle={"command": "ingle"})
    home.mkdir(mode=0o700)
    config = home / "config.toml"
    command = entry()
    config.write_text(
        f"[mcp_servers.box]\ncommand = {json.dumps(command['command'])}\nargs = {json.dumps(command['args'])}\n"
        f"env = {{ {MARK} = {json.dumps(mark)} }}\npolicy = 'deny'\nrules = {{ add = 'allow' }}\nshare = 'session'\n"
    )
    config.chmod(0o600)
    async with Service.local(make_settings(preload=[], pool=1, servers=[file]), home) as service:
        for name in ("a", "b"):
            await service._node.create(NewSession(session_id=name))
            assert await value(service, name, "import tools; tools.box.add(1, 1)") == "{'sum': 2}"
        assert [each.name for each in await service.list_tools("a")] == ["box"]
        denied = await service.execute("a", "tools.box.count()")
        assert denied.error is not None
        assert "denies box.count" in denied.error.value
    config.unlink()
