"""Standard input: whoever reads is announced once and gets the answer meant for it; the next cell gets none of it."""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Done, InputWanted, Result, Stdout
from ingle.service import Service
from ingle.sessions import upkeep
from support.waiting import until

pytestmark = pytest.mark.both_levels

NEVER = 3600.0


@pytest.fixture
async def sid(service: Service) -> str:
    return (await service.create_session()).session_id


async def asked(service: Service, sid: str, cell: int) -> list[tuple[str, bool]]:
    """Prompt and secrecy of every wait that was announced for a cell, up to its end."""
    found = []
    async for event in service.events(sid):
        if event.cell == cell and isinstance(event, InputWanted):
            found.append((event.prompt, event.secret))
        if event.cell == cell and isinstance(event, Done):
            break
    return found


async def answer_when_asked(service: Service, sid: str, text: str = "", *, eof: bool = False) -> Result:
    """Answer as soon as somebody waits: for threads, whose waits show in no result."""
    refused: errors.NotWaiting | None = None
    result: Result | None = None

    async def accepted() -> bool:
        nonlocal refused, result
        try:
            result = await service.input(sid, text, eof=eof)
        except errors.NotWaiting as error:
            refused = error
        return result is not None

    for _ in range(2000):
        if await accepted():
            break
        await until(lambda: False, 0.005)
    assert result is not None, f"nobody asked: {refused}"
    return result


async def run_to_end(service: Service, sid: str, code: str) -> None:
    """Run a cell that ends by itself, whether or not a thread of its asks for input meanwhile."""
    await service.execute(sid, code)
    for _ in range(2000):
        if (await service.get_session(sid)).state == "idle":
            return
        await until(lambda: False, 0.005)
    raise AssertionError("the cell does not end")


async def value(service: Service, sid: str, expression: str) -> str:
    """What a cell with just this expression shows; it must end well, and be told of prompts of threads at most."""
    result = await service.execute(sid, expression)
    notices = [each for each in result.notices if not each.startswith("code in the background printed")]
    assert (result.status, result.stdout, result.stderr, notices) == ("ok", "", "", [])
    assert result.result is not None
    return result.result["text/plain"]


async def wait_for_value(service: Service, sid: str, expression: str, expected: str) -> None:
    seen = ""
    for _ in range(1000):
        seen = await value(service, sid, expression)
        if seen == expected:
            return
        await until(lambda: False, 0.005)
    raise AssertionError(f"{expression} stays {seen}, and never becomes {expected}")


async def talk(service: Service, sid: str, code: str, answers: list[str | None]) -> tuple[Result, list[Result]]:
    """Run a cell and give these answers, None being the end of input. The last result, and those of the waits."""
    result = await service.execute(sid, code)
    waits = []
    for answer in answers:
        assert result.status == "waiting_for_input", result
        waits.append(result)
        result = await service.input(sid, answer or "", eof=answer is None)
    return result, waits


# --- surfaces ---


@dataclass(frozen=True)
class Surface:
    """A way to read: the code, what is answered (None ends the input), the prompts, and what the cell prints."""

    code: str
    answers: list[str | None]
    prompts: list[str]
    stdout: str
    secret: bool = False
    stderr: str = ""


STOPS_AT_CALL = sys.version_info >= (3, 13)
"""Whether the debugger stops at the call that started it, not behind it."""

