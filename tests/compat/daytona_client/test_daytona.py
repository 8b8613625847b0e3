"""Sandboxes of Daytona: the interpreter, processes and files, by its own SDK."""

from __future__ import annotations

from typing import Any

import pytest
from daytona import (
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
    Sandbox,
    SessionExecuteRequest,
)
from daytona.common.pty import PtySize
from daytona.handle.pty_handle import PtyHandle
from serving import Server

pytestmark = pytest.mark.req("compat.daytona")


# --- sandboxes ---


def test_a_sandbox_is_found_listed_and_removed(daytona: Daytona) -> None:
    made = daytona.create(CreateSandboxFromSnapshotParams(name="named", labels={"purpose": "list"}))
    assert daytona.get(made.id).name == "named"
    assert daytona.get("named").id == made.id
    assert [each.id for each in daytona.list(ListSandboxesQuery(labels={"purpose": "list"}))] == [made.id]
    assert made.set_labels({"purpose": "other"}) == {"purpose": "other"}
    made.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get("named")


def test_a_stopped_sandbox_keeps_its_state(sandbox: Sandbox) -> None:
    sandbox.code_interpreter.run_code("x = 1")
    sandbox.stop()
    with pytest.raises(DaytonaError):
        sandbox.process.exec("true")
    sandbox.start()
    assert sandbox.code_interpreter.run_code("print(x)").stdout == "1\n"


def test_another_tenant_sees_nothing(sandbox: Sandbox, server: Server) -> None:
    other = Daytona(DaytonaConfig(api_key=server.other_token, api_url=f"{server.url}/api"))
    assert list(other.list()) == []
    with pytest.raises(DaytonaNotFoundError):
        other.get(sandbox.id)
    with pytest.raises(DaytonaError):
        Daytona(DaytonaConfig(api_key="wrong", api_url=f"{server.url}/api")).get(sandbox.id)


def test_what_needs_a_virtual_machine_is_refused(daytona: Daytona, sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaError, match="needs a virtual machine"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot="my-image"))
    with pytest.raises(DaytonaNotFoundError, match="not virtual machines"):
        sandbox.get_preview_link(3000)


# --- interpreter ---


def test_code_prints_and_keeps_its_state(sandbox: Sandbox) -> None:
    got: dict[str, list[Any]] = {"out": [], "err": [], "error": []}
    sandbox.code_interpreter.run_code("counter = 1")
    result = sandbox.code_interpreter.run_code(
        "import sys, os\nprint(counter, os.environ['WIDE'])\nprint('e', file=sys.stderr)\n1 / 0",
        on_stdout=lambda each: got["out"].append(each.output),
        on_stderr=lambda each: got["err"].append(each.output),
        on_error=got["error"].append,
    )
    assert (result.stdout, result.stderr) == ("1 it's wide\n", "e\n")
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    assert ("".join(got["out"]), "".join(got["err"]), len(got["error"])) == ("1 it's wide\n", "e\n", 1)


def test_environment_variables_hold_for_one_run(sandbox: Sandbox) -> None:
    code = "import os; print(os.environ.get('ONE'))"
    assert sandbox.code_interpreter.run_code(code, envs={"ONE": "it's"}).stdout == "it's\n"
    assert sandbox.code_interpreter.run_code(code).stdout == "None\n"


def test_a_run_that_takes_too_long_leaves_the_context_usable(sandbox: Sandbox) -> None:
    sandbox.code_interpreter.run_code("x = 41")
    with pytest.raises(DaytonaTimeoutError):
        sandbox.code_interpreter.run_code("import time; time.sleep(60)", timeout=1)
    assert sandbox.code_interpreter.run_code("print(x + 1)").stdout == "42\n"


