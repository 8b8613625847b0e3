"""MCP over stdio with every version of the protocol: the SDK's client, and JSON written by hand."""

import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from support.mcp_host import CURRENT, ENVELOPE, INITIALIZE, LEGACY, Host, command, environment, text_of

pytestmark = pytest.mark.usefixtures("mark")

VERSIONS = {"auto": CURRENT, "legacy": "2025-11-25"}


@pytest.fixture
def host(home: Path, tmp_path: Path) -> Iterator[Host]:
    with Host(home, cwd=tmp_path) as running:
        yield running


@asynccontextmanager
async def official(home: Path, mode: str) -> AsyncIterator[Client]:
    """The SDK's own client, which starts the server as a host does."""
    program, *args = command()
    parameters = StdioServerParameters(command=program, args=args, env=environment(home))
    async with Client(parameters, mode=mode) as client:
        yield client


@pytest.mark.req("mcp.eras", "mcp.handles")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_runs_code_in_either_era_without_any_set_up(home: Path, mode: str) -> None:
    async with official(home, mode) as client:
        assert client.protocol_version == VERSIONS[mode]
        assert "python_session" in [tool.name for tool in (await client.list_tools()).tools]
        await client.call_tool("python_session", {"code": "x = 20"})
        result = await client.call_tool("python_session", {"code": "x + 1"})
        assert (result.is_error, text_of(result).splitlines()[0]) == (False, "21")


@pytest.mark.req("mcp.eras")
def test_a_client_that_writes_2025_06_18_by_hand_is_served(host: Host) -> None:
    began = host.request("initialize", INITIALIZE)["result"]
    assert began["protocolVersion"] == LEGACY
    assert began["serverInfo"]["name"] == "ingle"
    assert "python_session" in began["instructions"]
    host.send({"method": "notifications/initialized"})
    assert host.request("ping")["result"] == {}
    tools = host.request("tools/list", {})["result"]["tools"]
    assert tools[0]["name"] == "python_session"
    result = host.call("python_session", code="print('from print'); 6 * 7")
    assert text_of(result).splitlines()[:2] == ["from print", "42"]
    assert result.get("isError", False) is False
    assert "structuredContent" not in result


@pytest.mark.req("mcp.eras")
def test_a_client_that_writes_the_current_protocol_by_hand_needs_no_handshake(host: Host) -> None:
    found = host.request("server/discover", {"_meta": ENVELOPE})["result"]
    assert CURRENT in found["supportedVersions"]
    params = {"name": "python_session", "arguments": {"code": "1 + 1"}, "_meta": ENVELOPE}
    answered = host.request("tools/call", params)
    assert text_of(answered["result"]).splitlines()[0] == "2"


@pytest.mark.req("mcp.eras")
def test_the_old_name_of_python_session_is_answered_and_not_listed(host: Host) -> None:
    host.initialize()
    names = [tool["name"] for tool in host.request("tools/list", {})["result"]["tools"]]
    assert "execute_repl" not in names
    host.call("python_session", code="kept = 'yes'")
    assert text_of(host.call("execute_repl", code="print(kept)")).splitlines()[0] == "yes"


@pytest.mark.req("cell.cwd")
def test_sessions_start_in_the_folder_where_the_host_started_the_server(home: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "helper.py").write_text("answer = 42\n")
    with Host(home, cwd=tmp_path / "project") as host:
        host.initialize()
        for tool in ("python_session", "python"):
            shown = text_of(host.call(tool, code="import os, helper\nprint(os.getcwd(), helper.answer)"))
            assert shown.splitlines()[0] == f"{tmp_path}/project 42"


def test_only_the_named_tools_are_listed_and_answered(home: Path) -> None:
    with Host(home, "--tools", "python_session,wait") as host:
        host.initialize()
        names = [tool["name"] for tool in host.request("tools/list", {})["result"]["tools"]]
        assert names == ["python_session", "wait"]
        refused = host.request("tools/call", {"name": "python", "arguments": {"code": "1"}})["error"]
        assert refused["code"] == -32602
        assert refused["message"] == "there is no tool 'python'; the tools are python_session, wait"


def test_a_tool_that_is_not_there_is_refused_at_the_start(home: Path) -> None:
    home.mkdir()
    with Host(home, "--tools", "python_session,nonsense") as host:
        assert host.process.wait(10) == 2
    assert host.lines == []
    assert b"there is no tool 'nonsense'" in host.stderr


# --- the pipe ---


def test_what_is_no_message_is_answered_as_such_and_the_next_one_is_served(host: Host) -> None:
    host.send_bytes(b"this is not JSON\n")
    assert host.answer(None)["error"]["code"] == -32700
    host.send_bytes(b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]\n')
    assert host.answer(None)["error"]["code"] == -32600
    host.send_bytes(b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}\n')
    assert host.answer(None)["error"]["code"] == -32600
    host.send_bytes(b"\n\r\n\xff\xfe\n")
    assert host.answer(None)["error"]["code"] == -32700
    host.initialize()
    assert text_of(host.call("python_session", code="1 + 1")).splitlines()[0] == "2"