PYTHON_SURFACES = {
    "input": Surface("print(repr(input('name? ')))", ["ada"], ["name? "], "name? 'ada'\n"),
    "input without a prompt": Surface("print(repr(input()))", ["ada"], [""], "'ada'\n"),
    "input after a print": Surface("print('name:', end=' ')\nprint(input())", ["ada"], ["name: "], "name: ada\n"),
    "input after whole lines": Surface("print('one')\nprint(input())", ["ada"], [""], "one\nada\n"),
    "input twice": Surface("print(input('a? '), input('b? '))", ["1", "2"], ["a? ", "b? "], "a? b? 1 2\n"),
    "input in a thread": Surface(
        "import threading\nt = threading.Thread(target=lambda: print(input('t? ')))\nt.start()\nt.join()",
        ["ada"],
        ["t? "],
        "t? ada\n",
    ),
    "input in a task": Surface(
        "import asyncio\nprint(await asyncio.to_thread(input, 'task? '))", ["ada"], ["task? "], "task? ada\n"
    ),
    "two threads at once": Surface(
        "import threading\ngot = []\nthreads = [threading.Thread(target=lambda: got.append(input())) for _ in '12']\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint(sorted(got))",
        ["1", "2"],
        ["", ""],
        "['1', '2']\n",
    ),
    "sys.stdin.read": Surface("import sys\nprint(repr(sys.stdin.read()))", ["a\nb", None], ["", ""], "'a\\nb\\n'\n"),
    "sys.stdin.read of some": Surface(
        "import sys\nprint(repr(sys.stdin.read(3)), repr(sys.stdin.read(3)))", ["héllo"], [""], "'hél' 'lo\\n'\n"
    ),
    "sys.stdin.readline": Surface("import sys\nprint(repr(sys.stdin.readline()))", ["ada"], [""], "'ada\\n'\n"),
    "sys.stdin.readlines": Surface(
        "import sys\nprint(sys.stdin.readlines())", ["a", "b", None], ["", "", ""], "['a\\n', 'b\\n']\n"
    ),
    "sys.stdin iterated": Surface(
        "import sys\nfor line in sys.stdin:\n    print(repr(line))",
        ["a\nb", "c", None],
        ["", "", ""],
        "'a\\n'\n'b\\n'\n'c\\n'\n",
    ),
    "sys.stdin.buffer.readline": Surface(
        "import sys\nprint(sys.stdin.buffer.readline())", ["ada"], [""], "b'ada\\n'\n"
    ),
    "sys.stdin.buffer.read": Surface(
        "import sys\nprint(sys.stdin.buffer.read(2), sys.stdin.buffer.read())",
        ["ada", None],
        ["", ""],
        "b'ad' b'a\\n'\n",
    ),
    "sys.stdin.buffer.read1": Surface("import sys\nprint(sys.stdin.buffer.read1())", ["ada"], [""], "b'ada\\n'\n"),
    "sys.__stdin__": Surface("import sys\nprint(sys.__stdin__.readline(), end='')", ["ada"], [""], "ada\n"),
    "fileinput": Surface(
        "import fileinput\nfor line in fileinput.input([]):\n    print(repr(line))",
        ["a", None],
        ["", ""],
        "'a\\n'\n",
    ),
    "getpass": Surface(
        "import getpass\nprint(repr(getpass.getpass('pin? ')))", ["1234"], ["pin? "], "'1234'\n", True, "pin? "
    ),
    "getpass without a prompt": Surface(
        "from getpass import getpass\nprint(repr(getpass()))",
        ["1234"],
        ["Password: "],
        "'1234'\n",
        True,
        "Password: ",
    ),
    "breakpoint": Surface(
        "def f(a):\n    b = a + 1\n    breakpoint()\n    return b\nprint('got', f(1))",
        ["p a, b", "c"],
        ["(Pdb) ", "(Pdb) "],
        ("> <cell 1>(3)f()\n-> breakpoint()" if STOPS_AT_CALL else "> <cell 1>(4)f()\n-> return b")
        + "\n(Pdb) (1, 2)\n(Pdb) got 2\n",
    ),
    "pdb.set_trace": Surface(
        "import pdb\npdb.set_trace()\nx = 5",
        ["x = 3", "c"],
        ["(Pdb) "] * 2,
        ("> <cell 1>(2)<module>()\n-> pdb.set_trace()" if STOPS_AT_CALL else "> <cell 1>(3)<module>()\n-> x = 5")
        + "\n(Pdb) (Pdb) ",
    ),
}


