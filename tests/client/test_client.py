"""The client without `await`, against real servers over real sockets."""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ingle
from ingle import CellFailed, Client, errors
from ingle.client import OtherEvent, Session, kind_of
from ingle.client.decode import bundle_of, read_event
from ingle.client.minimal import failure
from ingle.client.results import Result
from ingle.events import CellError, Done
from ingle.support.running_servers import find_servers
from support.checkout import beside
from support.cutting_proxy import Cutter
from support.processes import marked_processes
from support.server import PATIENCE, Server
from support.waiting import wait_until


@pytest.fixture
def in_home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the test's server, or one of the test's own; nothing in the environment names a service."""
    home: Path
    if "server" in request.fixturenames:
        home = request.getfixturevalue("server").home
    else:
        request.getfixturevalue("mark")
        home = request.getfixturevalue("home")
    monkeypatch.setenv("INGLE_HOME", str(home))
    monkeypatch.setenv("INGLE_PRELOAD", "")
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    with client.session("main") as made:
        yield made


# Running


def test_the_design_s_own_example(in_home: Path, server: Server) -> None:
    with Client() as c, c.session("main") as s:
        r = s.run("1+1")
        assert (r.text, r.ok, r.raise_for_error() is r) == ("2", True, True)
    assert server.client.get("/v1/sessions").json() == {"sessions": []}


def test_state_stays_and_text_is_what_a_person_reads(session: Session) -> None:
    assert session.run("x = 21").text == ""
    shown = session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx * 2")
    assert (shown.stdout, shown.stderr, shown.result) == ("out\n", "err\n", {"text/plain": "42"})
    assert shown.text == "out\nerr\n42"


def test_what_a_cell_raises_is_a_result_until_somebody_wants_it_raised(session: Session) -> None:
    failed = session.run("print('before')\n1/0")
    assert (failed.ok, failed.status, failed.success) == (False, "error", False)
    assert failed.text.startswith("before\nTraceback (most recent call last):\n")
    assert failed.text.endswith("ZeroDivisionError: division by zero")
    with pytest.raises(CellFailed) as raised:
        failed.raise_for_error()
    assert raised.value.result is failed
    assert str(raised.value).startswith("cell 1 of session 'main' failed\nTraceback")
    assert str(raised.value).endswith("ZeroDivisionError: division by zero")


def test_an_exit_and_a_timeout_are_told_in_words(session: Session) -> None:
    with pytest.raises(CellFailed, match=r"(?s)cell 1 of session 'main' failed\nthe session's process .*3"):
        session.run("import sys; sys.exit(3)").raise_for_error()
    late = session.run("while True: pass", timeout=0.2)
    assert (late.status, late.timed_out) == ("interrupted", True)
    with pytest.raises(CellFailed, match="was stopped at its timeout"):
        late.raise_for_error()


def test_a_run_waits_for_as_long_as_it_takes_and_runs_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request waits for a small part of the cell's time; the client goes on asking."""
    monkeypatch.setattr("ingle.client.address.POLL_SECONDS", 0.05)
    done = session.run("import time\nruns = globals().get('runs', 0) + 1\ntime.sleep(1)\nruns")
    assert (done.status, done.text, done.cell) == ("ok", "1", 1)


def test_wait_bounds_the_call_and_not_the_cell(session: Session) -> None:
    running = session.run("import time\nprint('on', flush=True)\nfor _ in range(600): time.sleep(0.1)", wait=0.3)
    assert (running.status, running.ok, running.raise_for_error()) == ("running", False, running)
    with pytest.raises(errors.Busy, match="busy: cell 1 has run") as busy:
        session.run("1")
    assert busy.value.cell == 1
    assert session.wait(wait=0).status == "running"
    stopped = session.interrupt()
    assert stopped is not None
    assert (stopped.status, stopped.stdout) == ("interrupted", "on\n")
    assert session.interrupt() is None
    assert session.wait(1).status == session.wait().status == "interrupted"


def test_a_queued_cell_waits_for_its_turn(session: Session) -> None:
    session.run("import time\ntime.sleep(0.5)\nx = 1", wait=0)
    assert session.run("x", queue=True).text == "1"


