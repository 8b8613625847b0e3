"""Notebooks in and out: a session as a notebook, a script, Markdown or a page, and notebooks run in a session."""

import base64
import json
import os
import secrets
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ingle import Client, errors
from ingle.events import DisplayShown, ErrorRaised, StateChanged, Stdout
from ingle.render import transcript
from ingle.render.export import export
from ingle.render.transcript import Transcript
from support.server import PATIENCE, Server, problem
from support.tokens import client_with, ingle_token

pytestmark = pytest.mark.req("nb.export")

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

CODE = [
    "x = 41",
    "x + 1",
    "print('one')\nprint('two')",
    "import sys\nprint('error', file=sys.stderr)",
    "print('a')\nprint('b', file=sys.stderr)\nprint('c')",
    "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>bold</b>'))",
    f"import base64\nfrom IPython.display import Image\nImage(base64.b64decode({PNG!r}))",
    "display({'application/json': {'a': [1, 2]}, 'text/plain': 'json'}, raw=True)",
    "shown = display('first', display_id=True)\nshown.update('second')",
    "def f():\n    return {'k': [1, None, True]}\n\nf()",
    "1 / 0",
    "print('\\x1b[31mred\\x1b[0m ünïcödé ␀ 🔥')",
    "%time 1 + 1",
    "class C:\n    def _repr_html_(self):\n        return '<i>own</i>'\n\nC()",
    "Markdown('# *shown*')",
    "None",
]


def read_notebook(text: str | bytes) -> dict[str, Any]:
    """Check a notebook as Jupyter does, and return it."""
    # Not above: its import takes five seconds, and each process that collects tests would wait.
    import nbformat

    document: dict[str, Any] = nbformat.reads(text, as_version=4)
    nbformat.validate(document)
    return document


def make_cell(kind: str, source: str, *tags: str) -> dict[str, Any]:
    own = {"execution_count": None, "outputs": []} if kind == "code" else {}
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": kind, "id": secrets.token_hex(4), "source": source, "metadata": metadata, **own}


def make_notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}


def notebook_of_20_cells() -> str:
    cells = [make_cell("markdown", "# Title\n\nwith *Markdown*")]
    for number, code in enumerate(CODE):
        cells.append(make_cell("code", code, *(["raises-exception"] if "1 / 0" in code else [])))
        if number == 4:
            cells.append(make_cell("markdown", "## In the middle"))
        if number == 9:
            cells.append(make_cell("raw", "raw <b>text</b>"))
    cells.append(make_cell("markdown", "the end"))
    assert len(cells) == 20
    text = json.dumps(make_notebook(cells))
    read_notebook(text)
    return text


BAD = [{"source": 1}, {"source": ["1", None]}, {"metadata": 3}, {"metadata": {"tags": 1}}]
"""Fields that no cell of a notebook has."""


def plain(text: str | bytes) -> list[Any]:
    """Cells of a notebook, without ids, tags and times."""
    found = []
    for cell in read_notebook(text)["cells"]:
        outputs = [
            {**output, "text": "timed"} if "CPU times" in output.get("text", "") else output
            for output in cell.get("outputs", [])
        ]
        found.append((cell["cell_type"], cell["source"], cell.get("execution_count"), outputs))
    return found


def test_a_notebook_of_20_cells_comes_back_from_its_session_as_it_was_executed(server: Server) -> None:
    with Client(server.url, server.token) as client:
        session = client.session("main", keep=True)
        executed = session.run_notebook(notebook_of_20_cells())
        exported = session.export("ipynb")
    assert plain(exported) == plain(executed)
    document = read_notebook(exported)
    kinds = [cell["cell_type"] for cell in document["cells"]]
    assert (len(kinds), kinds.count("code"), kinds.count("markdown"), kinds.count("raw")) == (20, 16, 3, 1)
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, 17))
    assert code[1]["outputs"][0]["data"] == {"text/plain": "42"}
    assert [output["name"] for output in code[4]["outputs"]] == ["stdout", "stderr", "stdout"]
    assert code[6]["outputs"][0]["data"]["image/png"].replace("\n", "") == PNG
    assert code[7]["outputs"][0]["data"]["application/json"] == {"a": [1, 2]}
    assert [output["data"]["text/plain"] for output in code[8]["outputs"]] == ["'second'"]
    assert (code[10]["outputs"][0]["ename"], code[10]["outputs"][0]["evalue"]) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert code[0]["metadata"]["ingle"]["author"] == "ingle-python (owner over http)"
    # Other tools take the executed notebook. They are imported here, as above.
    from nbclient import NotebookClient

    assert NotebookClient(document).nb is document


