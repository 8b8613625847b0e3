"""What a model gets from the tools: through the SDK's client, in both eras, with short budgets."""

import asyncio
import base64
import json
import struct
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from ingle.events import Result
from ingle.mcp import arguments, content, tools
from ingle.mcp.handlers import MAX_INLINE_CHARS, Tools
from ingle.mcp.server import make_server
from ingle.service import Service
from ingle.settings import Settings
from support.mcp_host import text_of
from support.service import make_settings
from support.waiting import until

MODES = ["auto", "legacy"]


@pytest.fixture
def mcp_tools(service: Service) -> Tools:
    return Tools(service, progress_interval=0.05)


async def served(mcp_tools: Tools) -> Any:
    return make_server(mcp_tools, await mcp_tools.facts())


@asynccontextmanager
async def connected(mcp_tools: Tools, mode: str) -> AsyncIterator[Client]:
    """The client in a task of its own: a fixture begins and ends in two, which its cancel scopes do not allow."""
    ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def own() -> None:
        async with Client(await served(mcp_tools), mode=mode) as client:
            ready.set_result(client)
            await over.wait()

    task = asyncio.create_task(own())
    yield await ready
    over.set()
    await task


@pytest.fixture(params=MODES)
async def client(mcp_tools: Tools, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with connected(mcp_tools, request.param) as each:
        yield each


@pytest.fixture
async def model(mcp_tools: Tools) -> AsyncIterator[Client]:
    """For what does not depend on the era."""
    async with connected(mcp_tools, "auto") as each:
        yield each


async def test_a_long_answer_is_made_beside_the_loop(
    mcp_tools: Tools, model: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, go_on = threading.Event(), threading.Event()
    of_result = content.of_result

    def slowly(result: Result) -> content.Answer:
        making.set()
        assert go_on.wait(60)
        return of_result(result)

    monkeypatch.setattr(content, "of_result", slowly)
    call = asyncio.create_task(model.call_tool("python_session", {"code": f"print('\\x1b[A' * {MAX_INLINE_CHARS})"}))
    assert await until(making.is_set)
    assert "main · idle" in text_of(await model.call_tool("list_repl_sessions", {}))
    assert not call.done()
    go_on.set()
    assert (await call).is_error is False


def meta(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result.meta["ingle/result"]
    return found


def png(width: int, height: int) -> str:
    """A picture, made by hand."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


# --- the table ---


@pytest.mark.req("mcp.readable")
async def test_the_listing_is_small_stable_and_says_what_each_tool_does(client: Client) -> None:
    listed = await client.list_tools()
    raw = listed.model_dump_json(by_alias=True, exclude_none=True)
    assert len(raw.encode()) <= 12_000
    assert [tool.name for tool in listed.tools] == [tool.name for tool in tools.TABLE if tool.name in tools.DEFAULT]
    for tool in listed.tools:
        assert 40 <= len(tool.description or "") <= 900, tool.name
        assert tool.output_schema is None
        assert tool.annotations is not None
    again = await client.list_tools(cache_mode="bypass")
    assert again.model_dump_json(by_alias=True, exclude_none=True) == raw


def test_the_annotations_are_those_of_what_the_tools_do() -> None:
    hints = {tool.name: tool.annotations for tool in tools.TABLE}
    reading = {name for name, each in hints.items() if each["readOnlyHint"]}
    assert reading >= {"wait", "read_output", "list_repl_sessions", "get_session_namespace"}
    assert not any(hints[name]["destructiveHint"] for name in reading)
    for name in ("python_session", "python", "shell"):
        assert hints[name]["destructiveHint"]
        assert hints[name]["openWorldHint"]
    assert hints["interrupt"]["idempotentHint"]


def test_every_argument_but_the_obvious_one_may_be_left_out() -> None:
    required = {tool.name: arguments.schema_of(tool.arguments).get("required", []) for tool in tools.TABLE}
    assert {name: needed for name, needed in required.items() if needed} == {
        "python_session": ["code"],
        "python": ["code"],
        "shell": ["command"],
        "shell_status": ["task_id"],
        "save_repl_session": ["filepath"],
        "load_repl_session": ["filepath"],
        "destroy_repl_session": ["session_id"],
        "add_to_stdlib": ["function_code"],
        "inspect_failure": ["expression"],
        "try_cells": ["codes"],
    }


def test_core_is_eight_tools_at_most_and_names_keep_the_tables_order() -> None:
    assert {tool.name for tool in tools.chosen(["core"])} == set(tools.CORE)
    assert len(tools.CORE) == 8
    assert tools.chosen(["core"])[0].name == "python_session"
    assert [tool.name for tool in tools.chosen(["wait", "python"])] == ["python", "wait"]
    assert tools.chosen(["all"]) == tools.TABLE
    assert {tool.name for tool in tools.chosen()} == set(tools.DEFAULT)
    assert tools.answered(tools.chosen()) == tools.TABLE
    assert tools.answered(tools.chosen(["core"])) == tools.chosen(["core"])


# --- what reaches the model ---


@pytest.mark.req("mcp.readable")
async def test_text_comes_in_order_with_the_status_line_last_and_data_beside_it(client: Client) -> None:
    code = "import sys\nprint('OUT-1')\nprint('ERR-1', file=sys.stderr)\nprint('OUT-2')\n1/0"
    result = await client.call_tool("python_session", {"code": code})
    shown = text_of(result)
    marks = ["OUT-1", "OUT-2", "ERR-1", "ZeroDivisionError", "[cell 1 · error"]
    assert sorted(marks, key=shown.index) == marks
    assert shown.endswith("]")
    assert result.structured_content is None
    assert result.is_error is False
    data = msgspec.convert(meta(result), Result)
    assert (data.status, data.stdout, data.stderr) == ("error", "OUT-1\nOUT-2\n", "ERR-1\n")
    assert data.error is not None
    assert data.error.name == "ZeroDivisionError"


@pytest.mark.req("mcp.readable")
async def test_a_picture_reaches_the_model_as_an_image_in_its_place(
    mcp_tools: Tools, model: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = png(40, 30)
    follow = mcp_tools._follow

    async def with_picture(*args: Any) -> Result:
        result = await follow(*args)
        result.displays = [{"text/plain": "BEFORE"}, {"image/png": picture, "text/plain": "<a picture>"}]
        return result

    monkeypatch.setattr(mcp_tools, "_follow", with_picture)
    result = await model.call_tool("python_session", {"code": "print('TEXT'); 'VALUE'"})
    kinds = [part.type for part in result.content]
    assert kinds == ["text", "image", "text"]
    first, image, last = result.content
    assert first.model_dump()["text"] == "TEXT\nBEFORE"
    assert image.model_dump()["mime_type"] == "image/png"
    assert image.model_dump()["data"] == picture
    assert last.model_dump()["text"] == "'VALUE'\n[cell 1 · ok · 1 figure]"
    assert picture not in json.dumps(meta(result))


@pytest.mark.req("mcp.readable")
async def test_a_flood_of_output_is_shortened_and_the_rest_can_be_read(model: Client) -> None:
    result = await model.call_tool("python_session", {"code": "for i in range(100000): print('line', i)"})
    shown = text_of(result)
    assert len(shown) <= 10_000
    assert "line 0\n" in shown
    assert "line 99999" in shown
    assert "read_output(cell=1, from_line=" in shown
    assert len(result.model_dump_json()) < 200_000
    page = text_of(await model.call_tool("read_output", {"cell": 1, "from_line": 50001, "lines": 3}))
    assert page.splitlines()[:3] == ["line 50000", "line 50001", "line 50002"]
    assert (
        page.splitlines()[3] == "[cell 1 · stdout · lines 50001 to 50003 · more: read_output(cell=1, from_line=50004)]"
    )
    found = text_of(await model.call_tool("read_output", {"grep": "99999$"}))
    assert found.splitlines()[0] == "100000: line 99999"
    none = text_of(await model.call_tool("read_output", {"grep": "nowhere"}))
    assert none == "[cell 1 · stdout · no match]"


@pytest.mark.req("mcp.readable")
async def test_a_whole_result_stays_below_a_mebibyte_whatever_the_cell_makes(model: Client) -> None:
    code = (
        "import sys\nprint('o' * 5_000_000)\nprint('e' * 5_000_000, file=sys.stderr)\nraise ValueError('v' * 5_000_000)"
    )
    result = await model.call_tool("python_session", {"code": code})
    assert len(result.model_dump_json().encode()) < 1024 * 1024
    long = await model.call_tool("python_session", {"code": "'x' * 5_000_000"})
    assert len(long.model_dump_json().encode()) < 1024 * 1024


@pytest.mark.req("mcp.readable")
async def test_two_hundred_prints_in_two_hundred_calls_all_arrive(model: Client) -> None:
    for number in range(200):
        result = await model.call_tool("python_session", {"code": f"print('print {number}')"})
        assert text_of(result) == f"print {number}"


# --- our own failures ---


async def refusal(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error is True
    return text_of(result)


@pytest.mark.req("mcp.readable", "mcp.handles")
async def test_a_session_that_is_not_there_is_an_error_that_says_how_to_go_on(client: Client) -> None:
    creates = "create_repl_session(session_id='gone') creates it; 'main' needs no creating"
    said = await refusal(client, "wait", session_id="gone")
    assert said == f"there is no session 'gone'. There is no session yet. {creates}"
    await client.call_tool("python_session", {"code": "1"})
    said = await refusal(client, "python_session", code="1", session_id="gone")
    assert said == f"there is no session 'gone'. Sessions: main. {creates}"


@pytest.mark.req("mcp.readable", "cell.busy")
async def test_a_busy_session_refuses_and_names_the_tools_that_help(model: Client) -> None:
    await model.call_tool("python_session", {"code": "import time; time.sleep(60)", "wait": 0})
    said = await refusal(model, "python_session", code="print('never')")
    assert said.startswith("busy: cell 1 has run for")
    assert said.endswith(
        " s. Nothing was run. Call wait() for its result, stop it with interrupt(), or use another session"
    )
    stopped = text_of(await model.call_tool("interrupt"))
    assert "KeyboardInterrupt" in stopped
    assert text_of(await model.call_tool("python_session", {"code": "'free'"})) == "'free'"
    assert text_of(await model.call_tool("interrupt")) == "[nothing was running · session main]"


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        (
            "python_session",
            {"source": "print('RAN')"},
            "python_session has no argument 'source'. Use 'code'. It takes: code, session_id, timeout, wait. "
            "Nothing was run.",
        ),
        (
            "python_session",
            {"code": "print('RAN')", "sesion_id": "x"},
            "python_session has no argument 'sesion_id'. Use 'session_id'. "
            "It takes: code, session_id, timeout, wait. Nothing was run.",
        ),
        (
            "list_repl_sessions",
            {"frobnicate": 1},
            "list_repl_sessions has no argument 'frobnicate'. It takes no arguments. Nothing was run.",
        ),
        ("python_session", {}, "python_session: the argument `code` is missing. Nothing was run; call it again."),
        (
            "python_session",
            {"code": 5},
            "python_session: code: expected `str`, got `int`. Nothing was run; call it again.",
        ),
        (
            "python_session",
            {"code": "print('RAN')", "wait": -1},
            "python_session: wait: expected `float` >= 0.0. Nothing was run; call it again.",
        ),
        (
            "python_session",
            {"code": "print('RAN')", "session_id": "../x"},
            "there is no session '../x'",
        ),
    ],
)
async def test_a_wrong_argument_is_refused_with_the_right_one_and_nothing_runs(
    model: Client, service: Service, tool: str, given: dict[str, Any], said: str
) -> None:
    assert (await refusal(model, tool, **given)).startswith(said)
    assert await service.list_sessions() == []


async def test_numbers_and_booleans_written_as_text_are_understood(model: Client) -> None:
    result = await model.call_tool("python_session", {"code": "'fine'", "wait": "30", "timeout": "20"})
    assert text_of(result) == "'fine'"
    await model.call_tool("python_session", {"code": "input()", "session_id": "main"})
    ended = await model.call_tool("send_input", {"eof": "true"})
    assert "EOFError" in text_of(ended)


async def test_an_unknown_tool_is_a_protocol_error_that_lists_the_tools(client: Client) -> None:
    with pytest.raises(MCPError, match="there is no tool 'run_python'; the tools are python_session, python"):
        await client.call_tool("run_python", {"code": "1"})


# --- waiting ---


COUNTING = """
import time
for i in range(30):
    print('tick', i)
    time.sleep(0.03)
print('the end')
"""


@pytest.mark.req("mcp.patient", "wait.budget")
async def test_a_long_cell_is_followed_to_its_end_and_no_line_is_lost_or_doubled(client: Client) -> None:
    result = await client.call_tool("python_session", {"code": COUNTING, "wait": 0.1})
    lines, calls = meta(result)["stdout"], 0
    assert "[cell 1 · running" in text_of(result)
    while meta(result)["status"] == "running":
        assert f"wait(from_event={meta(result)['next_event']})" in text_of(result)
        given = {"wait": 0.2, "from_event": meta(result)["next_event"]}
        result = await client.call_tool("wait", given)
        lines += meta(result)["stdout"]
        calls += 1
    assert calls > 1
    assert lines == "".join(f"tick {i}\n" for i in range(30)) + "the end\n"
    whole = await client.call_tool("wait")
    assert meta(whole)["stdout"] == lines


@pytest.mark.req("mcp.patient")
async def test_progress_comes_while_a_call_waits_with_the_last_line_of_output(client: Client) -> None:
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    code = "import time\nprint('step one')\ntime.sleep(0.5)\nprint('50%\\r100%', end='', flush=True)\ntime.sleep(0.5)"
    await client.call_tool("python_session", {"code": code}, progress_callback=on_progress)
    assert await until(lambda: [message for _, message in told if message == "100%"])
    assert "step one" in [message for _, message in told]
    assert [seconds for seconds, _ in told] == sorted({seconds for seconds, _ in told})


@pytest.mark.req("mcp.patient")
async def test_progress_comes_while_a_session_starts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = []
    heard = asyncio.Event()
    create = Service.create_session

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)
        if len(told) == 2:
            heard.set()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await heard.wait()
        return await create(*args, **kwargs)

    monkeypatch.setattr(Service, "create_session", slow)  # each call has a service of its own
    async with Client(await served(Tools(service, progress_interval=0.05))) as client:
        result = await client.call_tool("python_session", {"code": "1 + 1"}, progress_callback=on_progress)
        assert text_of(result).splitlines()[0] == "2"
    assert told[:2] == ["python_session has not finished"] * 2


def test_the_promised_rhythm_of_progress_and_the_longest_wait_are_kept_by_default() -> None:
    from ingle.mcp import progress

    assert progress.PROGRESS_SECONDS < 4
    assert arguments.MAX_WAIT_SECONDS == 50


@pytest.mark.req("mcp.patient")
async def test_no_call_waits_longer_than_the_longest_wait_whatever_it_asks_for(service: Service) -> None:
    # Their start is in that time too: on a busy machine it is most of it.
    await service.create_session("main")
    await service.warm()
    async with Client(await served(Tools(service, longest_wait=2.0))) as client:
        code = "import time; time.sleep(600)"
        for tool, given in (("python_session", {"code": code}), ("python", {"code": code}), ("wait", {})):
            result = await client.call_tool(tool, {**given, "wait": 1e6})
            assert meta(result)["status"] == "running"


@pytest.mark.req("mcp.patient")
async def test_a_session_that_takes_too_long_to_start_is_a_refusal_in_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Service, "create_session", never)
    async with Client(await served(Tools(service, longest_wait=0.3))) as client:
        said = await refusal(client, "python_session", code="print('never')")
        assert said.startswith("python_session did not finish within 0.3 s")


@pytest.mark.req("mcp.patient")
async def test_cancelling_a_call_detaches_and_the_cell_goes_on(
    client: Client, service: Service, tmp_path: Path
) -> None:
    code = (
        "import time\nwhile not globals().get('go'): time.sleep(0.01); go = __import__('os').path.exists(flag)\n'done'"
    )
    await client.call_tool("python_session", {"code": f"flag = {str(tmp_path / 'flag')!r}"})
    with anyio.move_on_after(0.5) as scope:
        await client.call_tool("python_session", {"code": code})
    assert scope.cancelled_caught
    assert (await service.wait("main", wait=0)).status == "running"
    (tmp_path / "flag").touch()
    assert text_of(await client.call_tool("wait")) == "'done'"


@pytest.mark.req("mcp.handles")
async def test_another_connection_finds_the_session_and_its_running_cell(mcp_tools: Tools) -> None:
    async with Client(await served(mcp_tools)) as first:
        await first.call_tool("python_session", {"code": "x = 5"})
        await first.call_tool("python_session", {"code": COUNTING, "wait": 0})
    async with Client(await served(mcp_tools), mode="legacy") as second:
        result = await second.call_tool("wait")
        assert meta(result)["stdout"].endswith("tick 29\nthe end\n")
        assert text_of(await second.call_tool("python_session", {"code": "x"})) == "5"


async def test_one_off_code_leaves_nothing_and_can_be_waited_for_by_its_id(model: Client, service: Service) -> None:
    assert text_of(await model.call_tool("python", {"code": "y = 1; y + 1"})) == "2"
    # What is gone is not named as if it could be asked.
    shown = text_of(await model.call_tool("python", {"code": "for n in range(5000): print('line', n)"}))
    assert "lines omitted: run it with python_session, which stores all output …" in shown
    assert shown.endswith("\nline 4999")
    assert await service.list_sessions() == []
    result = await model.call_tool("python", {"code": "import time; time.sleep(0.3); print('late')", "wait": 0})
    handle = meta(result)["session_id"]
    assert f'wait(session_id="{handle}"' in text_of(result)
    assert meta(await model.call_tool("wait", {"session_id": handle}))["stdout"] == "late\n"
    assert await service.list_sessions() == []


# --- input: a test that plays a model ---


async def test_a_model_answers_input_and_a_secret_and_sees_each_prompt_once(client: Client) -> None:
    code = "import getpass\nname = input('who? ')\nword = getpass.getpass('word: ')\nprint(name, len(word))"
    result = await client.call_tool("python_session", {"code": code})
    assert meta(result)["status"] == "waiting_for_input"
    assert "waiting for input: 'who?'" in text_of(result)
    assert "send_input(text=…)" in text_of(result)
    result = await client.call_tool("send_input", {"text": "Ada"})
    assert "waiting for input (secret): 'word:'" in text_of(result)
    assert "who?" not in text_of(result)
    result = await client.call_tool("send_input", {"text": "sesame"})
    assert "Ada 6" in text_of(result)
    assert "sesame" not in text_of(result)
    assert "not waiting for input" in await refusal(client, "send_input", text="too late")


async def test_a_model_debugs_with_pdb_and_is_not_shown_the_same_lines_again(client: Client) -> None:
    await client.call_tool("python_session", {"code": "def f(a):\n    b = a * 2\n    breakpoint()\n    return b"})
    result = await client.call_tool("python_session", {"code": "f(21)"})
    assert "(Pdb)" in text_of(result)
    result = await client.call_tool("send_input", {"text": "p a, b"})
    assert "(21, 42)" in text_of(result)
    result = await client.call_tool("send_input", {"text": "p 'second'"})
    assert "'second'" in text_of(result)
    assert "(21, 42)" not in text_of(result)
    result = await client.call_tool("send_input", {"text": "c"})
    assert text_of(result).splitlines()[-1] == "42"
    assert "second" not in text_of(result)


# --- sessions ---


@pytest.mark.req("mcp.handles")
async def test_sessions_are_made_listed_used_apart_and_ended(client: Client) -> None:
    made = await client.call_tool("create_repl_session", {"session_id": "calc", "include_stdlib": True})
    assert "session calc is ready" in text_of(made)
    taken = await client.call_tool("create_repl_session", {"session_id": "calc"})
    assert taken.is_error is True
    assert text_of(taken) == (
        "a session 'calc' exists already. Use it with session_id='calc', choose another name, or end it with "
        "destroy_repl_session(session_id='calc')"
    )
    await client.call_tool("python_session", {"code": "x = 'of calc'", "session_id": "calc"})
    await client.call_tool("python_session", {"code": "x = 'of main'; z = 1"})
    result = await client.call_tool("python_session", {"code": "x", "session_id": "calc"})
    assert text_of(result) == "'of calc'\n[cell 2 · ok · session calc]"
    listed = text_of(await client.call_tool("list_repl_sessions"))
    shared, *lines = listed.splitlines()
    assert shared.startswith("all 2 sessions: Python 3.")
    assert [line.split(" · ")[0] for line in lines] == ["calc", "main"]
    assert not any("Python" in line for line in lines)
    assert "2 variables: x, z" in listed
    assert "isolation" in listed
    assert " MB" in listed
    ended = text_of(await client.call_tool("destroy_repl_session", {"session_id": "calc"}))
    assert ended.startswith("ended: calc · dead")
    assert "2 cells · 1 variable: x" in ended
    assert (await client.call_tool("wait", {"session_id": "calc"})).is_error is True


@pytest.mark.req("mcp.handles")
async def test_a_session_without_a_name_gets_one_that_cannot_be_guessed(model: Client) -> None:
    names = set()
    for _ in range(3):
        made = await model.call_tool("create_repl_session")
        assert made.meta is not None
        names.add(made.meta["ingle/session"]["session_id"])
    assert len(names) == 3
    assert all(len(name) >= 16 for name in names)


async def test_main_is_made_once_for_calls_that_come_together(model: Client, service: Service) -> None:
    calls = [model.call_tool("python_session", {"code": f"a{number} = 1"}) for number in range(5)]
    results = await asyncio.gather(*calls)
    assert sum(not result.is_error for result in results) >= 1
    assert all("busy" in text_of(result) for result in results if result.is_error)
    assert [info.session_id for info in await service.list_sessions()] == ["main"]


# --- variables ---


async def test_variables_are_listed_and_one_is_shown_in_full(client: Client) -> None:
    await client.call_tool("python_session", {"code": "n = 5; text = 'x' * 300; rows = [{'a': 1}] * 3"})
    listed = text_of(await client.call_tool("get_session_namespace"))
    names = [line.partition(":")[0] for line in listed.splitlines()]
    assert names == ["n", "rows", "text"]
    assert "rows: list, 3 items" in listed
    one = text_of(await client.call_tool("get_session_namespace", {"variable_name": "rows"}))
    assert one.splitlines()[-1] == "[{'a': 1}, {'a': 1}, {'a': 1}]"
    said = await refusal(client, "get_session_namespace", variable_name="nn")
    assert said.startswith("there is no variable 'nn' in this session")


# --- shell ---


async def test_a_short_command_answers_with_its_output_and_its_exit_code(client: Client) -> None:
    assert text_of(await client.call_tool("shell", {"command": "echo fine"})) == "fine"
    result = await client.call_tool("shell", {"command": "echo out; echo err >&2; exit 3"})
    assert result.is_error is False
    assert text_of(result).splitlines()[:3] == ["out", "[stderr]", "err"]
    assert text_of(result).endswith("done · exit code 3]")
    assert result.meta is not None
    assert result.meta["ingle/task"]["exit_code"] == 3
    assert text_of(await client.call_tool("shell", {"command": "true"})).endswith("done · exit code 0]")


@pytest.mark.req("mcp.patient")
async def test_a_long_command_is_followed_by_its_task_id_and_no_line_is_lost_or_doubled(client: Client) -> None:
    command = "for i in $(seq 10); do echo line $i; sleep 0.05; done"
    result = await client.call_tool("shell", {"command": command, "wait": 0.1})
    assert result.meta is not None
    task = result.meta["ingle/task"]
    seen = task["stdout"].splitlines()
    assert f'shell_status(task_id="{task["task_id"]}", from_line={task["next_line"]}) waits for it' in text_of(result)
    while task["status"] == "running":
        given = {"task_id": task["task_id"], "from_line": task["next_line"], "wait": 0.1}
        result = await client.call_tool("shell_status", given)
        assert result.meta is not None
        task = result.meta["ingle/task"]
        seen += task["stdout"].splitlines()
    assert seen == [f"line {number}" for number in range(1, 11)]


async def test_a_command_is_answered_paused_resumed_and_cancelled(model: Client) -> None:
    begun = await model.call_tool(
        "shell", {"command": "read x; echo got $x; sleep 600", "interactive": True, "wait": 0}
    )
    assert begun.meta is not None
    task_id = begun.meta["ingle/task"]["task_id"]

    async def act(action: str, **given: Any) -> str:
        return text_of(
            await model.call_tool("shell_status", {"task_id": task_id, "action": action, "wait": 0.3, **given})
        )

    assert "got it" in await act("input", text="it\n")
    assert "paused" in await act("pause")
    assert "running" in await act("resume")
    assert "cancelled" in await act("cancel", wait=5)
    assert "cancelled" in await act("status")
    assert "there is no task 'nothing'" in await refusal(model, "shell_status", task_id="nothing")


async def test_a_command_runs_where_main_starts_or_in_a_sessions_folder(service: Service, tmp_path: Any) -> None:
    (tmp_path / "there").mkdir()
    async with Client(await served(Tools(service, cwd=str(tmp_path)))) as client:
        assert text_of(await client.call_tool("shell", {"command": "pwd"})) == str(tmp_path)
        await client.call_tool("create_repl_session", {"session_id": "s", "cwd": str(tmp_path / "there")})
        shown = await client.call_tool("shell", {"command": "pwd", "session_id": "s"})
        assert text_of(shown) == str(tmp_path / "there")


async def test_a_flood_from_a_command_is_shortened_too(model: Client) -> None:
    result = await model.call_tool("shell", {"command": "seq 200000", "wait": 30})
    shown = text_of(result)
    assert len(shown) <= 10_000
    assert shown.splitlines()[0] == "1"
    assert "200000" in shown
    assert "omitted: shell_status(task_id=" in shown
    assert len(result.model_dump_json()) < 200_000


# --- figures ---


@pytest.mark.req("mcp.readable")
async def test_figures_come_as_images_and_those_too_many_as_links_to_their_full_size(client: Client) -> None:
    pictures = [png(40 + number, 30) for number in range(6)]
    code = (
        "import base64\nfrom IPython.display import Image, display\nprint('TEXT')\n"
        f"for each in {pictures!r}: display(Image(base64.b64decode(each)))"
    )
    result = await client.call_tool("python_session", {"code": code})
    assert [part.type for part in result.content] == ["text", *["image"] * 4, *["resource_link"] * 2, "text"]
    assert text_of(result).splitlines()[0] == "TEXT"
    assert text_of(result).splitlines()[-1] == "[cell 1 · ok · 6 figures]"
    links = [str(part.model_dump()["uri"]) for part in result.content if part.type == "resource_link"]
    assert links == [f"ingle://sessions/main/cells/1/figures/{number}" for number in (5, 6)]
    read = await client.read_resource(links[1])
    assert read.contents[0].model_dump()["blob"] == pictures[5]
    with pytest.raises(MCPError, match="has 6 figures, and no number 7"):
        await client.read_resource("ingle://sessions/main/cells/1/figures/7")


# --- resources and prompts ---


async def test_sessions_variables_and_output_can_be_read_as_resources(client: Client) -> None:
    await client.call_tool("python_session", {"code": "for i in range(3): print('row', i)"})
    assert [str(each.uri) for each in (await client.list_resources()).resources] == ["ingle://sessions"]
    templates = (await client.list_resource_templates()).resource_templates
    assert "ingle://sessions/{session_id}/cells/{cell}/output" in [each.uri_template for each in templates]

    async def read(uri: str) -> str:
        text: str = (await client.read_resource(uri)).contents[0].model_dump()["text"]
        return text

    assert json.loads(await read("ingle://sessions"))[0]["session_id"] == "main"
    assert "i" in await read("ingle://sessions/main/variables")
    assert await read("ingle://sessions/main/cells/1/output") == "row 0\nrow 1\nrow 2"
    for uri in ("ingle://sessions/none/variables", "ingle://sessions/main/cells/9/output", "ingle://else"):
        with pytest.raises(MCPError):
            await client.read_resource(uri)


async def test_there_are_two_prompts_at_most_and_they_name_real_tools(client: Client) -> None:
    prompts = (await client.list_prompts()).prompts
    assert 0 < len(prompts) <= 2
    for prompt in prompts:
        given = {argument.name: "data.csv" for argument in prompt.arguments or []}
        got = await client.get_prompt(prompt.name, given)
        assert "python_session" in got.messages[0].model_dump()["content"]["text"]
    with pytest.raises(MCPError, match="needs path"):
        await client.get_prompt("explore_data", {})
    with pytest.raises(MCPError, match="there is no prompt"):
        await client.get_prompt("nothing", {})


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=1)