@pytest.mark.req("in.surfaces")
@pytest.mark.parametrize("name", PYTHON_SURFACES)
async def test_a_read_of_pythons_own_is_announced_at_once_and_once(
    name: str, service: Service, sid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once: nobody looks for blocked readers in this test, so each wait was announced by the reader itself.
    monkeypatch.setattr(upkeep, "WATCH_INTERVAL_SECONDS", NEVER)
    surface = PYTHON_SURFACES[name]
    result, waits = await talk(service, sid, surface.code, surface.answers)
    assert [(wait.prompt, wait.prompt_secret) for wait in waits] == [
        (prompt, surface.secret) for prompt in surface.prompts
    ]
    assert (result.status, result.stdout, result.stderr, result.error) == ("ok", surface.stdout, surface.stderr, None)
    assert (result.prompt, result.prompt_secret, result.notices) == (None, False, [])
    assert await asked(service, sid, 1) == [(prompt, surface.secret) for prompt in surface.prompts]


RAW_SURFACES = {
    "os.read": Surface(
        "import os\nprint('raw?', end=' ')\nprint(os.read(0, 100))", ["ada"], ["raw? "], "raw? b'ada\\n'\n"
    ),
    "os.read in a thread": Surface(
        "import os, threading\nt = threading.Thread(target=lambda: print(os.read(0, 100)))\nt.start()\nt.join()",
        ["ada"],
        [""],
        "b'ada\\n'\n",
    ),
    "os.read twice": Surface(
        "import os\nprint(os.read(0, 100), os.read(0, 100))", ["1", "2"], ["", ""], "b'1\\n' b'2\\n'\n"
    ),
    "open(0)": Surface("with open(0) as f:\n    print(repr(f.readline()))", ["ada"], [""], "'ada\\n'\n"),
    "open(0) to the end": Surface("print(repr(open(0).read()))", ["a", None], ["", ""], "'a\\n'\n"),
    "/dev/stdin": Surface("with open('/dev/stdin') as f:\n    print(repr(f.readline()))", ["ada"], [""], "'ada\\n'\n"),
    "a child of os.system": Surface(
        "import os\nprint(os.system('printf \"sh? \"; read x; echo got $x'))", ["ada"], ["sh? "], "sh? got ada\n0\n"
    ),
    "a child of subprocess": Surface(
        "import subprocess\nprint(subprocess.run(['cat']).returncode)", ["a\nb", None], ["", ""], "a\nb\n0\n"
    ),
    "a Python child": Surface(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(input(\"py? \"))'], check=True);",
        ["ada"],
        ["py? "],
        "py? ada\n",
    ),
    "a child of a child": Surface(
        "import subprocess\nsubprocess.run(['sh', '-c', 'sh -c \"read x; echo got \\\\$x\"; true'], check=True);",
        ["ada"],
        [""],
        "got ada\n",
    ),
    "a child in a session of its own": Surface(
        "import subprocess\nsubprocess.run(['sh', '-c', 'read x; echo got $x'], start_new_session=True);",
        ["ada"],
        [""],
        "got ada\n",
    ),
    "a forked child": Surface(
        "import os\npid = os.fork()\nif not pid:\n    print(os.read(0, 9))\n    os._exit(0)\nos.waitpid(pid, 0);",
        ["ada"],
        [""],
        "b'ada\\n'\n",
    ),
}


@pytest.mark.req("in.surfaces")
@pytest.mark.parametrize("name", RAW_SURFACES)
async def test_a_raw_read_of_descriptor_0_is_noticed_once(name: str, service: Service, sid: str) -> None:
    surface = RAW_SURFACES[name]
    result, waits = await talk(service, sid, surface.code, surface.answers)
    assert [(wait.prompt, wait.prompt_secret) for wait in waits] == [(prompt, False) for prompt in surface.prompts]
    assert (result.status, result.stdout, result.stderr, result.error) == ("ok", surface.stdout, "", None)
    assert await asked(service, sid, 1) == [(prompt, False) for prompt in surface.prompts]
    # Whatever was done to descriptor 0, it can be read again.
    after, _ = await talk(service, sid, "print(repr(input('again? ')))", ["here"])
    assert (after.status, after.stdout) == ("ok", "again? 'here'\n")
    closes = name in ("open(0)", "open(0) to the end")
    assert after.notices == (["descriptor 0 had been closed and was opened again"] if closes else [])


@pytest.mark.req("in.surfaces")
async def test_a_raw_read_is_noticed_within_250_ms(service: Service, sid: str) -> None:
    delays = []
    for _ in range(5):
        waiting = await service.execute(sid, "import os, time\nprint(time.time())\nos.read(0, 9);")
        assert waiting.status == "waiting_for_input"
        done = await service.input(sid, "x")
        assert done.status == "ok"
        async for event in service.events(sid):
            if event.cell == waiting.cell and isinstance(event, InputWanted):
                delays.append(event.time - float(done.stdout))
                break
    assert 0 < statistics.median(delays) < 0.25, delays


@pytest.mark.req("in.surfaces")
async def test_a_wait_shows_as_the_sessions_state_and_in_every_reading_of_the_cell(service: Service, sid: str) -> None:
    waiting = await service.execute(sid, "x = input('name? ')")
    assert (waiting.status, waiting.success, waiting.prompt) == ("waiting_for_input", False, "name? ")
    assert (await service.get_session(sid)).state == "waiting_for_input"
    again = await service.wait(sid, waiting.cell)
    assert (again.status, again.prompt, again.stdout) == ("waiting_for_input", "name? ", "name? ")
    done = await service.input(sid, "ada")
    assert (done.status, done.prompt) == ("ok", None)
    assert (await service.get_session(sid)).state == "idle"
    states = []
    async for event in service.events(sid):
        if event.cell == 1 and not isinstance(event, Done):
            states.append(getattr(event, "state", type(event).__name__))
        elif isinstance(event, Done):
            break
    assert states == ["running", "Stdout", "waiting_for_input", "InputWanted", "running"]


@pytest.mark.req("in.surfaces", "in.pager")
async def test_interactive_help_asks_in_band_and_shows_its_pages(service: Service, sid: str) -> None:
    result, waits = await talk(service, sid, "help()", ["len", "quit"])
    assert [wait.prompt for wait in waits] == ["help> ", "help> "]
    assert result.status == "ok"
    assert "Return the number of items in a container." in waits[1].stdout
    assert await asked(service, sid, 1) == [("help> ", False), ("help> ", False)]


# --- answers ---


@pytest.mark.req("in.answer")
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "newline"])
async def test_several_lines_answer_several_reads(newline: str, last: str, service: Service, sid: str) -> None:
    code = "import sys\nprint(repr([input(), sys.stdin.readline(), sys.stdin.buffer.readline(), input()]))"
    text = newline.join(["one", "two", "three", "four"]) + (newline if last else "")
    result, _ = await talk(service, sid, code, [text])
    assert (result.status, result.stdout) == ("ok", "['one', 'two\\n', b'three\\n', 'four']\n")
    assert result.notices == []
    assert len(await asked(service, sid, 1)) == 1


@pytest.mark.req("in.answer")
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "import sys\nprint(repr([sys.stdin.read(4), sys.stdin.readline(1), sys.stdin.readline()]))",
            "['ab\\nc', 'd', '\\n']",
        ),
        ("import os\nprint(os.read(0, 99))", "b'ab\\ncd\\n'"),
        ("import os\nos.system('read a; read b; echo \"<$a|$b>\"');", "<ab|cd>"),
        ("with open(0, newline='') as f:\n    print(repr(f.readline() + f.readline()))", "'ab\\ncd\\n'"),
    ],
)
async def test_carriage_returns_reach_no_reader(code: str, shown: str, service: Service, sid: str) -> None:
    result, _ = await talk(service, sid, code, ["ab\r\ncd\r\n"])
    assert (result.status, result.stdout, result.notices) == ("ok", shown + "\n", [])