def test_an_exception_of_the_users_own_is_no_timeout(sandbox: Sandbox) -> None:
    assert sandbox.code_interpreter.run_code("raise KeyboardInterrupt").error.name == "KeyboardInterrupt"
    assert sandbox.code_interpreter.run_code("import subprocess; subprocess.run(['echo', 'x'])").stdout == "x\n"
    assert sandbox.code_interpreter.run_code("print(input())").error.name == "EOFError"


def test_contexts_are_apart_and_share_the_folder(sandbox: Sandbox) -> None:
    context = sandbox.code_interpreter.create_context(cwd="/tmp")
    assert context.cwd == "/tmp"
    sandbox.code_interpreter.run_code("x = 1")
    assert sandbox.code_interpreter.run_code("print(x)", context=context).error.name == "NameError"
    assert sandbox.code_interpreter.run_code("import os; print(os.getcwd())", context=context).stdout == "/tmp\n"
    assert [each.id for each in sandbox.code_interpreter.list_contexts()] == [context.id]
    sandbox.code_interpreter.delete_context(context)
    assert sandbox.code_interpreter.list_contexts() == []
    with pytest.raises(DaytonaNotFoundError):
        sandbox.code_interpreter.delete_context(context)
    with pytest.raises(DaytonaError, match="not found"):
        sandbox.code_interpreter.run_code("1", context=context)


async def test_async_code_and_files(async_sandbox: AsyncSandbox) -> None:
    assert (await async_sandbox.code_interpreter.run_code("print(1)")).stdout == "1\n"
    assert (await async_sandbox.process.exec("echo hi")).result == "hi\n"
    await async_sandbox.fs.upload_file(b"bytes", "a.bin")
    assert await async_sandbox.fs.download_file("a.bin") == b"bytes"


# --- processes ---


def test_a_command_has_output_and_an_exit_code(sandbox: Sandbox) -> None:
    answer = sandbox.process.exec("echo $V; echo err >&2; exit 3", env={"V": "it's"})
    assert (answer.exit_code, answer.result) == (3, "it's\nerr\n")
    assert sandbox.process.exec("pwd", cwd="/tmp").result == "/tmp\n"
    with pytest.raises(DaytonaError):
        sandbox.process.exec("sleep 60", timeout=1)


def test_a_program_runs_in_a_process_of_its_own(sandbox: Sandbox) -> None:
    from daytona import CodeRunParams

    answer = sandbox.process.code_run("import sys; print(sys.argv[1:])", CodeRunParams(argv=["a", "b c"]))
    assert (answer.exit_code, answer.result) == (0, "['a', 'b c']\n")
    assert sandbox.process.code_run("raise SystemExit(4)").exit_code == 4


def test_a_shell_keeps_its_folder_and_variables(sandbox: Sandbox) -> None:
    sandbox.process.create_session("work")
    sandbox.process.execute_session_command("work", SessionExecuteRequest(command="cd /tmp; X=1"))
    answer = sandbox.process.execute_session_command("work", SessionExecuteRequest(command="echo $PWD $X; echo e >&2"))
    assert (answer.exit_code, answer.stdout, answer.stderr) == (0, "/tmp 1\n", "e\n")
    assert sandbox.process.get_session_command("work", answer.cmd_id).exit_code == 0
    assert sandbox.process.get_session_command_logs("work", answer.cmd_id).stdout == "/tmp 1\n"
    assert [each.session_id for each in sandbox.process.list_sessions()] == ["work"]
    begun = sandbox.process.execute_session_command("work", SessionExecuteRequest(command="sleep 60", run_async=True))
    assert sandbox.process.get_session_command("work", begun.cmd_id).exit_code is None
    sandbox.process.delete_session("work")
    with pytest.raises(DaytonaNotFoundError):
        sandbox.process.get_session("work")