def test_a_notebook_is_run_by_one_request(server: Server) -> None:
    server.make_session()
    body = {"notebook": json.loads(notebook_of_20_cells())}
    answer = server.client.post("/v1/sessions/main/notebook", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ipynb+json")
    exported = server.client.get("/v1/sessions/main/export").text
    assert plain(answer.text) == plain(exported)
    stops = make_notebook([make_cell("code", code) for code in ("1 / 0", "2")])
    for options, ran in (({}, [17, None]), ({"keep_going": True}, [18, 19])):
        answer = server.client.post("/v1/sessions/main/notebook", json={"notebook": stops, **options})
        assert [cell["execution_count"] for cell in answer.json()["cells"]] == ran
    for cell in ([], {}, {"cell_type": []}, *({"cell_type": "code", "source": "1", **bad} for bad in BAD)):
        body = {"notebook": {"nbformat": 4, "cells": [cell]}}
        problem(server.client.post("/v1/sessions/main/notebook", json=body), 422, "invalid_request")
    refused = server.client.post("/v1/sessions/main/notebook", json={"notebook": {"cells": []}})
    assert "it has no `nbformat`" in problem(refused, 422, "invalid_request")["detail"]


def test_the_commands_run_a_notebook_and_export_the_session(server: Server, tmp_path: Path) -> None:
    def ingle(*args: str) -> str:
        env = {**os.environ, "INGLE_HOME": str(server.home)}
        command = [sys.executable, "-m", "ingle", *args]
        ended = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return ended.stdout

    (tmp_path / "n.ipynb").write_text(notebook_of_20_cells())
    ingle("run", "n.ipynb", "-s", "work", "-o", "done.ipynb")
    said = ingle("export", "work", "-o", "out.ipynb")
    assert said.startswith("out.ipynb: ")
    assert plain((tmp_path / "out.ipynb").read_text()) == plain((tmp_path / "done.ipynb").read_text())
    script = ingle("export", "work", "--format", "py")
    assert script.startswith(
        "# session work\n\n# %% [markdown]\n# # Title\n#\n# with *Markdown*\n\n# %% cell 1\nx = 41\n"
    )
    assert "# %% cell 13\n# %time 1 + 1\n" in script
    compile(script, "script", "exec")
    text = ingle("export", "work", "--format", "md")
    assert "```python\nx + 1\n```\n\n```text\n42\n```\n" in text
    assert f"![](data:image/png;base64,{PNG})" in text
    assert "```text\nred ünïcödé ␀ 🔥\n```" in text
    ingle("export", "work", "-o", "out.html")
    assert "<h1>Session work</h1>" in (tmp_path / "out.html").read_text()
    server.client.delete("/v1/sessions/work")


def test_cells_that_a_rollback_undid_are_marked_and_do_not_run_again(server: Server) -> None:
    with Client(server.url, server.token) as client:
        session = client.session("main", keep=True)
        session.run("x = 1")
        session.checkpoint("base")
        session.run("x = 2\nprint('removed')")
        session.checkpoint("second")
        session.rollback("base")
        # Of the same state as `base`, although cell 2 has run.
        session.checkpoint("again")
        session.run("%time x += 10")
        session.rollback("again")
        session.run("x += 100")
        texts = {form: session.export(form).decode() for form in ("ipynb", "py", "md", "html")}
        session.rollback("second")
        returned = plain(session.export("ipynb"))
    assert [(kind, source) for kind, source, *_ in plain(texts["ipynb"])] == [
        ("code", "x = 1"),
        ("raw", "# cell 2: undone by a rollback\nx = 2\nprint('removed')"),
        ("raw", "# cell 3: undone by a rollback\n%time x += 10"),
        ("code", "x += 100"),
    ]
    assert texts["py"] == (
        "# session main\n\n# %% cell 1\nx = 1\n\n"
        "# %% [raw]\n# cell 2: undone by a rollback\n# x = 2\n# print('removed')\n\n"
        "# %% [raw]\n# cell 3: undone by a rollback\n# %time x += 10\n\n"
        "# %% cell 4\nx += 100\n"
    )
    assert "*Cell 2: undone by a rollback*\n\n```python\nx = 2\n" in texts["md"]
    marked = [line for line in texts["html"].splitlines() if line.endswith(" · undone by a rollback</p>")]
    assert [line.partition(" · ")[0] for line in marked] == ['<p class="about">cell 2', '<p class="about">cell 3']
    assert [kind for kind, *_ in returned] == ["code", "code", "raw", "raw"]


def test_over_http_a_browser_saves_an_export_and_runs_nothing_of_it(home: Path, server: Server) -> None:
    server.make_session()
    server.execute("1 + 1")
    answer = server.client.get("/v1/sessions/main/export", params={"format": "html"})
    assert answer.headers["content-disposition"] == 'attachment; filename="main.html"'
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem(server.client.get("/v1/sessions/main/export", params={"format": "exe"}), 422, "invalid_request")
    with client_with(server, ingle_token(home, "new", "reader", "--scope", "read")) as reader:
        problem(reader.post("/v1/sessions/main/notes", json={"text": "x"}), 403, "forbidden")
    empty = server.make_session("empty")
    assert empty["next_event"] >= 1
    document = read_notebook(server.client.get("/v1/sessions/empty/export").text)
    assert document["cells"] == []


def test_a_notebook_that_cannot_be_run_is_refused_and_an_error_ends_the_run(server: Server) -> None:
    with Client(server.url, server.token) as client:
        session = client.session("main", keep=True)
        with pytest.raises(errors.InvalidRequest, match="it has no `nbformat`"):
            session.run_notebook("{}")
        text = json.dumps(make_notebook([make_cell("code", code) for code in ("1 / 0", "2")]))
        stopped = json.loads(session.run_notebook(text))
        assert [cell["execution_count"] for cell in stopped["cells"]] == [1, None]
        went_on = json.loads(session.run_notebook(text, keep_going=True))
        assert [cell["execution_count"] for cell in went_on["cells"]] == [2, 3]


# --- pages that are attacked ---------------------------------------------------------------------------------

SCRIPT = "<script>parent.document.title='owned'</script>"

ATTACKS = [
    SCRIPT,
    "</pre></body>" + SCRIPT,
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    '"><script>alert(1)</script>',
    "'--><script>alert(1)</script>",
    "<iframe src=javascript:alert(1)>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<base href=https://evil.example/>",
    "<form action=https://evil.example/><input name=a autofocus onfocus=alert(1)></form>",
    "<a href='javascript:alert(1)' target=_top>click</a>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07",
    "<style>@import url(https://evil.example/x.css)</style>",
    "]]><script>alert(1)</script>",
    "<template><script>alert(1)</script></template>",
    "\u2028<script>alert(1)</script>",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
]


class Elements(HTMLParser):
    """All elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_cell_runs_in_its_page(attack: str) -> None:
    gathered = Transcript()
    events = [
        StateChanged(1, 0.0, "s", 1, "running", attack),
        Stdout(2, 0.0, "s", 1, attack),
        DisplayShown(3, 0.0, "s", 1, {"text/html": attack, "text/plain": attack}),
        DisplayShown(4, 0.0, "s", 1, {"image/svg+xml": attack}),
        DisplayShown(5, 0.0, "s", 1, {"image/png": attack, "text/plain": attack}),
        DisplayShown(6, 0.0, "s", 1, {attack: attack}),
        ErrorRaised(7, 0.0, "s", 1, attack, attack, attack),
    ]
    for event in events:
        gathered.take(event)
    page = export(gathered.parts(), attack, "html").decode()
    elements = Elements(page).found
    harmless = {"html", "head", "meta", "title", "style", "body", "h1", "p", "pre", "img", "iframe"}
    assert {tag for tag, _ in elements} == harmless
    assert [tag for tag, _ in elements[:5]] == ["html", "head", "meta", "meta", "meta"]
    for tag, attributes in elements:
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "iframe":
            # Without rights: no scripts, no origin, no forms, no way to the page.
            assert attributes["sandbox"] == ""
            assert attributes["srcdoc"] == attack.replace("\r", "\n")
            assert "src" not in attributes
        if tag == "img":
            assert attributes["src"] == f"data:image/svg+xml;base64,{base64.b64encode(attack.encode()).decode()}"
    policy = next(each for _, each in elements if each.get("http-equiv") == "Content-Security-Policy")["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "script-src" not in policy


def test_a_transcript_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_CHARS", 100)
    gathered = Transcript()
    gathered.take(StateChanged(1, 0.0, "s", 1, "running", "code"))
    for seq in range(2, 10):
        gathered.take(Stdout(seq, 0.0, "s", 1, "x" * 60))
    (cell,) = gathered.parts()
    assert isinstance(cell, transcript.CellPart)
    assert [output["text"] for output in cell.outputs] == ["x" * 120, transcript.LEFT_OUT]


def test_a_fence_in_code_cannot_end_its_block() -> None:
    gathered = Transcript()
    gathered.take(StateChanged(1, 0.0, "s", 1, "running", "x = '''\n````\n# escaped\n'''"))
    text = export(gathered.parts(), "s", "md").decode()
    assert text.count("`````") == 2