@pytest.mark.req("in.answer")
async def test_an_empty_answer_is_an_empty_line(service: Service, sid: str) -> None:
    result, _ = await talk(service, sid, "print(repr(input('go on? ')))", [""])
    assert (result.status, result.stdout) == ("ok", "go on? ''\n")


@pytest.mark.req("in.answer")
@pytest.mark.parametrize("text", ["näïve ☃ 𝄞", "tab\tand \x00 NUL", "x" * 300_000, "lone \ud800 and \udcff"])
async def test_any_text_can_be_an_answer(text: str, service: Service, sid: str) -> None:
    result, _ = await talk(service, sid, "x = input()\nprint(ascii(x) if len(x) < 99 else len(x))", [text])
    expected = text.encode("utf-8", "backslashreplace").decode() if "\ud800" in text else text
    assert (result.status, result.stdout) == ("ok", f"{ascii(expected) if len(text) < 99 else len(text)}\n")


@pytest.mark.req("in.answer")
async def test_the_answer_to_input_comes_when_the_cell_has_gone_on(service: Service, sid: str) -> None:
    code = "import time\ninput('a? ')\nprint('taken', flush=True)\ntime.sleep(0.3)\ninput('b? ')\ntime.sleep(99)"
    waiting = await service.execute(sid, code)
    assert waiting.prompt == "a? "
    second = await service.input(sid, "1")
    assert (second.status, second.prompt, second.stdout) == ("waiting_for_input", "b? ", "a? taken\nb? ")
    running = await service.input(sid, "2", wait=0.2)
    assert (running.status, running.prompt, running.stdout) == ("running", None, "a? taken\nb? ")
    stopped = await service.interrupt(sid)
    assert stopped is not None
    assert stopped.status == "interrupted"