def test_a_message_in_pieces_and_many_in_one_piece_are_all_taken(host: Host) -> None:
    host.initialize()
    message = json.dumps({"jsonrpc": "2.0", "id": "a", "method": "ping"}).encode()
    for byte in message:
        host.send_bytes(bytes([byte]))
    host.send_bytes(b"\r\n")
    assert host.answer("a")["result"] == {}  # type: ignore[arg-type]
    many = [{"jsonrpc": "2.0", "id": 1000 + number, "method": "ping"} for number in range(300)]
    host.send_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in many))
    assert [host.answer(each["id"])["result"] for each in many] == [{}] * 300  # type: ignore[arg-type]


def test_a_megabyte_of_code_and_a_lone_surrogate_pass(host: Host) -> None:
    host.initialize()
    big = "x = '" + "ü" * 1_000_000 + "'\nlen(x)"
    assert text_of(host.call("python_session", code=big)).splitlines()[0] == "1000000"
    shown = text_of(host.call("python_session", code="print(chr(0xd800) + 'after')"))
    assert shown.splitlines()[0] == "\\ud800after"


@pytest.mark.parametrize("first", [True, False])
def test_a_message_that_is_too_long_is_refused_with_its_id(host: Host, first: bool) -> None:
    """Clients write the id before the parameters, or after them."""
    call = {"name": "python_session", "arguments": {"code": "#" * (65 * 1024 * 1024)}}
    about = {"jsonrpc": "2.0", "id": "mine"}
    message = {"method": "tools/call", "params": call}
    host.send_bytes(json.dumps({**about, **message} if first else {**message, **about}).encode() + b"\n")
    error = host.answer("mine")["error"]  # type: ignore[arg-type]
    assert "bytes and was not read" in error["message"]
    host.initialize()
    assert text_of(host.call("python_session", code="1 + 1")) == "2"


def test_quick_requests_are_answered_even_if_the_input_ends_right_behind_them(host: Host) -> None:
    host.initialize()
    host.call("python_session", code="1")
    number = host.begin("tools/call", {"name": "python_session", "arguments": {"code": "'answered'"}})
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert "answered" in text_of(host.answer(number)["result"])
    assert host.process.wait(10) == 0


def test_a_host_that_does_not_read_holds_up_itself_only(home: Path) -> None:
    """The server waits with its answers, keeps running, and still ends when it is told to."""
    process = subprocess.Popen(
        command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        first = [{"id": 0, "method": "initialize", "params": INITIALIZE}, {"method": "notifications/initialized"}]
        arguments = {"code": "'x' * 9000"}
        calls = [
            {"id": number, "method": "tools/call", "params": {"name": "python", "arguments": arguments}}
            for number in range(1, 41)
        ]
        for message in first + calls:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
        answered = set()
        while len(answered) < 41:
            answered.add(json.loads(process.stdout.readline())["id"])
        assert answered == set(range(41))
        # And now one that never reads again: more than a pipe holds.
        for number in range(100, 140):
            call: dict[str, Any] = {"name": "python", "arguments": arguments}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.close()
        assert process.wait(10) == 0
        process.stdout.read()
    # Forty sessions cannot always be cleared away in the time there is; the next server does it.
    with Host(home) as host:
        host.initialize()


def test_it_runs_on_a_terminal_and_on_files_too(home: Path, tmp_path: Path) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    ]
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with source.open("rb") as given, target.open("wb") as taken:
        ended = subprocess.run(command(), stdin=given, stdout=taken, env=environment(home), timeout=30)
    assert ended.returncode == 0
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [1, 2]


def links(folder: str) -> set[str]:
    """Where descriptors lead; one that is closed at this moment leads nowhere."""
    found = set()
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{number}"))
    return found


def test_the_wire_is_on_descriptors_that_nothing_else_has(host: Host) -> None:
    """Standard input and output of the server itself lead elsewhere, and what it starts inherits neither."""
    host.initialize()
    assert host.process.stdin is not None
    assert host.process.stdout is not None
    wire = {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in (host.process.stdin, host.process.stdout)}
    server = f"/proc/{host.process.pid}/fd"
    assert os.readlink(f"{server}/0") == "/dev/null"
    assert os.readlink(f"{server}/1") == os.readlink(f"{server}/2")
    assert wire < links(server)
    code = "import os\nwith os.scandir('/proc/self/fd') as fds: print([os.readlink(each.path) for each in fds])"
    shown = text_of(host.call("python_session", code=code))
    assert "pipe:" in shown
    assert not [each for each in wire if each in shown]