async def test_the_logs_of_a_command_are_followed_to_its_end(sandbox: Sandbox) -> None:
    sandbox.process.create_session("logs")
    command = "echo one; echo err >&2; while [ ! -e go ]; do sleep 0.02; done; echo é"
    begun = sandbox.process.execute_session_command("logs", SessionExecuteRequest(command=command, run_async=True))
    got: dict[str, str] = {"out": "", "err": ""}

    def take_out(text: str) -> None:
        got["out"] += text
        if "one" in text:
            sandbox.fs.upload_file(b"", "go")

    def take_err(text: str) -> None:
        got["err"] += text

    await sandbox.process.get_session_command_logs_async("logs", begun.cmd_id, take_out, take_err)
    assert got == {"out": "one\né\n", "err": "err\n"}


def until_shown(terminal: PtyHandle, wanted: bytes) -> bytes:
    seen = b""
    for data in terminal:
        seen += data
        if wanted in seen:
            break
    return seen


def test_a_terminal_is_made_joined_resized_and_ended(sandbox: Sandbox) -> None:
    size = PtySize(rows=20, cols=70)
    terminal = sandbox.process.create_pty_session("term", cwd="/tmp", envs={"V": "it's"}, pty_size=size)
    terminal.send_input("stty size; echo $V $PWD é s''een\n")
    shown = until_shown(terminal, b"seen").decode()
    assert "20 70" in shown
    assert "it's /tmp é seen" in shown
    assert (terminal.resize(PtySize(rows=30, cols=90)).rows, terminal.is_connected()) == (30, True)
    with pytest.raises(DaytonaError):
        sandbox.process.create_pty_session("term")
    terminal.disconnect()
    again = sandbox.process.connect_pty_session("term")
    again.send_input("stty size; exit 3\n")
    assert b"30 90" in until_shown(again, b"30 90")
    assert again.wait(timeout=20).exit_code == 3
    (listed,) = sandbox.process.list_pty_sessions()
    assert (listed.id, listed.active, listed.cwd, listed.envs) == ("term", False, "/tmp", {"V": "it's"})
    sandbox.process.kill_pty_session("term")
    with pytest.raises(DaytonaNotFoundError):
        sandbox.process.get_pty_session_info("term")


async def test_async_a_terminal_is_killed(async_sandbox: AsyncSandbox) -> None:
    seen = b""

    async def take(data: bytes) -> None:
        nonlocal seen
        seen += data

    terminal = await async_sandbox.process.create_pty_session("term", on_data=take)
    await terminal.send_input("echo on\n")
    await terminal.kill()
    await terminal.wait()
    assert await async_sandbox.process.list_pty_sessions() == []


# --- files ---


def test_files_are_uploaded_listed_moved_and_removed(sandbox: Sandbox) -> None:
    home = sandbox.get_user_home_dir()
    sandbox.fs.create_folder("d", "755")
    sandbox.fs.upload_file(b"one", "d/a.txt")
    sandbox.fs.upload_files([FileUpload(source=b"two", destination=f"{home}/d/b.txt")])
    assert sorted(each.name for each in sandbox.fs.list_files("d")) == ["a.txt", "b.txt"]
    assert sandbox.code_interpreter.run_code("print(open('d/b.txt').read())").stdout == "two\n"
    info = sandbox.fs.get_file_info("d/a.txt")
    assert (info.name, info.is_dir, info.size) == ("a.txt", False, 3)
    sandbox.fs.move_files("d/a.txt", "c.txt")
    assert sandbox.fs.download_file("c.txt") == b"one"
    sandbox.fs.delete_file("c.txt")
    sandbox.fs.delete_file("d", recursive=True)
    with pytest.raises(DaytonaNotFoundError):
        sandbox.fs.get_file_info("d")


def test_several_files_are_downloaded_with_the_reason_for_those_that_are_missing(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 5000
    sandbox.fs.upload_file(data, "large é.bin")
    found, missing = sandbox.fs.download_files(
        [FileDownloadRequest(source="large é.bin"), FileDownloadRequest(source="missing")]
    )
    assert (found.result, found.error) == (data, None)
    assert missing.result is None
    assert "missing" in missing.error