@pytest.mark.req("in.answer")
async def test_eof_ends_every_read_of_this_cell_and_none_of_the_next(service: Service, sid: str) -> None:
    code = """
import os, sys, subprocess
try:
    input('one? ')
except EOFError as error:
    print('EOFError', error)
try:
    input('two? ')
except EOFError as error:
    print('EOFError', error)
print(repr(sys.stdin.read()), repr(sys.stdin.readline()), sys.stdin.buffer.read(5), os.read(0, 5), list(sys.stdin))
print(subprocess.run(['cat'], capture_output=True).stdout)
"""
    result, _ = await talk(service, sid, code, [None])
    assert (result.status, result.error, result.notices) == ("ok", None, [])
    assert result.stdout == (
        "one? EOFError EOF when reading a line\ntwo? EOFError EOF when reading a line\n'' '' b'' b'' []\nb''\n"
    )
    assert await asked(service, sid, 1) == [("one? ", False)]
    after, _ = await talk(service, sid, "print(repr(input('next? ')))", ["ada"])
    assert (after.status, after.stdout, after.notices) == ("ok", "next? 'ada'\n", [])


@pytest.mark.req("in.answer")
async def test_eof_without_a_handler_is_an_error_of_the_cell(service: Service, sid: str) -> None:
    result, _ = await talk(service, sid, "x = input()", [None])
    assert result.status == "error"
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("EOFError", "EOF when reading a line")
    result, _ = await talk(service, sid, "import getpass\ngetpass.getpass()", [None])
    assert result.error is not None
    assert result.error.name == "EOFError"


@pytest.mark.req("in.answer")
async def test_text_before_eof_is_read_first(service: Service, sid: str) -> None:
    waiting = await service.execute(sid, "import sys\nprint([input(), sys.stdin.read()])")
    assert waiting.status == "waiting_for_input"
    result = await service.input(sid, "one\ntwo\nthree", eof=True)
    assert (result.status, result.stdout) == ("ok", "['one', 'two\\nthree']\n")
    assert await asked(service, sid, 1) == [("", False)]


@pytest.mark.req("in.answer")
async def test_a_child_reads_what_the_cell_left_in_the_pipe(service: Service, sid: str) -> None:
    code = "import os\nos.read(0, 4)\nos.system('read x; echo got $x')\nprint(input())"
    result, waits = await talk(service, sid, code, ["one\ntwo\nthree"])
    assert (result.status, result.stdout, len(waits)) == ("ok", "got two\nthree\n", 1)


# --- the boundary between cells ---


