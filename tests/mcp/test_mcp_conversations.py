"""Conversations of a model with its sessions, call by call, over stdio and over HTTP."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mcp_host import INITIALIZE, Host, text_of
from support.mcp_model import Model, over_http
from support.server import Server
from support.waiting import wait_until

WAITS = {
    "input": "input('who? ')",
    "readline": "import sys; sys.stdin.readline()",
    "getpass": "import getpass; getpass.getpass()",
    "pdb": "breakpoint()",
    "a raw read": "import os; os.read(0, 5)",
    "a child": "import subprocess; subprocess.run(['cat'])",
}

CRASH = "import os; os.kill(os.getpid(), 9)"


@pytest.fixture(scope="module")
def stdio_host() -> Iterator[Host]:
    with (
        tempfile.TemporaryDirectory(prefix="ingle-home-") as home,
        tempfile.TemporaryDirectory() as project,
        Host(Path(home), cwd=Path(project)) as host,
    ):
        yield host


@pytest.fixture(scope="module")
def instructions(stdio_host: Host) -> str:
    told: str = stdio_host.initialize()["instructions"]
    return told


@pytest.fixture
def stdio(stdio_host: Host, instructions: str) -> Iterator[Model]:
    model = Model(lambda method, params: stdio_host.request(method, params), instructions)
    yield model
    for info in model.raw("list_repl_sessions")["_meta"]["ingle/sessions"]:
        model("destroy_repl_session", session_id=info["session_id"])


@pytest.fixture
def http(server: Server) -> Iterator[Model]:
    request = over_http(server.client)
    yield Model(request, request("initialize", INITIALIZE)["result"]["instructions"])
    for each in server.client.get("/v1/snapshots").json()["snapshots"]:
        server.client.delete(f"/v1/snapshots/{each['name']}").raise_for_status()


@pytest.fixture(params=["stdio", "http"])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.getfixturevalue(request.param)
    return found


# --- interrupts ---


@pytest.mark.req("int.cell")
@pytest.mark.parametrize("wait", [10, 0])
@pytest.mark.parametrize("kind", WAITS)
def test_an_interrupt_of_a_wait_answers_with_its_traceback_when_the_session_is_ready(
    model: Model, kind: str, wait: float
) -> None:
    assert "waiting for" in model.run(WAITS[kind])
    stopped = model("interrupt", wait=wait)
    assert "KeyboardInterrupt\n" in stopped
    assert stopped.splitlines()[-1] == "[cell 1 · interrupted]"
    assert model.run("1 + 1") == "2"


def test_an_interrupt_without_effect_says_so_and_what_would_help(model: Model) -> None:
    model.run("import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert "running" in model.run("time.sleep(60)", wait=0)
    told = model("interrupt", wait=0)
    assert "the interrupt has had no effect so far" in told
    assert 'destroy_repl_session(session_id="main") ends the session' in told
    model("destroy_repl_session", session_id="main")
    assert model.run("1") == "1"


def test_a_wait_that_outlives_its_interrupt_is_still_one_to_answer(model: Model) -> None:
    model.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    model.run("input('go on? ')")
    told = model("interrupt")
    assert "the code waits for input in spite of the interrupt. Answer it, with eof=true if it reads on and on" in told
    assert told.splitlines()[-1].startswith("[cell 2 · waiting for input: 'go on?'")
    assert model("send_input", text="yes").splitlines()[0] == "'yes'"


def test_code_sent_to_a_cell_that_waits_for_input_is_told_how_to_answer_it(model: Model) -> None:
    model.run("name = input('who? ')")
    refusal = model.refused("python_session", code="1")
    assert refusal.startswith("busy: cell 1 waits for input")
    assert "send_input(text=…)" in refusal
    assert model("send_input", text="Ada")
    assert model.run("name") == "'Ada'"


# --- input of forked processes ---


@pytest.mark.req("in.surfaces")
@pytest.mark.parametrize("reading", ["input('child? ')", "__import__('sys').stdin.readline()"])
def test_a_forked_process_that_reads_is_answered(model: Model, reading: str) -> None:
    code = f"import os\nif not (pid := os.fork()):\n    print([{reading}]); os._exit(0)\nos.waitpid(pid, 0)[1]"
    assert "waiting for input" in model.run(code)
    answered = model("send_input", text="from outside")
    assert "from outside" in answered
    assert answered.endswith("\n0")


# --- what code shows ---


def test_every_value_that_a_cell_shows_is_kept(model: Model) -> None:
    single = "exec(compile('{}', '<typed>', 'single'))"
    assert model.run(f"{single.format('1 + 1')}; {single.format('2 + 2')}; 5") == "2\n4\n5"
    assert model.run(f"{single.format('1 + 1')}; {single.format('2 + 2')}; x = 5") == "2\n4"
    model.run("import code; code.interact(banner='')")
    assert model("send_input", text="6 * 7").splitlines()[0] == "42"
    assert model("send_input", text="print('text')").splitlines()[0] == "text"
    rest = model("send_input", text="'a'\n'b'", eof=True).splitlines()
    assert rest[-2:] == ["'a'", "'b'"]
    assert "42" not in rest


@pytest.mark.req("out.attributed")
def test_output_of_the_background_is_announced_in_the_next_answer(model: Model) -> None:
    model.run(
        "import threading\ngo, over = threading.Event(), threading.Event()\n"
        "def work():\n    go.wait()\n    print('from a thread')\n    over.set()\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "threading.Timer(0.05, go.set).start()"
    )
    announced = (
        "[note: code in the background printed 1 line after cell 1: 'from a thread'; "
        "all of it is in the stream 'background' of cell 1]"
    )
    assert wait_until(lambda: model("wait").splitlines()[-1] == announced)
    assert model.run("1") == f"1\n{announced}"
    assert model.run("2") == "2"
    assert model("read_output", cell=1, stream="background").splitlines()[0] == "from a thread"


@pytest.mark.req("cell.traceback")
def test_stacks_and_debuggers_show_frames_of_the_user_only(model: Model) -> None:
    printed = model.run("import traceback\ndef f(): traceback.print_stack()\nf()")
    assert printed.splitlines()[1:] == [
        '  File "<cell 1>", line 3, in <module>',
        "    f()",
        '  File "<cell 1>", line 2, in f',
        "    def f(): traceback.print_stack()",
    ]
    assert model.run("import inspect\n[each.function for each in inspect.stack()]") == "['<module>']"
    assert model.run("breakpoint()").splitlines()[:2] == ["--Return--", "> <cell 3>(1)<module>()->None"]
    assert model("send_input", text="w").splitlines()[:2] == ["> <cell 3>(1)<module>()->None", "-> breakpoint()"]
    assert "Oldest frame" in model("send_input", text="up")
    # A step out of the cell ends it, and the next cell is not stepped through.
    assert model("send_input", text="next") == "[cell 3 · ok]"
    assert model.run("x = 1\nx") == "1"


@pytest.mark.req("exit.crash")
def test_a_segfault_is_told_in_a_few_lines(model: Model) -> None:
    told = model.run("import ctypes, _json, _elementtree\ndef f(): ctypes.string_at(0)\nf()")
    assert len(told) < 700
    assert '  File "<cell 1>", line 2 in f\n  File "<cell 1>", line 3 in <module>\n' in told
    assert "ingle_worker" not in told
    assert "Extension modules" not in told
    assert told.splitlines()[-1] == "[cell 1 · exit: SIGSEGV]"


def test_a_session_that_comes_back_empty_says_so(stdio: Model) -> None:
    stdio.run("x = 1")
    stdio.run("import sys; sys.exit(3)")
    fresh = stdio.run("1")
    assert "this is a new process: the one before ended with exit code 3 after cell 2" in fresh
    saved = Model.raw
    assert wait_until(lambda: saved(stdio, "list_repl_sessions")["_meta"]["ingle/sessions"][0]["saved_cell"] == 3)
    stdio.run(CRASH)
    assert ", without any variable]" in stdio.run("1")


@pytest.mark.req("state.restart")
def test_a_crash_right_after_an_exit_is_told_as_what_it_is(model: Model) -> None:
    """An exit discards what was saved, and the next save may not be there yet when the process crashes."""
    for _ in range(4):
        model.run("import sys; sys.exit()")
        model.run("x = 1")
        crashed = model.run(CRASH)
        there = model.run("'x' in globals()")
        gone = "and its variables, functions and imports are gone]" in there or "without variables]" in there
        back = "this session is as it was after cell" in there
        assert (gone, back) in ((True, False), (False, True))
        assert not gone or there.startswith("False")
        assert back or "nothing of this session was saved" in there or "are lost" in crashed


@pytest.mark.req("cell.traceback")
def test_stacks_that_faulthandler_dumps_show_frames_of_the_user_only(model: Model) -> None:
    told = model.run("import faulthandler\ndef f(): faulthandler.dump_traceback()\nf()").splitlines()
    assert told[0] == "[stderr]"
    assert told[1].endswith("(most recent call first):")
    assert told[2:] == ['  File "<cell 1>", line 2 in f', '  File "<cell 1>", line 3 in <module>']


# --- main needs no creating ---


@pytest.mark.req("mcp.handles")
@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("get_session_namespace", {}, "[session main has no variables]"),
        ("interrupt", {}, "[nothing was running · session main]"),
        ("wait", {}, "[nothing has run yet · session main]"),
        ("read_output", {}, "[nothing has run yet · session main]"),
        ("clear_repl_session", {}, "session main is cleared; its next cell is 1."),
        ("shell", {"command": "echo here", "session_id": "main"}, "here"),
    ],
)
def test_the_first_call_may_be_any_that_is_about_main(
    model: Model, tool: str, arguments: dict[str, str], answer: str
) -> None:
    assert model(tool, **arguments) == answer
    assert model.run("1 + 1") == "2"


@pytest.mark.req("state.restart")
@pytest.mark.parametrize("how", ["created", "loaded"])
def test_main_is_durable_however_it_is_made(model: Model, how: str) -> None:
    model.run("x = 41")
    model("save_repl_session", filepath="of-main")
    model("destroy_repl_session", session_id="main")
    if how == "created":
        model("create_repl_session", session_id="main")
    else:
        assert "session main is ready with 1 variable" in model("load_repl_session", filepath="of-main")

    def info() -> dict[str, object]:
        (found,) = model.raw("list_repl_sessions")["_meta"]["ingle/sessions"]
        return dict(found)

    assert info()["durable"] is True
    model.run("y = 1")
    assert wait_until(lambda: info()["saved_cell"] == 1)
    model.run(CRASH)
    assert model.run("y").splitlines()[0] == "1"
    assert model.run("'x' in globals()") == str(how == "loaded")


# --- commands ---


def test_a_relative_folder_is_below_the_one_where_things_start(stdio: Model) -> None:
    assert stdio("shell", command="mkdir -p below; cd below; pwd").endswith("/below")
    assert stdio("shell", command="pwd", cwd="below").endswith("/below")
    assert "/below. Use it" in stdio("create_repl_session", session_id="b", cwd="below")
    assert stdio("shell", command="pwd", cwd="..", session_id="b") == stdio("shell", command="pwd")
    assert stdio.refused("shell", command="pwd", cwd="n" * 5000).endswith("it has 4096 bytes or more, or a NUL")


@pytest.mark.req("shell.bounds")
def test_a_command_that_leaves_a_process_running_does_not_hold_up_the_call(model: Model) -> None:
    # The bound is the call's own: with the process it would take all of `wait`.
    told = model("shell", command="sleep 40 & echo started", wait=30)
    assert told.splitlines()[0] == "started"
    assert "exit code 0 · left running: sleep 40" in told
    task = model.raw("shell_status", task_id=model.task_id(told), wait=0)["_meta"]["ingle/task"]
    assert task["execution_time"] < 20
    assert "cancelled" in model("shell_status", task_id=task["task_id"], action="cancel")


@pytest.mark.usefixtures("instructions")
@pytest.mark.req("mcp.patient")
def test_the_first_progress_of_a_command_comes_before_the_second_is_due(stdio_host: Host) -> None:
    stdio_host.call("shell", command="true")  # the first one starts the sandbox of commands
    number = stdio_host.begin(
        "tools/call",
        {
            "name": "shell",
            "arguments": {"command": "echo begun; sleep 5.5", "wait": 20},
            "_meta": {"progressToken": "patient"},
        },
    )
    stdio_host.answer(number)
    told = [each["params"] for each in stdio_host.notifications if each["method"] == "notifications/progress"]
    assert [(each["progressToken"], each["message"]) for each in told] == [("patient", "begun")]
    assert told[0]["progress"] <= 4


# --- the pipe ---


@pytest.mark.usefixtures("instructions")
def test_a_request_with_half_a_character_is_answered_with_its_id(stdio_host: Host) -> None:
    message = {
        "jsonrpc": "2.0",
        "id": "mine",
        "method": "tools/call",
        "params": {"name": "python_session", "arguments": {"code": "'\ud800'"}},
    }
    stdio_host.send_bytes(json.dumps(message).encode() + b"\n")
    error = stdio_host.answer("mine")["error"]  # type: ignore[arg-type]
    assert (error["code"], "half of a character" in error["message"]) == (-32600, True)
    stdio_host.send_bytes(b'{"jsonrpc": "1.0", "id": 5000, "method": "ping"}\n')
    assert stdio_host.answer(5000)["error"]["code"] == -32600
    assert "result" in stdio_host.request("tools/call", {"name": "list_repl_sessions", "arguments": {}})


def test_the_texts_of_a_result_have_no_internal_words(model: Model) -> None:
    told = model.run(CRASH) + model.run("1")
    assert "worker" not in told
    assert text_of(model.raw("list_repl_sessions"))


# --- words ---


def test_a_refusal_gives_each_advice_once_and_only_what_works(model: Model) -> None:
    creates = "create_repl_session(session_id='gone') creates it; 'main' needs no creating"
    assert model.refused("wait", session_id="gone") == (
        f"there is no session 'gone'. There is no session yet. {creates}"
    )
    model.run("x = 1")
    exists = "a session {0!r} exists already. Use it with session_id={0!r}, choose another name, or end it with "
    exists += "destroy_repl_session(session_id={0!r})"
    assert model.refused("create_repl_session", session_id="main") == exists.format("main")
    model("create_repl_session", session_id="taken")
    assert model.refused("fork_repl_session", new_session_id="taken") == exists.format("taken")
    assert model.refused("destroy_repl_session", session_id="gone") == (
        "there is no session 'gone'. Sessions: main, taken"
    )
    model("destroy_repl_session", session_id="taken")
    no_name = "is not a name: 1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
    assert model.refused("python_session", code="1", session_id="../x") == (
        f"there is no session '../x'. Sessions: main. '../x' {no_name}"
    )
    assert model.refused("send_input", text="?") == (
        "session 'main' is not waiting for input, so the text was not sent. Call wait() to see what it does"
    )
    assert model.refused("rollback_repl_session", checkpoint="one").startswith(
        "session 'main' has no checkpoint 'one'. rollback_repl_session(action='checkpoint', checkpoint=…) stores"
    )
    assert model.refused("get_session_namespace", variable_name="zzz") == (
        "there is no variable 'zzz' in this session. get_session_namespace() lists what there is"
    )


def test_a_refusal_names_the_saves_and_tasks_that_exist(model: Model) -> None:
    assert model.refused("load_repl_session", filepath="nothing").startswith("there is no snapshot 'nothing'. ")
    assert model.refused("shell_status", task_id="t0").startswith("there is no task 't0'. ")
    task = model.task_id(model("shell", command="sleep 40", wait=0))
    assert f"{task} (sleep 40)" in model.refused("shell_status", task_id="t0")
    assert f"task {task} · running · sleep 40" in model("list_repl_sessions").splitlines()
    assert model.refused("shell_status", task_id=task, action="input", text="x").endswith(
        "Start such a command with interactive=true"
    )
    model("shell_status", task_id=task, action="cancel")


@pytest.mark.parametrize(
    ("tool", "arguments", "choices"),
    [
        ("rollback_repl_session", {"action": "undo"}, "checkpoint, drop, list, rollback"),
        ("shell_status", {"task_id": "t", "action": "x" * 100_000}, "cancel, input, pause, resume, status"),
        ("read_output", {"stream": "all"}, "background, both, displays, error, result, stderr, stdout"),
        ("create_repl_session", {"checkpoints": "always"}, "auto, manual"),
    ],
)
def test_an_error_about_a_choice_lists_the_choices(
    model: Model, tool: str, arguments: dict[str, str], choices: str
) -> None:
    refusal = model.refused(tool, **arguments)
    assert f"; it is one of {choices}. Nothing was run" in refusal
    assert len(refusal) < 500


@pytest.mark.parametrize(
    ("tool", "argument"),
    [
        ("python_session", "session_id"),
        ("create_repl_session", "session_id"),
        ("create_repl_session", "python"),
        ("create_repl_session", "cwd"),
        ("get_session_namespace", "variable_name"),
        ("shell_status", "task_id"),
        ("rollback_repl_session", "checkpoint"),
        ("load_repl_session", "filepath"),
        ("fork_repl_session", "new_session_id"),
        ("shell", "cwd"),
        ("wait", "x" * 100_000),
    ],
)
def test_no_refusal_repeats_a_long_name(model: Model, tool: str, argument: str) -> None:
    needed = {"python_session": {"code": "1"}, "shell": {"command": "true"}}.get(tool, {})
    refused = model.raw(tool, **{**needed, argument: "n" * 100_000})
    assert refused["isError"]
    assert len(json.dumps(refused)) < 5_000


def test_a_tilde_is_the_home_folder_and_never_a_folder_of_that_name(model: Model) -> None:
    home = str(Path.home())
    told = model.raw("shell", command="pwd", cwd="~")
    assert home in text_of(told)
    model.run("x = 1")
    told = model.raw("save_repl_session", filepath="~/no/such/place/calc")
    assert told["isError"]
    assert f"{home}/no/such/place/calc" in text_of(told)
    assert model.run("import os; os.path.exists('~')") == "False"


def test_a_save_recommends_a_call_that_works_while_main_lives(model: Model) -> None:
    model.run("x = 41")
    saved = model("save_repl_session", filepath="kept-for-later")
    assert saved.splitlines()[-1] == "load_repl_session(filepath='kept-for-later') restores it."
    listed = model("list_repl_sessions").splitlines()[-1]
    assert listed.startswith("saved: ")
    assert "kept-for-later" in listed.removeprefix("saved: ").split(", ")
    loaded = model("load_repl_session", filepath="kept-for-later")
    assert loaded.startswith("session kept-for-later is ready with 1 variable")
    assert model.run("x + 1", session_id="kept-for-later").splitlines()[0] == "42"
    known = model.refused("load_repl_session", filepath="gone").partition("Saved sessions: ")[2]
    assert "kept-for-later" in known.split(", ")


def test_a_save_is_loaded_as_often_as_one_likes(stdio: Model) -> None:
    stdio.run("x = 41")
    stdio("save_repl_session", filepath="below/kept")
    for name in ("kept", "kept-2", "kept-3"):
        assert stdio("load_repl_session", filepath="below/kept.ingle").startswith(f"session {name} is ready with 1 var")
    assert stdio.run("x", session_id="kept-3").splitlines()[0] == "41"


def test_an_ended_session_is_shown_without_notes(model: Model) -> None:
    model.run("input()")
    ended = model("destroy_repl_session", session_id="main")
    assert ended.startswith("ended: main · dead · ")
    assert "a cell is running" not in ended


def test_a_note_is_told_once(model: Model) -> None:
    model.run("x = 1")
    model("rollback_repl_session", action="checkpoint", checkpoint="one")
    model.run("x = 2")
    back = model("rollback_repl_session", checkpoint="one")
    assert back.startswith("session main: ")
    assert model.run("x") == "1"
    model.run(CRASH)
    asked = model.run("a = input('1? '); b = input('2? ')")
    assert "[note: " in asked
    assert "[note: " not in model("send_input", text="a")
    assert "[note: " not in model("send_input", text="b")


def test_sessions_are_listed_with_what_they_share_in_one_line(model: Model) -> None:
    model.run("x = 1")
    alone = model("list_repl_sessions")
    assert alone.splitlines()[0].startswith("main · idle · ")
    assert "Python 3." in alone.splitlines()[0]
    model("create_repl_session", session_id="second")
    model.run("input('? ')", session_id="second")
    shared, *lines = model("list_repl_sessions").splitlines()[:3]
    assert shared.startswith("all 2 sessions: Python 3.")
    assert [line.split(" · ")[:2] for line in lines] == [["main", "idle"], ["second", "waiting for input"]]
    assert not any("Python 3." in line for line in lines)


# --- the texts and the facts ---


def test_the_texts_use_the_words_of_the_answers(model: Model) -> None:
    listed = model.request("tools/list", {})["result"]["tools"]
    texts = json.dumps(listed, ensure_ascii=False) + model.instructions
    assert "waiting_for_input" not in texts
    assert "`waiting for input`" in texts
    assert "worker" not in texts
    assert "{" not in "".join(tool["description"] for tool in listed)


@pytest.mark.req("mcp.readable")
@pytest.mark.parametrize(("which", "most"), [("default", 12_000), ("all", 16_000)])
def test_the_listing_is_small_as_it_is_on_the_wire(home: Path, mark: str, which: str, most: int) -> None:
    with Host(home, "--tools", which) as host:
        host.initialize()
        host.request("tools/list", {})
        assert len(host.lines[-1]) <= most


def test_the_instructions_of_a_project_are_true(stdio: Model) -> None:
    folder = stdio.run("import os; print(os.getcwd())")
    assert f"Sessions start in {folder}." in stdio.instructions
    assert "`main` is saved after each cell and comes back when the server restarts" in stdio.instructions
    listed = {tool["name"]: tool["description"] for tool in stdio.request("tools/list", {})["result"]["tools"]}
    assert listed["python_session"].endswith("`main` comes back when the server restarts.")
    assert listed["shell"].endswith("It runs where `main` starts, or in a session's folder.")
    assert stdio("shell", command="pwd") == folder


@pytest.mark.req("mcp.readable")
def test_the_instructions_of_a_server_without_a_folder_are_true(http: Model) -> None:
    assert "Sessions start in an empty folder of their own." in http.instructions
    assert http.run("import os; os.listdir('.')") == "[]"
    assert "`main` is saved after each cell and comes back when the server restarts" in http.instructions
    assert http.raw("list_repl_sessions")["_meta"]["ingle/sessions"][0]["durable"] is True
    listed = {tool["name"]: tool["description"] for tool in http.request("tools/list", {})["result"]["tools"]}
    assert listed["shell"].endswith("It runs in a folder of its own, or in a session's folder.")


def test_no_text_names_a_tool_that_is_not_answered(home: Path, mark: str) -> None:
    with Host(home, "--tools", "core") as host:
        model = Model(lambda method, params: host.request(method, params), host.initialize()["instructions"])
        refusals = [
            model.refused("wait", session_id="gone"),
            model.refused("python_session", code="1", session_id="gone"),
            model.run("import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"),
            model.run("time.sleep(60)", wait=0),
            model("interrupt", wait=0),
            model.refused("python_session", code="1"),
        ]
        assert "the interrupt has had no effect so far" in refusals[4]
        listed = json.dumps(model.request("tools/list", {})["result"]["tools"])
        for text in (model.instructions, listed, *refusals):
            assert "_repl_session" not in text
            assert "get_session_namespace" not in text
