"""`ingle run` with programs and notebooks: files, modules, arguments, exit codes, outputs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.server import PATIENCE, Server

COMMAND = [sys.executable, "-m", "ingle"]

PROGRAM = """\
import sys
import beside

def fail():
    raise ValueError("from the file")

print(sys.argv[1:], __name__, __file__, beside.VALUE)
if sys.argv[1] == "fail":
    fail()
if sys.argv[1].isdecimal():
    sys.exit(int(sys.argv[1]))
sys.exit(sys.argv[1])
"""

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\x06\0\0\0\x1f\x15\xc4\x89\0\0\0\nIDATx\x9cc\0\1\0\0\5\0\1\r\n-\xb4"
    b"\0\0\0\0IEND\xaeB`\x82"
).decode()

SHOW = f"""\
class Picture:
    def _repr_png_(self):
        import base64
        return base64.b64decode({PNG!r})

display(Picture())
"""


@pytest.fixture(autouse=True)
def in_home(home: Path, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_HOME", str(home))
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "beside.py").write_text("VALUE = 7\n")
    (folder / "tool.py").write_text(PROGRAM)
    return folder / "tool.py"


def ingle(*args: str, input: str = "") -> tuple[int, str, str]:
    ended = subprocess.run(
        [*COMMAND, "run", *args], input=input, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def traceback(program: Path) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{program}", line 9, in <module>\n    fail()\n'
        f'  File "{program}", line 5, in fail\n    raise ValueError("from the file")\n'
        "ValueError: from the file\n"
    )


def lines(*arguments: str, program: Path) -> str:
    return f"{list(arguments)} __main__ {program} 7\n"


def test_a_file_runs_as_with_python(program: Path) -> None:
    relative = os.path.relpath(program)
    assert ingle(relative, "0", "--json", "-s", "x") == (0, lines("0", "--json", "-s", "x", program=program), "")
    assert ingle(relative, "3") == (3, lines("3", program=program), "")
    assert ingle(relative, "out of paper") == (1, lines("out of paper", program=program), "out of paper\n")
    assert ingle(relative, "fail") == (1, lines("fail", program=program), traceback(program))


def test_a_file_of_expressions_prints_nothing_by_itself(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("1 + 1\n'text'\n")
    assert ingle("quiet.py") == (0, "", "")


def test_a_module_runs_as_with_python_m(program: Path, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text("import sys\nprint(sys.argv, __name__, __package__)\n")
    main = tmp_path / "pack" / "__main__.py"
    assert ingle("-m", "pack", "--json", "a b") == (0, f"{[str(main), '--json', 'a b']} __main__ pack\n", "")
    code, out, told = ingle("-m", "nosuch.module")
    assert (code, out, "No module named 'nosuch'" in told) == (1, "", True)


def test_code_has_arguments_from_c_a_dash_and_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("")
    show = "import sys; sys.argv"
    assert ingle("-c", show, "a", "--json") == (0, "['-c', 'a', '--json']\n", "")
    assert ingle("-", "a", "-x", input=show) == (0, "['-', 'a', '-x']\n", "")
    assert ingle(input="6 * 7") == (0, "42\n", "")
    code, out, _ = ingle(show, "--json", "--", "a")
    assert (code, json.loads(out)["result"]) == (0, {"text/plain": "['-c', 'a']"})


def test_wrong_combinations_are_told(tmp_path: Path) -> None:
    for args, words in (
        (["-m", "this", "-c", "1"], None),  # those of the module
        (["-c", "1", "-m", "this"], None),
        (["-o", "x.ipynb", "1"], "-o and --keep-going are for notebooks"),
        (["."], ". is a folder; name a file in it"),
        (["absent.ipynb"], "there is no file absent.ipynb"),
    ):
        code, _, told = ingle(*args)
        assert (code, words is None or words in told) == (2 if words else 0, True)
    (tmp_path / "models").mkdir()
    assert ingle("models/")[2].startswith("ingle: models/ is a folder; name a file in it")
    # A word beside a folder of this name is a variable.
    assert "name 'models' is not defined" in ingle("models")[2]
    (tmp_path / "old.ipynb").write_text('{"nbformat": 3, "worksheets": []}')
    assert ingle("old.ipynb") == (
        2,
        "",
        "ingle: old.ipynb cannot be run as a notebook: its nbformat is 3; convert it to version 4 with Jupyter\n",
    )


def test_in_a_live_session_a_program_ends_and_what_it_made_stays(server: Server, program: Path) -> None:
    assert ingle("-s", "live", "import sys; before = list(sys.argv), list(sys.path), sorted(globals())")[0] == 0
    assert ingle("-s", "live", str(program), "3") == (3, lines("3", program=program), "")
    assert ingle("-s", "live", str(program), "fail") == (1, lines("fail", program=program), traceback(program))
    check = "now = list(sys.argv), list(sys.path); now == before[:2], '__file__' in globals(), beside.VALUE"
    assert ingle("-s", "live", check) == (0, "(True, False, 7)\n", "")
    code, _, told = ingle("-s", "live", "fail()")
    assert (code, f'File "{program}", line 5, in fail\n    raise ValueError' in told) == (1, True)


# Displays


def test_displays_are_printed_and_images_saved_on_request(tmp_path: Path) -> None:
    note = "[image/png 1 by 1, 69 bytes; save images with --figures DIR]\n"
    assert ingle(SHOW + "display('text')") == (0, note + "'text'\n", "")
    assert ingle("--figures", "plots", SHOW + "Picture()") == (
        0,
        "[image/png 1 by 1, 69 bytes: plots/figure-1.png]\n[image/png 1 by 1, 69 bytes: plots/figure-2.png]\n",
        "",
    )
    assert {file.name: file.read_bytes() for file in (tmp_path / "plots").iterdir()} == dict.fromkeys(
        ("figure-1.png", "figure-2.png"), base64.b64decode(PNG)
    )


# Notebooks


def notebook(*sources: str, tags: dict[int, list[str]] | None = None) -> dict[str, Any]:
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# Title"}]
    for number, source in enumerate(sources):
        metadata = {"tags": (tags or {})[number]} if number in (tags or {}) else {}
        old = [{"output_type": "stream", "name": "stdout", "text": "old\n"}]
        cells.append(
            {
                "cell_type": "code",
                "execution_count": 99,
                "id": f"cell-{number}",
                "metadata": metadata,
                "outputs": old,
                "source": source.splitlines(keepends=True),
            }
        )
    return {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


def ran(document: dict[str, Any]) -> list[tuple[int | None, list[dict[str, Any]]]]:
    return [(cell["execution_count"], cell["outputs"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def stream(name: str, text: str) -> dict[str, str]:
    return {"name": name, "output_type": "stream", "text": text}


def test_a_notebook_runs_cell_by_cell_and_is_written_with_its_outputs(tmp_path: Path) -> None:
    source = notebook(
        "x = 6\nprint('one')\nprint('two')",
        "import sys\nprint('bad', file=sys.stderr)\nx * 7",
        "",
        SHOW + "h = display({'application/json': '{\"a\": 1}', 'text/plain': 'first'}, raw=True, display_id='d')",
        "h.update({'text/plain': 'second'}, raw=True)",
    )
    (tmp_path / "in.ipynb").write_text(json.dumps(source))
    code, out, told = ingle("in.ipynb", "-o", "out/out.ipynb")
    assert (code, told) == (0, "bad\n")
    assert out.splitlines()[:3] == ["one", "two", "42"]
    made = json.loads((tmp_path / "out" / "out.ipynb").read_text())
    value = {"data": {"text/plain": "42"}, "execution_count": 2, "metadata": {}, "output_type": "execute_result"}
    image = {
        "data": {"image/png": PNG, "text/plain": made["cells"][4]["outputs"][0]["data"]["text/plain"]},
        "metadata": {"image/png": {"height": 1, "width": 1}},
        "output_type": "display_data",
    }
    updated = {"data": {"text/plain": "second"}, "metadata": {}, "output_type": "display_data"}
    assert ran(made) == [
        (1, [stream("stdout", "one\ntwo\n")]),
        (2, [stream("stderr", "bad\n"), value]),
        (None, []),
        (3, [image, updated]),
        (4, []),
    ]
    for cell in [*source["cells"], *made["cells"]]:
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    assert made == source


def test_a_notebook_stops_at_an_error_unless_told_otherwise(tmp_path: Path) -> None:
    source = notebook("1 / 0", "x = 1\n1 / 0", "print('later')", tags={0: ["raises-exception"]})
    (tmp_path / "in.ipynb").write_text(json.dumps(source))
    code, out, _ = ingle("-o", "out.ipynb", "in.ipynb")
    assert (code, out) == (1, "")
    made = ran(json.loads((tmp_path / "out.ipynb").read_text()))
    assert [(count, [each["output_type"] for each in outputs]) for count, outputs in made] == [
        (1, ["error"]),
        (2, ["error"]),
        (None, []),
    ]
    [error] = made[1][1]
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"][1:3] == ['  File "<cell 2>", line 2, in <module>', "    1 / 0"]
    assert ingle("--keep-going", "in.ipynb")[:2] == (1, "later\n")


def test_a_notebook_runs_in_a_live_session_too(start: Callable[..., Server], tmp_path: Path) -> None:
    start()
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook("x = 5", "print(x); x + 1")))
    code, out, _ = ingle("-s", "live", "in.ipynb", "-o", "out.ipynb", "--json")
    cells = json.loads(out)["cells"]
    assert (code, [(cell["status"], cell["stdout"]) for cell in cells]) == (0, [("ok", ""), ("ok", "5\n")])
    made = ran(json.loads((tmp_path / "out.ipynb").read_text()))
    first = cells[0]["cell"]
    value = {"data": {"text/plain": "6"}, "execution_count": first + 1, "metadata": {}}
    assert made == [(first, []), (first + 1, [stream("stdout", "5\n"), {**value, "output_type": "execute_result"}])]