@pytest.mark.req("in.boundary")
@pytest.mark.parametrize(
    ("code", "status", "dropped"),
    [
        ("x = input()", "ok", 11),
        ("import sys\nx = sys.stdin.read(2)", "ok", 13),
        ("import sys\nx = sys.stdin.buffer.readline(1)", "ok", 14),
        ("import os\nx = os.read(0, 6)", "ok", 9),
        ("import subprocess\nx = subprocess.run(['head', '-c', '0'])\nx = input()", "ok", 11),
        ("input()\n1/0", "error", 11),
        ("input()\nraise KeyboardInterrupt", "interrupted", 11),
    ],
)
async def test_what_a_cell_did_not_read_is_dropped_and_said(
    code: str, status: str, dropped: int, service: Service, sid: str
) -> None:
    result, _ = await talk(service, sid, code, ["one\nx = 0 # no"])
    assert result.status == status
    assert result.notices == [f"{dropped} bytes of input were not read by this cell and were dropped"]
    assert await value(service, sid, "globals().get('x') == 0") == "False"
    after, _ = await talk(service, sid, "print(repr(input('fresh? ')))", ["new"])
    assert (after.status, after.stdout, after.notices) == ("ok", "fresh? 'new'\n", [])


@pytest.mark.req("in.boundary")
async def test_a_leftover_larger_than_the_pipe_is_dropped_whole(service: Service, sid: str) -> None:
    text = "first\n" + "x" * 1_000_000 + "\n"
    result, _ = await talk(service, sid, "x = input()", [text])
    assert result.notices == [f"{len(text) - 6} bytes of input were not read by this cell and were dropped"]
    assert await value(service, sid, "x") == "'first'"
    after, _ = await talk(service, sid, "import sys\nprint(repr(sys.stdin.read()))", ["new", None])
    assert (after.status, after.stdout) == ("ok", "'new\\n'\n")


@pytest.mark.req("in.boundary")
async def test_a_leftover_with_eof_is_dropped_and_the_input_opens_again(service: Service, sid: str) -> None:
    waiting = await service.execute(sid, "x = input()")
    assert waiting.status == "waiting_for_input"
    result = await service.input(sid, "one\ntwo", eof=True)
    assert result.notices == ["3 bytes of input were not read by this cell and were dropped"]
    after, _ = await talk(service, sid, "print(repr(input()), repr(input()))", ["three", "four"])
    assert (after.status, after.stdout, after.notices) == ("ok", "'three' 'four'\n", [])


@pytest.mark.req("in.boundary")
async def test_a_leftover_does_not_reach_the_worker_that_comes_after_an_exit(service: Service, sid: str) -> None:
    result, _ = await talk(service, sid, "import os\nos.read(0, 1)\nexit()", ["one\ntwo"])
    assert result.status == "exit"
    after = await service.execute(sid, "print(repr(input('fresh? ')))")
    assert (after.status, after.prompt) == ("waiting_for_input", "fresh? ")
    done = await service.input(sid, "new")
    assert (done.status, done.stdout) == ("ok", "fresh? 'new'\n")


# --- threads that read on ---

READER = """
import threading
got = []
def reader():
    while len(got) < {count}:
        got.append(input('bg? '))
thread = threading.Thread(target=reader, daemon=True)
thread.start()
"""


@pytest.mark.req("in.background")
async def test_a_thread_still_reading_gets_the_next_answer_and_the_surplus_is_dropped(
    service: Service, sid: str
) -> None:
    await run_to_end(service, sid, READER.format(count=1))
    await answer_when_asked(service, sid, "one\ntwo\nthree\n")
    await wait_for_value(service, sid, "got, thread.is_alive()", "(['one'], False)")
    after, _ = await talk(service, sid, "print(repr(input('cell? ')))", ["mine"])
    assert (after.status, after.stdout, after.notices) == ("ok", "cell? 'mine'\n", [])


@pytest.mark.req("in.background")
async def test_each_call_of_a_thread_takes_one_answer(service: Service, sid: str) -> None:
    await run_to_end(service, sid, READER.format(count=3))
    for text in ("one\nsurplus", "two", "three"):
        await answer_when_asked(service, sid, text)
    # The first prompt may have come while the cell ran. The next cell is told of the others.
    told = await service.execute(sid, "None")
    assert len(told.notices) == 1
    assert "after cell 1: " in told.notices[0]
    assert "bg? bg?" in told.notices[0]
    await wait_for_value(service, sid, "got, thread.is_alive()", "(['one', 'two', 'three'], False)")