@pytest.mark.req("rich.vars")
def test_variables_are_listed_and_one_is_told_in_full(session: Session) -> None:
    session.run("numbers = [1, 2, 3]")
    (numbers,) = session.variables().variables
    assert (numbers.name, numbers.type, numbers.length, numbers.preview) == ("numbers", "list", 3, "[1, 2, 3]")
    assert session.variable("numbers").variable.repr == "[1, 2, 3]"
    with pytest.raises(errors.VariableNotFound, match="did you mean numbers"):
        session.variable("number")


@pytest.mark.req("rich.complete", "rich.inspect")
def test_code_is_completed_and_described(session: Session) -> None:
    session.run("def greet(name='you'):\n    'Say hello.'\nclock = greet")
    found = session.complete("x = gre")
    assert ([each.text for each in found.matches], found.cursor_start, found.cursor_end) == (["greet"], 4, 7)
    assert [each.text for each in session.complete("clo + 1", 3).matches] == ["clock"]
    told = session.inspect("greet(", source=True)
    assert (told.signature, told.doc, told.source) == (
        "(name='you')",
        "Say hello.",
        "def greet(name='you'):\n    'Say hello.'\n",
    )
    assert session.is_complete("if clock:").indent == "    "
    with pytest.raises(errors.InvalidRequest, match="the cursor is at 9"):
        session.complete("x", 9)


def test_environment_of_one_cell(session: Session) -> None:
    assert session.run("import os\nos.environ.get('A')", envs={"A": "b=\n'"}).result == {"text/plain": r'''"b=\n'"'''}
    assert session.run("os.environ.get('A')").text == ""


def test_input_is_answered(session: Session) -> None:
    asked = session.run("name = input('name? ')\nage = input('age? ')\n(name, age)")
    assert (asked.status, asked.prompt) == ("waiting_for_input", "name? ")
    asked = session.input("Ada")
    assert (asked.status, asked.prompt) == ("waiting_for_input", "age? ")
    assert session.input("36").result == {"text/plain": "('Ada', '36')"}
    with pytest.raises(errors.NotWaiting):
        session.input("too late")
    session.run("input()")
    ended = session.input(eof=True)
    assert ended.error is not None
    assert ended.error.name == "EOFError"


# Callbacks and streams


def test_callbacks_hear_everything_in_order(session: Session) -> None:
    heard: list[tuple[str, object]] = []
    code = (
        "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')\n"
        "class Shown:\n    def __repr__(self): return 'shown'\nShown()"
    )

    def hear(kind: str) -> Callable[[object], None]:
        return lambda said: heard.append((kind, said))

    result = session.run(
        code,
        on_stdout=hear("out"),
        on_stderr=hear("err"),
        on_result=hear("result"),
        on_error=hear("error"),
        on_display=hear("display"),
    )
    assert heard == [
        ("out", "one\n"),
        ("err", "two\n"),
        ("out", "three\n"),
        ("result", {"text/plain": "shown"}),
    ]
    assert (result.ok, result.stdout, result.stderr) == (True, "one\nthree\n", "two\n")
    failed = session.run("1/0", on_error=hear("error"))
    error = heard[-1][1]
    assert isinstance(error, CellError)
    assert (error.name, error) == ("ZeroDivisionError", failed.error)


def test_a_callback_answers_input(session: Session) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, secret: bool) -> str | None:
        asked.append((prompt, secret))
        return "s3cret" if secret else None

    code = "import getpass\nprint(getpass.getpass('key: '))\ntry: input('more? ')\nexcept EOFError: print('end')"
    result = session.run(code, on_input=answer)
    assert (result.status, asked) == ("ok", [("key: ", True), ("more? ", False)])
    assert result.stdout.endswith("s3cret\nmore? end\n")
    # Without such a callback the call returns, as it does without any.
    assert session.run("input('? ')", on_stdout=lambda text: None).status == "waiting_for_input"
    session.interrupt()


def test_callbacks_hear_while_the_cell_runs_and_wait_bounds_the_call(session: Session) -> None:
    heard: list[str] = []
    code = "import time\nprint('on', flush=True)\nfor _ in range(600): time.sleep(0.1)"
    running = session.run(code, wait=0.5, on_stdout=heard.append)
    assert (running.status, heard) == ("running", ["on\n"])
    session.interrupt()


def test_a_stream_is_the_cell_from_its_beginning_to_its_done(session: Session) -> None:
    session.run("1")
    events = list(session.stream("print('hello')\n2"))
    assert [kind_of(event) for event in events] == ["state", "stdout", "result", "done"]
    assert {event.cell for event in events} == {2}
    last = events[-1]
    assert isinstance(last, Done)
    assert last.result.status == "ok"
    # Whoever stops reading leaves the cell running.
    for event in session.stream("import time\nprint('begun', flush=True)\ntime.sleep(0.3)\n'whole'"):
        if kind_of(event) == "stdout":
            break
    assert session.wait().text == "begun\n'whole'"


