"""Mime bundles, `display()`, and their place among the printed text."""

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest

from ingle import events
from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

RICH = """
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>rich</b>'
    def _repr_markdown_(self): return '**rich**'
    def _repr_svg_(self): return '<svg/>'
    def _repr_latex_(self): return '$r$'
    def _repr_json_(self): return {'rich': [1, None]}
    def _repr_javascript_(self): return 'rich()'
    def _repr_pdf_(self): return b'%PDF'
    def _repr_jpeg_(self): return b'\\xff\\xd8'
"""
RICH_DATA = {
    "text/plain": "rich",
    "text/html": "<b>rich</b>",
    "text/markdown": "**rich**",
    "image/svg+xml": "<svg/>",
    "text/latex": "$r$",
    "application/json": '{"rich": [1, null]}',
    "application/javascript": "rich()",
    "application/pdf": base64.b64encode(b"%PDF").decode(),
    "image/jpeg": base64.b64encode(b"\xff\xd8").decode(),
}


def png(width: int, height: int) -> bytes:
    """A black image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\0" * width for _ in range(height)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


async def shown(service: Service, session_id: str = "s") -> list[events.AnyEvent]:
    """All events so far."""
    found = []
    last = (await service.wait(session_id, wait=0)).next_event - 1
    async for event in service.events(session_id):
        found.append(event)
        if event.seq >= last:
            return found
    raise AssertionError


# --- bundles ---


@pytest.mark.req("rich.mime")
async def test_a_value_is_shown_in_every_way_its_class_knows(run) -> None:
    result = await run(RICH + "Rich()")
    assert (result.result, result.notices) == (RICH_DATA, [])
    displayed = await run("display(Rich())")
    assert (displayed.result, displayed.displays) == (None, [RICH_DATA])


@pytest.mark.req("rich.mime")
async def test_a_mime_bundle_of_its_own_goes_before_single_methods(run) -> None:
    code = """
class Own:
    def __repr__(self): return 'own'
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/html': '<i>', 'application/vnd.x+json': {'n': 1}, 'image/png': b'png'}, {'text/html': {'k': 2}}
    def _repr_html_(self): return 'never'
Own()
"""
    result = await run(code)
    assert result.result == {
        "text/plain": "own",
        "text/html": "<i>",
        "application/vnd.x+json": '{"n": 1}',
        "image/png": base64.b64encode(b"png").decode(),
    }
    assert result.result_metadata == {"text/html": {"k": 2}}


@pytest.mark.req("rich.mime")
@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("raise ValueError('no')", "_repr_html_ of Bad raised ValueError: no"),
        ("return 5", "text/html was left out: a int cannot be shown as that"),
        ("return 'x' * 5_000_000", "text/html was left out: 5000000 characters are more than 4000000"),
        ("return self._repr_html_()", "_repr_html_ of Bad raised RecursionError: "),
        ("raise type('E', (Exception,), {'__str__': lambda self: 1/0})", "_repr_html_ of Bad raised E"),
    ],
    ids=["raises", "gives rubbish", "too large", "recursion", "an error that cannot be said"],
)
async def test_a_method_that_fails_costs_its_own_mime_type_only(run, body: str, left: str) -> None:
    code = f"""
class Bad:
    def __repr__(self): return 'bad'
    def _repr_html_(self): {body}
    def _repr_latex_(self): return '$x$'
