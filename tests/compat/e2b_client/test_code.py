"""Code in a sandbox: values, output, errors, state, and what the values look like."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import threading
from typing import Any

import pytest
from e2b import InvalidArgumentException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

pytestmark = pytest.mark.req("compat.sandboxes")


def test_the_last_value_is_the_text_of_the_execution(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1; x").text == "1"
    assert sandbox.run_code("'plain'").text == "plain"


async def test_async_the_last_value_is_the_text_of_the_execution(async_sandbox: AsyncSandbox) -> None:
    assert (await async_sandbox.run_code("x = 1; x")).text == "1"


def test_state_stays_and_executions_are_counted(sandbox: Sandbox) -> None:
    assert sandbox.run_code("test = 1").execution_count == 1
    second = sandbox.run_code("test += 1; test")
    assert (second.text, second.execution_count) == ("2", 2)


def test_output_and_errors_come_as_they_are_written(sandbox: Sandbox) -> None:
    got: dict[str, list[Any]] = {"stdout": [], "stderr": [], "result": [], "error": []}
    execution = sandbox.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0",
        on_stdout=lambda each: got["stdout"].append(each.line),
        on_stderr=lambda each: got["stderr"].append(each.line),
        on_result=got["result"].append,
        on_error=got["error"].append,
    )
    assert (got["stdout"], got["stderr"], got["result"]) == (["out\n"], ["err\n"], [])
    assert (got["error"][0].name, got["error"][0].value) == ("ZeroDivisionError", "division by zero")
    assert execution.error is not None
    assert "1 / 0" in execution.error.traceback
    assert execution.logs.stdout == ["out\n"]
    assert sandbox.run_code("undefined").error.value == "name 'undefined' is not defined"


def test_results_come_as_they_are_shown(sandbox: Sandbox) -> None:
    got: list[Any] = []
    execution = sandbox.run_code("display('shown')\n'last'", on_result=got.append)
    assert [each.text for each in got] == [each.text for each in execution.results] == ["shown", "last"]
    assert [each.is_main_result for each in got] == [False, True]


def test_one_print_is_one_message_that_comes_before_the_end(sandbox: Sandbox) -> None:
    got: list[Any] = []
    code = "import os, sys, time\nprint(1, flush=True)\nwhile not os.path.exists('seen'): time.sleep(0.01)\n"

    def take(message: Any) -> None:
        got.append((message.line, message.error))
        sandbox.files.write("seen", "")

    sandbox.run_code(code + "print(2, file=sys.stderr)", on_stdout=take, on_stderr=take)
    assert got == [("1\n", False), ("2\n", True)]


async def test_async_callbacks_may_be_coroutines(async_sandbox: AsyncSandbox) -> None:
    got: dict[str, list[Any]] = {"on_stdout": [], "on_stderr": [], "on_result": [], "on_error": []}

    def taking(name: str) -> Any:
        async def take(message: Any) -> None:
            got[name].append(message)

        return take

    callbacks = {name: taking(name) for name in got}
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(1)\nmissing"
    execution = await async_sandbox.run_code(code, **callbacks)
    assert [each.line for each in got["on_stdout"]] == execution.logs.stdout == ["out\n"]
    assert [each.line for each in got["on_stderr"]] == execution.logs.stderr == ["err\n"]
    assert [each.text for each in got["on_result"]] == ["1"]
    assert [(each.name, each.value) for each in got["on_error"]] == [("NameError", "name 'missing' is not defined")]


async def test_async_state_stays_and_executions_are_counted(async_sandbox: AsyncSandbox) -> None:
    assert (await async_sandbox.run_code("test = 1")).execution_count == 1
    second = await async_sandbox.run_code("test += 1; test")
    assert (second.text, second.execution_count) == ("2", 2)


def test_output_of_subprocesses_and_shell_lines_is_captured(sandbox: Sandbox) -> None:
    assert "".join(sandbox.run_code("!echo hi").logs.stdout) == "hi\n"
    execution = sandbox.run_code("import subprocess; subprocess.run(['echo', 'child'])")
    assert "".join(execution.logs.stdout) == "child\n"


def test_code_shell_lines_and_commands_begin_in_the_same_folder(sandbox: Sandbox) -> None:
    here = sandbox.run_code("import os; os.getcwd()").text
    assert sandbox.run_code("from pathlib import Path; print(Path.cwd())").logs.stdout == [f"{here}\n"]
    assert "".join(sandbox.run_code("!pwd").logs.stdout) == f"{here}\n"
    # In ingle's sandbox that is the folder that E2B has, unless the machine has it.
    assert here == "/home/user" or os.path.exists("/home/user")


def test_top_level_await_and_indented_code_work(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0)\n7").text == "7"
    assert sandbox.run_code("    y = 2\n    y").text == "2"


def test_environment_variables_hold_for_one_execution_and_for_the_sandbox() -> None:
    sandbox = Sandbox.create(envs={"WIDE": "it's wide"})
    try:
        assert sandbox.run_code("import os; os.environ['WIDE']").text == "it's wide"
        code = "import os; os.environ.get('ONE', 'none')"
        failing = sandbox.run_code(f"{code}\n1/0", envs={"ONE": "it's"})
        assert failing.error is not None
        assert "line 2" in failing.error.traceback
        assert sandbox.run_code(code, envs={"ONE": "it's"}).text == "it's"
        assert sandbox.run_code(code).text == "none"
        assert sandbox.run_code(code, envs={"WIDE": "x"}).text == "none"
        context = sandbox.create_code_context()
        assert sandbox.run_code("import os; os.environ['WIDE']", context=context).text == "it's wide"
    finally:
        sandbox.kill()


async def test_variables_of_a_run_replace_those_of_the_sandbox_while_it_lasts() -> None:
    sandbox = await AsyncSandbox.create(envs={"WIDE": "wide"})
    code = "import os; os.environ['WIDE']"
    assert (await sandbox.run_code(code, envs={"WIDE": "narrow"})).text == "narrow"
    assert (await sandbox.run_code(code)).text == "wide"
    assert "".join((await sandbox.run_code("!echo $WIDE", envs={"WIDE": "narrow"})).logs.stdout) == "narrow\n"
    await sandbox.kill()


def test_a_run_that_timed_out_leaves_the_context_usable_at_once(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 41")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time\ntime.sleep(60)", timeout=0.5)
    assert sandbox.run_code("x + 1").text == "42"


async def test_async_a_run_that_timed_out_leaves_the_context_usable_at_once(async_sandbox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutException):
        await async_sandbox.run_code("import time\ntime.sleep(60)", timeout=0.5)
    assert (await async_sandbox.run_code("1 + 1")).text == "2"


async def test_a_client_that_disconnects_interrupts_its_run(async_sandbox: AsyncSandbox) -> None:
    running = asyncio.Event()
    code = (
        "print('begun', flush=True)\ntry:\n    import time; time.sleep(60)\nexcept KeyboardInterrupt:\n    seen = True"
    )

    async def note(message: Any) -> None:
        running.set()

    task = asyncio.create_task(async_sandbox.run_code(code, on_stdout=note))
    await running.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (await async_sandbox.run_code("seen")).text == "True"


def test_executions_of_one_context_wait_for_each_other(sandbox: Sandbox) -> None:
    sandbox.run_code("order = []")
    begun = threading.Event()
    code = "import time; print('begun', flush=True); time.sleep(0.3); order.append('first')"
    first = threading.Thread(target=lambda: sandbox.run_code(code, on_stdout=lambda each: begun.set()))
    first.start()
    assert begun.wait(30)
    assert sandbox.run_code("order.append('second'); order").text == "['first', 'second']"
    first.join(30)


def test_input_is_refused_and_exit_restarts(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("input('name? ')")
    assert execution.error is not None
    assert execution.error.name == "StdinNotImplementedError"
    assert sandbox.run_code("x = 1\nexit()").error is None
    assert sandbox.run_code("1 + 1").text == "2"
    died = sandbox.run_code("import os; os.kill(os.getpid(), 9)")
    assert died.error is not None
    assert died.error.name == "ContextRestarting"
    assert sandbox.run_code("1 + 1").text == "2"


def test_other_languages_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(Exception, match="ingle runs Python, and not 'javascript'"):
        sandbox.run_code("1", language="javascript")
    with pytest.raises(InvalidArgumentException):
        sandbox.run_code("1", language="python", context=sandbox.list_code_contexts()[0])


async def test_async_languages_and_environment_variables(async_sandbox: AsyncSandbox) -> None:
    context = await async_sandbox.create_code_context(language="python")
    with pytest.raises(InvalidArgumentException):
        await async_sandbox.run_code("1", language="python", context=context)
    code = "import os; os.environ.get('ONE', 'none')"
    assert (await async_sandbox.run_code(code, envs={"ONE": "1"})).text == "1"
    assert (await async_sandbox.run_code(code, language="python")).text == "none"


# --- forms of a value ---


def test_lists_and_dictionaries_are_json_too(sandbox: Sandbox) -> None:
    result = sandbox.run_code("{'k': [1, 2], 3: 'x'}").results[0]
    assert (result.json, result.is_main_result) == ({"k": [1, 2], "3": "x"}, True)
    assert sandbox.run_code("[1, 2]").results[0].json == [1, 2]
    assert sandbox.run_code("_").text == "[1, 2]"


def test_a_table_has_text_html_and_data(sandbox: Sandbox) -> None:
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2024-01-01', '2024-01-02'])})"
    result = sandbox.run_code(code).results[0]
    assert result.data == {"a": [1, 2], "t": ["2024-01-01T00:00:00", "2024-01-02T00:00:00"]}
    assert result.html is not None
    assert "2024-01-01" in result.text


def test_displays_come_with_their_mime_types(sandbox: Sandbox) -> None:
    code = (
        "from IPython.display import display, HTML\ndisplay({'application/x-foo': 'bar'}, raw=True)\nHTML('<b>x</b>')"
    )
    first, second = sandbox.run_code(code).results
    assert (first.extra, first.is_main_result) == ({"application/x-foo": "bar"}, False)
    assert (second.html, second.is_main_result) == ("<b>x</b>", True)


def test_objects_show_themselves(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "from IPython.display import display\ndisplay({'text/latex': r'\\text{an object}'}, raw=True)"
    )
    assert [list(each.formats()) for each in execution.results] == [["latex"]]
    code = "class C:\n    def _repr_latex_(self): return '$x$'\n    def __repr__(self): return 'a C'\nC()"
    result = sandbox.run_code(code).results[0]
    assert (result.text, result.latex) == ("a C", "$x$")


async def test_async_values_and_shell_lines(async_sandbox: AsyncSandbox) -> None:
    async def results(code: str) -> list[Any]:
        return (await async_sandbox.run_code(code)).results

    (table,) = await results("import pandas as pd; pd.DataFrame({'a': [1, 2]})")
    assert (table.data, table.html is None) == ({"a": [1, 2]}, False)
    (shown,) = await results("from IPython.display import display; display({'text/latex': '$x$'}, raw=True)")
    assert (shown.latex, shown.is_main_result) == ("$x$", False)
    (own,) = await results("class C:\n    def _repr_latex_(self): return '$y$'\nC()")
    assert (own.latex, own.is_main_result) == ("$y$", True)
    where = (await async_sandbox.run_code("import os; os.getcwd()")).text
    assert "".join((await async_sandbox.run_code("!pwd")).logs.stdout) == f"{where}\n"


def test_images_are_shown_when_they_are_made_shown_or_saved(sandbox: Sandbox) -> None:
    make = "from PIL import Image\nimage = Image.new('RGB', (10, 10), 'red')\n"
    for last in ("image", "image.show()", "image.save('x.png')"):
        results = sandbox.run_code(make + last).results
        assert base64.b64decode(results[0].png).startswith(b"\x89PNG"), last