def test_events_of_the_session_from_any_number_on(session: Session) -> None:
    for number in range(3):
        session.run(f"print({number})")
    first = session.first_event(2)
    until = session.first_event(4) - 1
    assert {event.cell for event in session.events(first, until) if event.cell is not None} == {2, 3}
    followed: list[str] = []
    begun = threading.Event()

    def follow() -> None:
        for event in session.events():
            begun.set()
            followed.append(kind_of(event))

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        assert begun.wait(PATIENCE)
        # The end of the session is the end of its events.
        session.close()
        following.result(PATIENCE)
    assert followed.count("done") == 3


# What is lost on the way


@pytest.mark.req("cell.once")
def test_every_line_comes_once_and_in_order_however_often_the_connection_is_cut(in_home: Path, server: Server) -> None:
    """A proxy cuts 50 connections at random bytes, in handshakes, frames and answers alike."""
    dice, lines, cuts = random.Random(7), 20_000, 50

    def budget() -> int | None:
        return dice.randint(0, 9000) if cutter.cuts < cuts else None

    heard: list[str] = []
    with Cutter(server.port, budget) as cutter, Client(cutter.url, server.token) as client:
        session = client.session("main")
        code = (
            "import time\nruns = globals().get('runs', 0) + 1\n"
            f"for n in range({lines}):\n    print(n)\n    if n % 20 == 0: time.sleep(0.001)"
        )
        result = session.run(code, on_stdout=heard.append)
        assert "".join(heard) == "".join(f"{n}\n" for n in range(lines))
        assert (result.status, result.cell) == ("ok", 1)
        assert session.run("runs").text == "1"
        assert cutter.cuts >= cuts
    server.client.delete("/v1/sessions/main")


@pytest.mark.req("cell.once")
def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_runs_twice(in_home: Path, server: Server) -> None:
    budgets = iter([None, 0, 0, 20])
    with Cutter(server.port, lambda: next(budgets, None)) as cutter:
        with Client(cutter.url, server.token) as other:
            other.session("main", keep=True).run("runs = 0")
        with Client(cutter.url, server.token) as client:
            session = client.session("main")
            # So that what is lost is the answer to the cell, three times, after the server has begun it.
            session._attached = True
            assert session.run("runs += 1\nruns").text == "1"
            assert cutter.cuts == 3
            assert session.run("runs").text == "1"
    server.client.delete("/v1/sessions/main")