Bad()
"""
    result = await run(code)
    assert (result.status, result.result) == ("ok", {"text/plain": "bad", "text/latex": "$x$"})
    assert len(result.notices) == 1
    assert result.notices[0].startswith(left)


@pytest.mark.req("rich.mime")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (RICH + "Rich", "<class '__main__.Rich'>"),
        ("from unittest.mock import MagicMock\nMagicMock()", None),
        ("class Any:\n def __repr__(self): return 'any'\n"
         " def __getattr__(self, name): return lambda *a, **k: 'x'\nAny()", "any"),
        ("class M(type):\n def __getattr__(cls, name): return lambda *a: 'x'\n"
         "class C(metaclass=M):\n def __repr__(self): return 'c'\nC()", "c"),
        ("class M(type):\n def __eq__(cls, other): raise RuntimeError('eq')\n"
         "class C(metaclass=M):\n def __repr__(self): return 'c'\nC()", "c"),
        ("class L(int):\n def __repr__(self): return 'lying'\n __class__ = dict\nL(3)", "lying"),
    ],
    ids=["a class", "a mock", "answers to every name", "its class does", "unhashable class", "lies about its class"],
)  # fmt: skip
async def test_what_only_seems_to_have_methods_is_shown_as_text(run, code: str, text: str | None) -> None:
    result = await run(code)
    assert result.status == "ok"
    assert result.result is not None
    assert list(result.result) == ["text/plain"]
    assert text is None or result.result["text/plain"] == text
    assert result.notices == []


@pytest.mark.req("rich.mime")
async def test_a_repr_that_raises_is_the_cells_error_only_where_nothing_else_can_be_shown(run) -> None:
    bad = "class A:\n def __repr__(self): 1/0\n{}\nA()"
    result = await run(bad.format(""))
    assert (result.status, result.result) == ("error", None)
    rich = await run(bad.format(" def _repr_html_(self): return '<a>'"))
    assert (rich.status, rich.result) == ("ok", {"text/plain": "<A object>", "text/html": "<a>"})
    assert rich.notices == ["its repr raised ZeroDivisionError: division by zero"]


@pytest.mark.req("rich.mime")
async def test_text_of_a_derived_class_is_taken_as_text(run) -> None:
    code = "class S(str): __slots__ = ()\nclass R:\n def _repr_html_(self): return S('<p>')\nR()"
    result = await run(code)
    assert result.result is not None
    assert result.result["text/html"] == "<p>"


@pytest.mark.req("rich.mime")
async def test_metadata_that_is_no_json_never_reaches_the_wire(run) -> None:
    code = """
deep = here = {}
for _ in range(5000): here['k'] = here = {}
class R:
    def _repr_html_(self): return '<p>', {'nan': float('nan'), 'big': 10**400, 'o': object(), 'deep': deep, 'ok': [1]}
R()
"""
    result = await run(code)
    assert (result.status, result.result is not None) == ("ok", True)
    about = result.result_metadata["text/html"]
    assert (about["nan"], about["big"], about["o"], about["ok"]) == (None, None, None, [1])
    assert json.dumps(about).count("{") < 30


@pytest.mark.req("rich.mime")
async def test_showing_a_number_imports_nothing(run) -> None:
    await run("import sys")
    before = (await run("before = set(sys.modules)\n2")).result
    assert before == {"text/plain": "2"}
    assert (await run("display(2)\nsorted(set(sys.modules) - before)")).result == {"text/plain": "[]"}


# --- display() ---


@pytest.mark.req("rich.mime", "out.order")
async def test_a_display_has_its_place_between_two_prints(run, service: Service) -> None:
    result = await run("for n in range(100):\n print('a', n)\n display(n)\n print('b', n)")
    assert result.displays == [{"text/plain": str(n)} for n in range(100)]
    told = ""
    for event in await shown(service):
        if isinstance(event, (events.Stdout, events.Stderr)):
            told += event.text
        elif isinstance(event, events.DisplayShown):
            assert event.cell == 1
            told += f"<{event.data['text/plain']}>"
    assert told == "".join(f"a {n}\n<{n}>b {n}\n" for n in range(100))


@pytest.mark.req("rich.mime")
async def test_an_update_takes_the_place_of_what_was_shown_in_the_same_cell(run, service: Service) -> None:
    result = await run("h = display('one', display_id=True)\ndisplay('two')\nh.update('three')")
    assert result.displays == [{"text/plain": "'three'"}, {"text/plain": "'two'"}]
    later = await run("update_display('four', display_id=h.display_id)")
    assert later.displays == [{"text/plain": "'four'"}]
    told = [event for event in await shown(service) if isinstance(event, events.DisplayShown)]
    assert [event.update for event in told] == [False, False, True, True]
    assert len({event.display_id for event in (told[0], *told[2:])}) == 1
    assert (await service.wait("s", 1)).displays == result.displays


@pytest.mark.req("rich.mime", "wait.cursor")
async def test_a_running_cell_tells_what_it_has_shown_so_far_and_a_cursor_what_is_new(run, service: Service) -> None:
    first = await run("display(1)\ninput('go')\ndisplay(2)")
    assert (first.status, first.displays) == ("waiting_for_input", [{"text/plain": "1"}])
    ended = await service.input("s", "")
    assert ended.displays == [{"text/plain": "1"}, {"text/plain": "2"}]
    news = await service.wait("s", 1, from_event=first.next_event)
    assert (news.displays, news.displays_metadata) == ([{"text/plain": "2"}], [{}])


@pytest.mark.req("rich.mime", "out.attributed")
async def test_what_a_thread_of_an_earlier_cell_shows_is_background(run, service: Service, tmp_path: Path) -> None:
    go, went = tmp_path / "go", tmp_path / "went"
    code = f"""