@pytest.mark.req("in.background")
async def test_the_cell_is_answered_before_the_thread_of_an_earlier_one(service: Service, sid: str) -> None:
    await run_to_end(service, sid, READER.format(count=1))
    for number in range(3):
        waiting = await service.execute(sid, "x = input('cell? ')\ny = input()")
        assert (waiting.status, waiting.prompt) == ("waiting_for_input", "cell? ")
        result = await service.input(sid, f"x{number}\ny{number}\nleft over")
        assert (result.status, result.stdout) == ("ok", "cell? ")
        assert result.notices == ["10 bytes of input were not read by this cell and were dropped"]
        assert await value(service, sid, "x, y, got") == f"('x{number}', 'y{number}', [])"
    await answer_when_asked(service, sid, "for the thread")
    await wait_for_value(service, sid, "got, thread.is_alive()", "(['for the thread'], False)")


@pytest.mark.req("in.background")
async def test_a_thread_is_answered_while_a_later_cell_runs(service: Service, sid: str) -> None:
    await run_to_end(service, sid, READER.format(count=1))
    cell = await service.begin(sid, "thread.join()\nprint(got)")
    result = await answer_when_asked(service, sid, "late\nsurplus")
    assert (result.cell, result.status, result.stdout) == (cell, "ok", "['late']\n")
    # The wait was the thread's, not the cell's.
    assert await asked(service, sid, cell) == []
    after, _ = await talk(service, sid, "print(repr(input()))", ["mine"])
    assert (after.status, after.stdout) == ("ok", "'mine'\n")


@pytest.mark.req("in.background")
async def test_two_threads_are_answered_in_the_order_they_asked(service: Service, sid: str) -> None:
    code = """
import threading
got = []
def reader(name):
    got.append((name, input()))
"""
    await service.execute(sid, code)
    for name in "ab":
        await run_to_end(
            service,
            sid,
            f"threading.Thread(target=reader, args=('{name}',), daemon=True).start()\nimport time\ntime.sleep(0.05)",
        )
    await answer_when_asked(service, sid, "one")
    await wait_for_value(service, sid, "got", "[('a', 'one')]")
    await answer_when_asked(service, sid, "two")
    await wait_for_value(service, sid, "got", "[('a', 'one'), ('b', 'two')]")


@pytest.mark.req("in.background", "in.not-asked")
async def test_a_thread_that_was_answered_does_not_wait_any_more(service: Service, sid: str) -> None:
    for _ in range(20):
        await run_to_end(service, sid, READER.format(count=1))
        await answer_when_asked(service, sid, "one")
        with pytest.raises(errors.NotWaiting):
            await service.input(sid, "two")
        await wait_for_value(service, sid, "got, thread.is_alive()", "(['one'], False)")


@pytest.mark.req("in.background")
async def test_eof_for_a_thread_ends_its_read_and_later_cells_can_read(service: Service, sid: str) -> None:
    code = """
import sys, threading
got = []
thread = threading.Thread(target=lambda: got.append(sys.stdin.read()), daemon=True)
thread.start()
"""
    await run_to_end(service, sid, code)
    await answer_when_asked(service, sid, "all of it", eof=True)
    await wait_for_value(service, sid, "got, thread.is_alive()", "(['all of it'], False)")
    after, _ = await talk(service, sid, "print(repr(input()))", ["mine"])
    assert (after.status, after.stdout) == ("ok", "'mine'\n")


# --- not asked ---


@pytest.mark.req("in.not-asked")
async def test_an_answer_nobody_waits_for_is_refused_and_says_so(service: Service, sid: str) -> None:
    async def refused() -> None:
        with pytest.raises(errors.NotWaiting) as caught:
            await service.input(sid, "nobody asked")
        assert caught.value.message == (
            f"session '{sid}' is not waiting for input, so the text was not sent; "
            "send it when the status is waiting_for_input"
        )
        with pytest.raises(errors.NotWaiting):
            await service.input(sid, eof=True)

    await refused()
    running = await service.execute(sid, "import time\ntime.sleep(99)", wait=0)
    assert running.status == "running"
    await refused()
    stopped = await service.interrupt(sid)
    assert stopped is not None
    assert stopped.status == "interrupted"
    await refused()
    result, _ = await talk(service, sid, "print(repr(input()))", ["asked"])
    assert (result.status, result.stdout, result.notices) == ("ok", "'asked'\n", [])
    await refused()