@pytest.mark.req("cell.once")
def test_a_cell_that_waits_for_its_turn_outlives_connections_that_break(
    in_home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has waited: patience is for a service that is gone."""
    patience = 0.3
    monkeypatch.setattr("ingle.client.sync.connection.RETRY_SECONDS", patience)
    monkeypatch.setattr("ingle.client.sync.connection.STABLE_SECONDS", patience)
    with Cutter(server.port, lambda: None) as cutter, Client(cutter.url, server.token) as client:
        session = client.session("main")
        assert session.run("runs = 0\ninput()").status == "waiting_for_input"
        with ThreadPoolExecutor() as threads:
            queued = threads.submit(session.run, "runs += 1\nruns", queue=True)
            for _ in range(2):
                # A connection that holds for much longer than a service may be gone.
                with pytest.raises(TimeoutError):
                    queued.result(5 * patience)
                cutter.cut()
            server.client.post("/v1/sessions/main/input", json={"text": ""})
            assert queued.result(PATIENCE).text == "1"
        assert cutter.cuts == 2
    server.client.delete("/v1/sessions/main")


def test_the_end_of_a_session_is_asked_for_until_the_answer_comes(in_home: Path, server: Server) -> None:
    budgets = iter([None, 0, 0, 20])
    with Cutter(server.port, lambda: next(budgets, None)) as cutter:
        with Client(cutter.url, server.token) as other:
            other.session("main", keep=True).run("1")
        with Client(cutter.url, server.token) as client:
            client.session("main").close()
            assert cutter.cuts == 3
            assert client.sessions() == []


def test_what_must_not_be_done_twice_is_not_repeated(in_home: Path, server: Server) -> None:
    budgets = iter([None, 0])
    with Cutter(server.port, lambda: next(budgets, None)) as cutter, Client(cutter.url, server.token) as client:
        session = client.session("main")
        assert session.run("first = input()\nsecond = input()").status == "waiting_for_input"
        # The connection of a client of its own is cut before the answer comes.
        with Client(cutter.url, server.token) as other:
            hasty = other.session("main")
            hasty._attached = True
            with pytest.raises(errors.Unreachable, match="may or may not have been executed"):
                hasty.input("only once")
        assert session.wait().status == "waiting_for_input"
        session.input("the second")
        assert session.run("first, second").text == "('only once', 'the second')"
    server.client.delete("/v1/sessions/main")


def test_a_session_made_by_a_lost_request_is_this_client_s_own(in_home: Path, server: Server) -> None:
    budgets = iter([0])
    with Cutter(server.port, lambda: next(budgets, None)) as cutter, Client(cutter.url, server.token) as client:
        with client.session() as session:
            assert cutter.cuts == 1
            assert session.made
            assert session.run("1").ok
        assert client.sessions() == []


def test_a_service_that_is_gone_is_told_with_what_to_do(
    in_home: Path, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    monkeypatch.setattr("ingle.client.sync.connection.RETRY_SECONDS", 0.3)
    local, remote = Client(), Client(server.url, server.token)
    session, far = local.session("main"), remote.session("main")
    kept = local.session("kept", durable=True)
    for each in (session, far, kept):
        each.run("1")
    server.process.kill()
    server.process.wait(PATIENCE)
    with pytest.raises(errors.Unreachable, match="session 'main' was not durable, so it is gone; start `ingle serve`"):
        session.run("2")
    with pytest.raises(errors.Unreachable, match="session 'kept' is durable: it comes back with the next server"):
        kept.run("2")
    with pytest.raises(errors.Unreachable, match="its sessions have ended with it, except durable ones"):
        local.sessions()
    with pytest.raises(errors.Unreachable, match=r"check the URL, .*; session 'main' is not durable: should the serv"):
        far.run("2")
    with pytest.raises(errors.Unreachable, match="cannot be reached"):
        list(far.events())
    local.close()
    remote.close()
    with pytest.raises(errors.Unreachable, match="this client is closed"):
        local.sessions()
    # What was killed is cleared away by the next on the same folder.
    start()


@pytest.mark.fresh_service
def test_a_server_that_stops_ends_a_stream_in_order(client: Client, server: Server) -> None:
    kinds = []
    for event in client.session("main").stream("import time\nprint('on', flush=True)\ntime.sleep(600)"):
        kinds.append(kind_of(event))
        if kinds[-1] == "stdout":
            server.process.terminate()
    assert kinds[-1] == "done"


# Sessions


def test_a_context_ends_what_it_made_and_leaves_what_was_there(client: Client) -> None:
    def names() -> list[str]:
        return sorted(info.session_id for info in client.sessions())

    kept = client.session("kept", keep=True)
    with kept:
        assert (kept.made, kept.run("x = 1").ok) == (True, True)
    assert names() == ["kept"]
    with client.session("kept") as attached:
        assert (attached.made, attached.run("x").text) == (False, "1")
    assert names() == ["kept"]
    with client.session("made") as made, client.session() as unnamed:
        assert names() == sorted(["kept", "made", unnamed.name])
        made.close()
    assert names() == ["kept"]
    attached.close()
    with pytest.raises(errors.SessionNotFound):
        attached.run("1")


def test_what_was_closed_may_be_closed_again(client: Client) -> None:
    session = client.session("short")
    session.run("1")
    session.close()
    session.close()
    with pytest.raises(errors.SessionNotFound):
        session.run("1")
    with pytest.raises(errors.SessionNotFound):
        client.session("never-there").close()


def test_a_client_says_which_service_it_has_and_no_token(in_home: Path, server: Server) -> None:
    with Client(server.url, server.token) as named:
        assert repr(named) == f"<Client {server.url}>"
    found = Client()
    assert repr(found) == "<Client not connected yet>"
    found.sessions()
    assert repr(found).startswith(f"<Client unix:{in_home}/run/")
    found.close()
    assert repr(found) == repr(named) == "<Client closed>"


def test_how_a_session_is_made(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--pythons", "/bin/false")
    client = Client(server.url, server.token)
    with client.session("here", cwd=str(tmp_path), env={"A": "1"}, idle_timeout=7.0) as session:
        assert session.run("import os\nos.getcwd(), os.environ['A']").text == str((str(tmp_path), "1"))
        info = session.info()
        assert (info.session_id, info.idle_timeout, info.cwd) == ("here", 7.0, str(tmp_path))
    with pytest.raises(errors.InterpreterRefused):
        client.session("odd", python="/bin/false").run("1")
    client.close()


def test_cells_and_lines_are_read_again(session: Session) -> None:
    session.run("for n in range(1000): print('line', n)")
    session.run("1/0")
    assert [(cell.cell, cell.code, cell.status) for cell in session.cells()] == [
        (1, "for n in range(1000): print('line', n)", "ok"),
        (2, "1/0", "error"),
    ]
    page = session.output(1, from_line=999, lines=5)
    assert ([line.text for line in page.lines], page.next_line) == (["line 998", "line 999"], None)
    assert [line.number for line in session.output(1, grep="9$", lines=2).lines] == [10, 20]


def test_files_go_both_ways(session: Session) -> None:
    data = bytes(range(256)) * 1000
    for name in ("plain.txt", "deep/er/file", "odd name?&#%.txt", "grün ☃", "a%2fb"):
        assert (session.write_file(name, data).size, session.read_file(name)) == (len(data), data)
        assert session.run(f"len(open({name!r}, 'rb').read())").text == str(len(data))
        session.write_file(name, "text ☃")
        assert session.read_file(name).decode() == "text ☃"
        folder, _, file = name.rpartition("/")
        assert file in [info.name.rpartition("/")[2] for info in session.list_files(folder)]
        session.delete_file(name)
        with pytest.raises(errors.FileNotThere):
            session.read_file(name)


@pytest.mark.req("safe.input")
def test_a_path_that_would_mean_another_place_is_refused(session: Session) -> None:
    for path in ("../x", "a/../../../other/execute", "a//b", ".", "", "a/", "/etc/", "/etc/..", "nul\0"):
        with pytest.raises(errors.InvalidRequest, match="is not a path below the session's folder"):
            session.read_file(path)


@pytest.mark.req("safe.input")
@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "ü", "x" * 65, "a?b", "a\0"])
def test_a_name_that_breaks_the_rule_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidName, match="cannot name a session"):
        Client("http://127.0.0.1:1").session(name)


# Problems


def test_refusals_are_the_exceptions_they_name(in_home: Path, server: Server, session: Session) -> None:
    with pytest.raises(errors.CellNotFound, match="has no cell 5"):
        session.wait(5)
    with pytest.raises(errors.InvalidRequest, match="timeout is"):
        session.run("1", timeout=-1)
    with pytest.raises(errors.Unauthorized):
        Client(server.url, "wrong").sessions()
    with pytest.raises(errors.Unauthorized):
        Client(server.url).sessions()
    for url in ("127.0.0.1:8377", "ftp://x", "http://", "http://me:secret@x", "http://x/?a=1"):
        with pytest.raises(errors.InvalidRequest, match="URL"):
            Client(url)
    with pytest.raises(errors.InvalidRequest, match="needs a URL"):
        Client(token="x")


def test_unknown_problems_and_what_is_no_problem() -> None:
    error = failure(418, b'{"code": "teapot", "detail": "it is a teapot; take tea"}', "3")
    assert (type(error), error.code, error.status) == (errors.IngleError, "teapot", 418)
    assert (error.message, error.retry_after) == ("it is a teapot; take tea", 3.0)
    quota = failure(429, b'{"code": "quota_exceeded", "detail": "enough"}', "7")
    assert (type(quota), quota.retry_after) == (errors.QuotaExceeded, 7.0)
    busy = failure(409, b'{"code": "busy", "detail": "cell 3 runs", "cell": 3}')
    assert (type(busy), busy.__dict__["cell"]) == (errors.Busy, 3)
    for body in (b"<html>Bad Gateway</html>", b"", b"[]", b"\xff"):
        assert isinstance(failure(502, body), errors.Unreachable)


def test_an_event_of_an_unknown_kind_is_passed_on() -> None:
    event = read_event(
        b'{"type": "hologram", "seq": 3, "time": 1.5, "session_id": "main", "cell": 2, "data": {"text/plain": "x"}}'
    )
    assert isinstance(event, OtherEvent)
    assert (event.seq, event.cell, kind_of(event), bundle_of(event)) == (3, 2, "hologram", {"text/plain": "x"})
    assert read_event(b'{"type": "reply", "id": "1", "cell": 2}') is None
    with pytest.raises(errors.Unreachable):
        read_event(b"<html>")


# Services on this machine


def test_a_service_is_started_when_there_is_none_and_ends_with_its_client(in_home: Path, mark: str) -> None:
    with Client() as client, client.session("main") as session:
        [(_, info)] = find_servers(in_home)
        assert info.kind == "client"
        assert session.run("6 * 7").text == "42"
        # What another client started is not relied upon: it ends with that one.
        with pytest.raises(errors.Unreachable, match="no service runs on"):
            Client(start=False).sessions()
    assert find_servers(in_home) == []
    assert marked_processes(mark) == []


def test_a_service_that_was_started_ends_even_when_its_client_is_killed(in_home: Path, mark: str) -> None:
    code = "import ingle\nc = ingle.Client()\nc.session('main').run('1')\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not marked_processes(mark), PATIENCE)
    assert find_servers(in_home) == []


def test_a_service_that_cannot_start_says_why(in_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_MAX_SESSIONS", "many")
    with pytest.raises(errors.Unreachable, match="ended at once, with exit code 2: ingle: INGLE_MAX_SESSIONS is"):
        Client().sessions()


def test_the_environment_names_a_service(in_home: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_URL", server.url + "/")
    monkeypatch.setenv("INGLE_TOKEN", server.token)
    # A proxy of the environment is not for this machine's own loopback.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Client() as client, client.session() as session:
        assert [kind_of(event) for event in session.stream("1")][-1] == "done"


# Threads and loops


def test_threads_share_a_client(client: Client) -> None:
    together = threading.Barrier(8)

    def work(number: int) -> list[str]:
        with client.session() as session:
            together.wait(PATIENCE)
            heard: list[str] = []
            for turn in range(5):
                session.run(f"print({number}, {turn})", on_stdout=heard.append)
                heard.append(session.run(f"{number} * {turn}").text)
            return heard

    with ThreadPoolExecutor(8) as pool:
        for number, heard in enumerate(pool.map(work, range(8))):
            assert heard == [text for turn in range(5) for text in (f"{number} {turn}\n", str(number * turn))]
    assert client.sessions() == []


async def test_it_works_where_a_loop_is_running(client: Client) -> None:
    heard: list[str] = []
    with client.session() as session:
        assert session.run("print('in a loop')\n5", on_stdout=heard.append).ok
    assert heard == ["in a loop\n"]


# In a notebook


def result(**given: object) -> Result:
    return Result(session_id="main", cell=1, status="ok", **given)  # type: ignore[arg-type]


def test_a_notebook_shows_text_as_text_and_rich_results_as_they_are() -> None:
    plain = result(stdout="<b>\n", result={"text/plain": "1"})
    assert plain._repr_mimebundle_() == {"text/plain": "<b>\n1"}
    table = result(stdout="<b>\n", result={"text/plain": "a table", "text/html": "<table onload='x()'>"})
    shown = table._repr_mimebundle_()
    assert shown["text/plain"] == "<b>\na table"
    assert "<pre>&lt;b&gt;\n</pre>" in shown["text/html"]
    # What a session made has no way to the page around it.
    assert "<table" not in shown["text/html"]
    assert 'sandbox="allow-scripts"' in shown["text/html"]
    picture = result(displays=[{"text/plain": "<Figure>", "image/png": "aGk=\n"}])._repr_mimebundle_()
    assert picture["image/png"] == "aGk=\n"
    assert picture["text/html"] == '<img src="data:image/png;base64,aGk=">'


# The package


def test_importing_ingle_loads_no_client() -> None:
    code = (
        "import sys, ingle\nassert not {'httpx', 'websockets', 'msgspec', 'ingle.client'} & set(sys.modules)\n"
        "ingle.Client\nassert 'ingle.client' in sys.modules\nassert 'Client' in dir(ingle)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        ingle.Klient  # noqa: B018


def test_the_client_without_await_is_made_from_the_one_with_it() -> None:
    subprocess.run([sys.executable, beside("tools/unasync.py"), "--check"], check=True, timeout=PATIENCE)


def test_the_example_runs(in_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(beside("docs/examples/client.py")), run_name="__main__")
    said = capsys.readouterr().out
    assert said == beside("docs/examples/client.out").read_text()
