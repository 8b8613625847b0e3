"""Programs that run notebooks: nbclient and papermill, on the kernel of ingle."""

from __future__ import annotations

from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import papermill
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from mixed_cells import CELLS, shown
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from serving import Server, ingle

pytestmark = pytest.mark.req("compat.jupyter")


def notebook(*codes: str, kernel: str = "ingle") -> nbformat.NotebookNode:
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    return new_notebook(cells=[new_code_cell(code) for code in codes], metadata={"kernelspec": spec})


def check(cells: list[nbformat.NotebookNode]) -> None:
    for (code, text), cell in zip(CELLS, cells, strict=True):
        assert text is None or shown(cell.outputs) == text, code


def test_a_kernel_is_installed_for_the_interpreter(installed: str) -> None:
    assert installed.startswith("ingle: Python 3 (ingle), in ")


def test_nbclient_runs_a_notebook_of_thirty_cells() -> None:
    made = notebook(*(code for code, _ in CELLS))
    NotebookClient(made, timeout=60).execute()
    check(made.cells)


@pytest.mark.req("nb.export")
def test_nbclient_opens_an_exported_notebook_and_runs_it_again(server: Server, tmp_path: Path) -> None:
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(notebook(*(code for code, _ in CELLS)), source)
    ingle(server.home, "run", "-s", "book", str(source))
    ingle(server.home, "export", "book", "-o", str(target))
    exported = nbformat.read(target, 4)
    check(exported.cells)
    NotebookClient(exported, timeout=60, kernel_name="ingle").execute()
    check(exported.cells)


def test_papermill_runs_the_same_notebook_with_parameters(tmp_path: Path) -> None:
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    made = notebook("given = 1", *(code for code, _ in CELLS), "given")
    made.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(made, source)
    papermill.execute_notebook(source, target, parameters={"given": 42}, progress_bar=False)
    first, *cells, last = nbformat.read(target, 4).cells[1:]
    assert "42" in first.source
    check(cells)
    assert shown(last.outputs) == "42"


def test_a_kernel_joins_a_live_session_and_leaves_it(server: Server) -> None:
    ingle(server.home, "new", "agent")
    ingle(server.home, "run", "-s", "agent", "answer = 42")
    assert "session agent (ingle)" in ingle(server.home, "kernel", "install", "--session", "agent")
    made = notebook("answer", "seen = True", kernel="ingle-session-agent")
    NotebookClient(made, timeout=60).execute()
    assert shown(made.cells[0].outputs) == "42"
    assert "True" in ingle(server.home, "run", "-s", "agent", "seen")


def reply_to(client: BlockingKernelClient, request: str) -> dict[str, Any]:
    """Return the reply to a request. Late answers to the questions of a slow start come before it."""
    while True:
        message = client.get_shell_msg(timeout=30)
        if message["parent_header"]["msg_id"] == request:
            return message["content"]


def test_interrupt_input_and_the_end_of_the_session(server: Server) -> None:
    manager, client = start_new_kernel(kernel_name="ingle")
    try:
        # Jupyter aborts requests that come right after an error, unless they say otherwise.
        code = "import time\nprint('on', flush=True)\nfor _ in range(600): time.sleep(0.1)"
        asked = client.execute(code, stop_on_error=False)
        while client.get_iopub_msg(timeout=30)["msg_type"] != "stream":
            continue
        manager.interrupt_kernel()
        assert reply_to(client, asked)["ename"] == "KeyboardInterrupt"
        asked = client.execute("name = input('Who? ')\nname", allow_stdin=True)
        assert client.get_stdin_msg(timeout=30)["content"] == {"prompt": "Who? ", "password": False}
        client.input("Ada")
        assert reply_to(client, asked)["status"] == "ok"
        asked = client.execute("input()", allow_stdin=True, stop_on_error=False)
        client.get_stdin_msg(timeout=30)
        manager.interrupt_kernel()
        assert reply_to(client, asked)["ename"] == "KeyboardInterrupt"
        reply = client.execute("input()", allow_stdin=False, stop_on_error=False, reply=True, timeout=30)
        assert reply["content"]["ename"] == "StdinNotImplementedError"
        wanted = {"good": "40 + 2", "bad": "missing"}
        reply = client.execute("1", user_expressions=wanted, reply=True, timeout=30)
        values = reply["content"]["user_expressions"]
        assert values["good"] == {"status": "ok", "data": {"text/plain": "42"}, "metadata": {}}
        assert (values["bad"]["status"], values["bad"]["ename"]) == ("error", "NameError")
        assert "kernel-" in ingle(server.home, "ps")
        with pytest.raises(Empty):
            client.get_stdin_msg(timeout=0)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert "kernel-" not in ingle(server.home, "ps")