@pytest.mark.req("in.not-asked")
async def test_a_second_answer_to_one_wait_is_refused(service: Service, sid: str) -> None:
    waiting = await service.execute(sid, "import time\nx = input()\ntime.sleep(0.2)\nprint(x, input())")
    assert waiting.status == "waiting_for_input"
    await service.input(sid, "one", wait=0)
    with pytest.raises(errors.NotWaiting):
        await service.input(sid, "too early")
    settled = await service.wait(sid)
    assert settled.status == "waiting_for_input"
    result = await service.input(sid, "two")
    assert (result.status, result.stdout) == ("ok", "one two\n")


@pytest.mark.req("in.not-asked")
async def test_an_answer_for_a_session_that_is_not_there_is_refused(service: Service) -> None:
    with pytest.raises(errors.SessionNotFound):
        await service.input("nowhere", "text")


# --- no pager ---


@pytest.mark.req("in.pager")
@pytest.mark.parametrize("place", ["session", "cell", "envs"])
async def test_no_pager_is_ever_started(place: str, service: Service, tmp_path: Path) -> None:
    trace = tmp_path / "pager ran"
    pagers = dict.fromkeys(("PAGER", "MANPAGER"), f"sh -c 'touch \"{trace}\"; cat'") | {"TERM": "xterm"}
    sid = (await service.create_session(env=pagers if place == "session" else None)).session_id
    envs = pagers if place == "envs" else None
    if place == "cell":
        result = await service.execute(sid, f"import os\nos.environ.update({pagers!r})")
        assert result.status == "ok"
    for code, shown in (
        ("help(len)", "Return the number of items in a container."),
        ("help('if')", 'The "if" statement'),
        ("import pydoc\npydoc.pager('a page\\n' * 500)", "a page\n" * 500),
    ):
        result = await service.execute(sid, code, envs=envs)
        assert (result.status, result.stderr, result.notices) == ("ok", "", [])
        assert shown in result.stdout
    result = await service.execute(sid, "license()", envs=envs)
    assert (result.status, result.prompt) == ("waiting_for_input", "Hit Return for more, or q (and Return) to quit: ")
    assert (await service.input(sid, "q")).status == "ok"
    result = await service.execute(sid, "import os\nprint(os.environ['PAGER'], os.environ['MANPAGER'])", envs=envs)
    assert result.stdout == f"{pagers['PAGER']} {pagers['MANPAGER']}\n"
    assert not trace.exists()


INTERRUPTED_AT = """
import signal, sys, time
def at(frame, event, arg):
    if event == "call" and frame.f_code.co_name == {function!r}:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(at)
"""
"""Raises SIGINT at a chosen moment of a read, which an interrupt from outside hits once in many thousand times."""


@pytest.mark.req("in.boundary", "int.cell")
@pytest.mark.parametrize("reader", ["input()", "sys.stdin.readline()", "sys.stdin.read(5)"])
async def test_an_interrupt_while_a_read_ends_loses_no_byte_uncounted(service: Service, sid: str, reader: str) -> None:
    code = INTERRUPTED_AT.format(function="end") + f"got = {reader}"
    assert (await service.execute(sid, code)).status == "waiting_for_input"
    result = await service.input(sid, "text\nsurplus")
    assert result.status == "interrupted"
    left = len("surplus\n") if "line" in reader or "input" in reader else len("ext\nsurplus\n")
    assert result.notices == [f"{left} bytes of input were not read by this cell and were dropped"]


@pytest.mark.req("int.cell")
async def test_a_cell_that_was_interrupted_while_it_announced_a_wait_can_be_interrupted_again(
    service: Service, sid: str
) -> None:
    code = INTERRUPTED_AT.format(function="_write_queued") + (
        "try:\n    input()\nexcept KeyboardInterrupt:\n    print('once')\n    time.sleep(99)"
    )
    cell = await service.begin(sid, code)
    async for event in service.events(sid):
        if isinstance(event, Stdout):
            break
    stopped = await service.interrupt(sid, wait=10)
    assert stopped is not None
    assert (stopped.cell, stopped.status) == (cell, "interrupted")