import os, threading, time
def work():
    while not os.path.exists({str(go)!r}): time.sleep(0.001)
    display('late')
    open({str(went)!r}, 'w').close()
thread = threading.Thread(target=work)
thread.start()
display('mine')
"""
    assert (await run(code)).displays == [{"text/plain": "'mine'"}]
    during = await run(f"open({str(go)!r}, 'w').close()\nthread.join()\ndisplay('next')")
    assert during.displays == [{"text/plain": "'next'"}]
    told = [event for event in await shown(service) if isinstance(event, events.DisplayShown)]
    assert [(event.data["text/plain"], event.background) for event in told] == [
        ("'mine'", False),
        ("'late'", True),
        ("'next'", False),
    ]


@pytest.mark.req("rich.mime", "out.attributed")
async def test_what_is_shown_while_no_cell_runs_belongs_to_none(run, service: Service, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, threading, time
def work():
    while not os.path.exists({str(go)!r}): time.sleep(0.001)
    display('between')
threading.Thread(target=work).start()
"""
    await run(code)
    go.touch()
    found: list[events.DisplayShown] = []

    async def follow() -> None:
        async for event in service.events("s"):
            if isinstance(event, events.DisplayShown):
                found.append(event)
                return

    await follow()
    assert [(event.cell, event.background) for event in found] == [(None, True)]
    assert (await run("1")).displays == []


@pytest.mark.req("rich.mime", "out.bounded")
async def test_ten_thousand_displays_are_bounded_in_the_result_and_whole_in_the_timeline(run, service: Service) -> None:
    result = await run("for n in range(10_000): display(n)", wait=60)
    assert result.status == "ok"
    assert result.displays == [{"text/plain": str(n)} for n in range(100)]
    assert any(notice.startswith("9900 displays of cell 1 are not in its result") for notice in result.notices)
    told = [event for event in await shown(service) if isinstance(event, events.DisplayShown)]
    assert [event.data["text/plain"] for event in told] == [str(n) for n in range(10_000)]


@pytest.mark.req("rich.mime")
async def test_a_forked_child_prints_what_it_shows(run) -> None:
    result = await run("import os\npid = os.fork()\nif not pid:\n display('child')\n os._exit(0)\nos.waitpid(pid, 0);")
    assert (result.stdout, result.displays) == ("'child'\n", [])


@pytest.mark.req("rich.mime", "cell.clean-globals")
async def test_display_is_a_builtin_and_a_user_who_breaks_it_breaks_his_own_code_only(run) -> None:
    assert (await run("'display' in globals(), callable(display), callable(update_display)")).result == {
        "text/plain": "(False, True, True)"
    }
    await run("import builtins, sys\nbuiltins.display = None\nkept = sys.modules\nsys.modules = 5")
    assert (await run("[1]")).result == {"text/plain": "[1]"}
    assert (await run(RICH + "Rich()")).result == RICH_DATA
    assert (await run("sys.modules = kept\nfrom IPython.display import display\ndisplay(1)")).displays == [
        {"text/plain": "1"}
    ]


@pytest.mark.req("rich.mime")
async def test_junk_in_the_place_of_libraries_costs_nothing(run) -> None:
    code = """
import sys
class Junk:
    def __getattr__(self, name): raise RuntimeError(name)
for name in ('pandas', 'polars', 'pyarrow', 'numpy', 'matplotlib.figure', 'matplotlib._pylab_helpers'):
    sys.modules[name] = 7
class R:
    def _repr_html_(self): return '<p>'
R()
"""
    result = await run(code)
    assert result.status == "ok"
    assert result.result is not None
    assert result.result["text/html"] == "<p>"
    worse = await run("for name in list(sys.modules):\n if sys.modules[name] == 7: sys.modules[name] = Junk()\nR()")
    assert worse.status == "ok"
    assert (await run("1")).result == {"text/plain": "1"}


@pytest.mark.req("rich.mime", "int.cell")
async def test_an_endless_method_can_be_interrupted(run, service: Service) -> None:
    await run("class R:\n def _repr_html_(self):\n  print('in')\n  while True: pass\n")
    cell = await service.begin("s", "R()")
    async for event in service.events("s"):
        if isinstance(event, events.Stdout):
            break
    result = await service.interrupt("s")
    assert result is not None
    assert (result.cell, result.status) == (cell, "interrupted")
    assert (await run("1")).result == {"text/plain": "1"}


# --- IPython ---


@pytest.fixture(scope="module")
def settings(bare: str) -> Settings:
    return make_settings(preload=[], pool=1, pythons=[bare])


@pytest.fixture(params=["not installed", "installed"])
async def notebook(request: pytest.FixtureRequest, service: Service, bare: str):
    """Runs code in a session, once where IPython is installed and once where it is not."""
    await service.create_session("n", python=bare if request.param == "not installed" else None)

    async def run(code: str) -> Result:
        return await service.execute("n", code)

    return run


IPYTHON_CODE = """
from IPython.display import (display, update_display, clear_output, DisplayHandle, HTML, Image, Markdown, JSON, SVG,
    Latex, Math, Code, Pretty, Audio, IFrame, Javascript, Video, FileLink)
from IPython.core.display import HTML as SameHTML
from IPython import get_ipython
assert get_ipython() is None and SameHTML is HTML
clear_output(wait=True)
display(HTML('<b>'), Markdown('# m'), SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'), Latex('$a$'), Pretty('p'))
h = display(JSON({'a': [1]}), display_id=True)
h.update(Markdown('new'))
"""


@pytest.mark.req("rich.mime")
async def test_notebook_code_works_whether_ipython_is_installed_or_not(notebook) -> None:
    result = await notebook(IPYTHON_CODE)
    assert (result.status, result.stdout, result.notices) == ("ok", "", []), result.error
    assert [sorted(each) for each in result.displays] == [
        ["text/html", "text/plain"],
        ["text/markdown", "text/plain"],
        ["image/svg+xml", "text/plain"],
        ["text/latex", "text/plain"],
        ["text/plain"],
        ["text/markdown", "text/plain"],
    ]
    assert result.displays[5]["text/markdown"] == "new"


@pytest.mark.req("rich.mime")
@pytest.mark.fresh_service
class TestPreloaded:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=["IPython.display"], pool=0)

    async def test_displays_of_an_ipython_that_is_preloaded_are_shown(self, service: Service) -> None:
        """A library that is preloaded may have imported it."""
        await service.create_session("n")
        result = await service.execute("n", IPYTHON_CODE)
        assert (result.status, result.stdout, len(result.displays)) == ("ok", "", 6), result.error


@pytest.mark.req("rich.mime")
async def test_an_image_from_a_file_or_bytes_or_an_address(notebook, tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(png(3, 2))
    result = await notebook(
        f"from IPython.display import Image, display\ndisplay(Image({str(tmp_path / 'p.png')!r}))\n"
        f"display(Image(data=open({str(tmp_path / 'p.png')!r}, 'rb').read(), width=30))\n"
        "display(Image(url='http://127.0.0.1:9/x.png'))"
    )
    encoded = base64.b64encode(png(3, 2)).decode()
    assert result.status == "ok", result.error
    assert [each.get("image/png", "").strip() for each in result.displays] == [encoded, encoded, ""]
    assert result.displays_metadata[0] == {"image/png": {"width": 3, "height": 2}}
    assert result.displays_metadata[1]["image/png"]["width"] == 30
    assert 'src="http://127.0.0.1:9/x.png"' in result.displays[2]["text/html"]


@pytest.mark.req("rich.mime")
async def test_the_stand_in_comes_last_so_that_a_real_one_wins(notebook, request: pytest.FixtureRequest) -> None:
    real = "not installed" not in request.node.name
    assert (await notebook("import IPython\nIPython.__version__ != '0.0.0'")).result == {"text/plain": str(real)}


@pytest.mark.req("rich.figures")
async def test_charts_are_shown_also_where_the_session_itself_imports_the_library(run) -> None:
    result = await run(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
        "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1])).show()\n"
        "import altair as alt\nalt.Chart().mark_line()"
    )
    assert [sorted(each) for each in result.displays] == [
        ["image/png", "text/plain"],
        ["application/vnd.plotly.v1+json", "text/plain"],
    ]
    assert (result.result["text/plain"], result.stderr) == ("altair chart: line", "")


@pytest.mark.req("rich.mime")
async def test_a_chart_that_is_not_understood_keeps_its_text(run) -> None:
    mimes = ("application/vnd.plotly.v1+json", "application/vnd.vegalite.v6.json")
    for mime in mimes:
        for spec in (
            {"data": 5, "layer": 5},
            {"data": [None], "layer": [None]},
            {"data": [{"y": 5}], "mark": {"type": 5}},
        ):
            result = await run(
                "class C:\n def _repr_mimebundle_(self, **kw):\n"
                f"  return {{{mime!r}: {spec!r}, 'text/plain': 'mine'}}\nC()"
            )
            assert (result.status, result.notices, sorted(result.result)) == ("ok", [], sorted([mime, "text/plain"]))
            assert result.result["text/plain"] in ("mine", "altair chart: 5", "altair chart")
    deep = await run(
        f"spec = {{}}\nfor n in range(3000): spec = {{'spec': spec}}\n"
        f"class C:\n def _repr_mimebundle_(self, **kw): return {{{mimes[1]!r}: spec, 'text/plain': 'mine'}}\nC()"
    )
    assert deep.result["text/plain"] == "mine"


# --- images ---


async def test_an_image_too_large_for_a_reader_is_shown_small_and_kept_as_it_was(run, service: Service) -> None:
    big = png(4000, 1000)
    await run(f"class P:\n def _repr_png_(self): return {big!r}")
    result = await run("P()")
    assert result.result is not None
    small = base64.b64decode(result.result["image/png"])
    assert struct.unpack(">II", small[16:24]) == (1568, 392)
    about = result.result_metadata["image/png"]
    assert (about["width"], about["height"]) == (1568, 392)
    assert (about["full"]["width"], about["full"]["height"], about["full"]["bytes"]) == (4000, 1000, len(big))
    assert await service.figure("s", about["full"]["file"]) == big


async def test_without_pillow_a_large_image_is_kept_on_disk_only_and_that_is_said(run, service: Service) -> None:
    big = png(4000, 10)
    result = await run(f"import sys\nsys.modules['PIL'] = None\nclass P:\n def _repr_png_(self): return {big!r}\nP()")
    assert result.result is not None
    assert list(result.result) == ["text/plain"]
    assert result.notices == [
        "image/png: the image of 4000 x 10 pixels could not be made smaller "
        "(Pillow is not installed in this environment); only the file was stored"
    ]
    assert await service.figure("s", result.result_metadata["image/png"]["full"]["file"]) == big


@pytest.mark.parametrize(
    ("give", "said"),
    [
        ("bytes(1_000_000_000)", "more than 33554432"),
        (repr(png(1, 1)[:16] + struct.pack(">II", 60_000, 60_000) + png(1, 1)[24:]), "60000 x 60000 pixels"),
        ("'no base64 at all: ä'", "text is no base64"),
        ("object()", "is no image"),
    ],
    ids=["1 GB", "a bomb", "no base64", "no bytes"],
)
async def test_an_image_that_cannot_be_shown_is_left_out_with_a_notice(run, give: str, said: str) -> None:
    result = await run(f"class P:\n def _repr_png_(self): return {give}\nP()")
    assert result.status == "ok"
    assert result.result is not None
    assert list(result.result) == ["text/plain"]
    assert len(result.notices) == 1
    assert said in result.notices[0]


async def test_an_id_that_names_no_image_is_refused(run, service: Service) -> None:
    from ingle import errors

    await run("1")
    for name in ("0" * 64, "../timeline.ndjson", "", "0" * 64 + ".part", "/etc/passwd"):
        with pytest.raises(errors.FigureNotFound):
            await service.figure("s", name)


class TestLittleRoomForEvents:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, timeline_memory=10_000, timeline_disk=1_000_000)

    @pytest.mark.req("out.bounded")
    async def test_displays_beyond_the_sessions_share_of_the_disk_are_short(self, run) -> None:
        first = await run("for n in range(40): display('x' * 100_000)")
        assert first.status == "ok"
        assert any("displays were kept as short text only" in notice for notice in first.notices)
        assert len(first.displays[0]["text/plain"]) == 100_002
        assert len(first.displays[-1]["text/plain"]) == 1000
        assert (await run("display(1)\n2")).result == {"text/plain": "2"}


class TestLittleDisk:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, figures_disk=100_000)

    async def test_the_oldest_images_go_when_their_disk_is_used_up(self, run, service: Service) -> None:
        from ingle import errors

        code = (
            "import struct, zlib\ndef chunk(k, d): return struct.pack('>I', len(d)) + k + d + "
            "struct.pack('>I', zlib.crc32(k + d))\nclass P:\n def __init__(self, n): self.n = n\n"
            " def _repr_png_(self):\n  rows = b''.join(b'\\0' + bytes([self.n]) * 2000 for _ in range(20))\n"
            "  return (b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 2000, 20, 8, 0, 0, 0, 0)) +"
            " chunk(b'IDAT', zlib.compress(rows, 0)) + chunk(b'IEND', b''))\n"
        )
        await run(code)
        result = await run("for n in range(4): display(P(n))")
        files = [each["image/png"]["full"]["file"] for each in result.displays_metadata]
        assert len(set(files)) == 4
        for gone in files[:2]:
            with pytest.raises(errors.FigureNotFound):
                await service.figure("s", gone)
        assert [len(await service.figure("s", kept)) > 40_000 for kept in files[2:]] == [True, True]
