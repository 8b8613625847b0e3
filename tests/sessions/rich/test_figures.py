"""Figures: drawn without a screen, shown once, again when changed, and never as another cell's."""

import base64
import struct
from pathlib import Path

import pytest

from ingle import events
from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("rich.figures")]

PLOT = "import matplotlib.pyplot as plt\n"


@pytest.fixture(scope="module")
def settings() -> Settings:
    preload = ["matplotlib.pyplot", "seaborn", "plotly.graph_objects", "altair", "PIL.Image"]
    return make_settings(preload=preload, pool=1)


def pictures(result: Result) -> list[tuple[int, int]]:
    """Sizes of the images among the displays."""
    assert len(result.displays) == len(result.displays_metadata)
    return [
        struct.unpack(">II", base64.b64decode(each["image/png"])[16:24])
        for each in result.displays
        if "image/png" in each
    ]


async def test_a_plot_is_shown_at_the_end_of_its_cell_and_the_next_starts_clean(run) -> None:
    result = await run(PLOT + "plt.plot([1, 2]);")
    assert (result.status, result.stderr, len(pictures(result))) == ("ok", "", 1)
    ((width, height),) = pictures(result)
    assert result.displays_metadata == [{"image/png": {"width": width, "height": height}}]
    assert result.displays[0]["text/plain"] == "<Figure size 640x480 with 1 Axes>"
    after = await run("plt.get_fignums(), plt.get_backend().lower()")
    assert (after.displays, after.result) == ([], {"text/plain": "([], 'agg')"})


async def test_show_shows_there_and_then_and_once(run, service: Service) -> None:
    result = await run(
        PLOT + "print('a')\nplt.plot([1])\nplt.show()\nprint('b')\nplt.plot([2])\nplt.show()\nprint('c')"
    )
    assert (len(pictures(result)), result.stderr) == (2, "")
    order = []
    async for event in service.events("s"):
        if isinstance(event, events.Stdout):
            order.append(event.text)
        elif isinstance(event, events.DisplayShown):
            order.append("picture")
        elif isinstance(event, events.Done):
            break
    assert order == ["a\n", "picture", "b\n", "picture", "c\n"]


async def test_two_figures_are_two_pictures_and_an_empty_one_is_none(run) -> None:
    result = await run(PLOT + "for n in range(2): plt.figure(); plt.plot([n])\nplt.figure();")
    assert len(pictures(result)) == 2


async def test_a_figure_that_is_saved_and_closed_is_not_shown(run, tmp_path: Path) -> None:
    result = await run(PLOT + f"plt.plot([1])\nplt.savefig({str(tmp_path / 'x.png')!r})\nplt.close()")
    assert (result.displays, (tmp_path / "x.png").exists()) == ([], True)


async def test_a_kept_figure_is_shown_again_only_when_it_looks_different(run) -> None:
    assert len(pictures(await run(PLOT + "fig, ax = plt.subplots()\nax.plot([1])"))) == 1
    assert pictures(await run("1")) == []
    assert pictures(await run("ax.set_title('')")) == []  # stale, and the same picture
    assert len(pictures(await run("ax.set_title('new')"))) == 1
    assert pictures(await run("ax.get_title()")) == []


@pytest.mark.parametrize("last", ["fig", "ax", "[ax]", "fig.axes", "display(fig)", "fig.show()", "plt.gcf()"])
async def test_a_figure_that_is_also_the_last_value_is_shown_once(run, last: str) -> None:
    result = await run(PLOT + f"fig, ax = plt.subplots()\nax.plot([1])\n{last}")
    assert (len(pictures(result)), result.stderr) == (1, "")
    if "(" not in last:
        assert result.result is not None
        assert list(result.result) == ["text/plain"]


async def test_asked_for_again_in_a_later_cell_a_figure_is_shown_again(run) -> None:
    await run(PLOT + "fig, ax = plt.subplots()\nax.plot([1])")
    for ask in ("fig", "display(fig)", "fig.show()"):
        result = await run(ask)
        assert (result.status, len(pictures(result))) == ("ok", 1), ask
    handle = await run("h = display(fig, display_id='f')\nax.set_title('new')\nh.update(fig)")
    assert len(pictures(handle)) == 1


async def test_a_figure_without_pyplot_is_shown_when_asked_for(run) -> None:
    result = await run("from matplotlib.figure import Figure\nf = Figure()\nf.subplots().plot([1])\nf")
    assert len(pictures(result)) == 1
    assert len(pictures(await run("f.suptitle('x');"))) == 1


async def test_figures_are_shown_before_the_cell_waits_for_input_and_can_be_drawn_on(run, service: Service) -> None:
    waiting = await run(PLOT + "plt.plot([1])\nt = input('title? ')\nplt.title(t)\nassert len(plt.get_fignums()) == 1")
    assert (waiting.status, len(pictures(waiting))) == ("waiting_for_input", 1)
    ended = await service.input("s", "hello")
    assert (ended.status, len(pictures(ended))) == ("ok", 2)


async def test_figures_of_a_cell_that_fails_are_shown(run) -> None:
    result = await run(PLOT + "plt.plot([1])\n1 / 0")
    assert (result.status, len(pictures(result))) == ("error", 1)


async def test_figures_of_an_interrupted_cell_are_shown(run, service: Service) -> None:
    await run(PLOT)
    await service.begin("s", "plt.plot([1])\nprint('plotted')\nwhile True: pass")
    async for event in service.events("s"):
        if isinstance(event, events.Stdout):
            break
    result = await service.interrupt("s")
    assert result is not None
    assert (result.status, len(pictures(result))) == ("interrupted", 1)
    assert pictures(await run("1")) == []


async def test_drawing_can_be_interrupted_and_the_interrupt_is_not_lost(run, service: Service) -> None:
    await run(
        PLOT + "from matplotlib.artist import Artist\nclass Slow(Artist):\n"
        " def draw(self, renderer):\n  print('drawing')\n  while True: pass\n"
    )
    await service.begin("s", "plt.figure().add_artist(Slow());")
    async for event in service.events("s"):
        if isinstance(event, events.Stdout):
            break
    result = await service.interrupt("s")
    assert result is not None
    assert (result.status, result.displays) == ("interrupted", [])
    assert (await run("plt.get_fignums()")).result == {"text/plain": "[]"}


async def test_a_figure_that_takes_too_long_does_not_cost_a_timed_out_cell_its_session(run, service: Service) -> None:
    await run(
        PLOT + "import signal\nsignal.signal(signal.SIGALRM, print)\nfrom matplotlib.artist import Artist\n"
        "class Slow(Artist):\n def draw(self, renderer):\n  while True: pass\n"
    )
    result = await service.execute("s", "plt.figure().add_artist(Slow())\nwhile True: pass", timeout=0.2)
    assert (result.status, result.timed_out, result.displays) == ("interrupted", True, [])
    assert result.notices == ["figures of this interrupted cell took longer than 0.5 s to draw and are not shown"]
    assert (await run("signal.getsignal(signal.SIGALRM) is print, plt.get_fignums()")).result == {
        "text/plain": "(True, [])"
    }


async def test_a_figure_that_cannot_be_drawn_is_a_notice(run) -> None:
    code = PLOT + (
        "from matplotlib.artist import Artist\nclass Bad(Artist):\n def draw(self, renderer): raise ValueError('bad')\n"
        "plt.figure().add_artist(Bad())\nplt.figure()\nplt.plot([1])\n5"
    )
    result = await run(code)
    assert (result.status, result.result, len(pictures(result))) == ("ok", {"text/plain": "5"}, 1)
    assert result.notices == ["figure 1 could not be drawn: ValueError: bad"]
    assert (await run("1")).notices == []


@pytest.mark.req("out.attributed")
async def test_figures_of_a_background_thread_are_not_the_next_cells(run, service: Service, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = (
        PLOT
        + f"""
import os, threading, time
def work():
    while not os.path.exists({str(go)!r}): time.sleep(0.001)
    plt.figure(); plt.plot([1, 2, 3])
thread = threading.Thread(target=work); thread.start()
"""
    )
    await run(code)
    go.touch()
    during = await run("thread.join()")
    assert during.displays == []
    between = await run("len(plt.get_fignums())\nplt.plot([5]);")
    assert len(pictures(between)) == 1
    shown = []
    async for event in service.events("s"):
        if isinstance(event, events.DisplayShown):
            shown.append(event.background)
        if isinstance(event, events.Done) and event.cell == 3:
            break
    assert shown == [True, False]


async def test_a_large_figure_is_shown_small_and_kept_in_full_size(run, service: Service) -> None:
    result = await run(PLOT + "plt.figure(figsize=(40, 10))\nplt.plot([1, 2]);")
    ((width, height),) = pictures(result)
    assert 1400 < width <= 1568
    full = result.displays_metadata[0]["image/png"]["full"]
    assert full["width"] > 2900
    data = await service.figure("s", full["file"])
    assert struct.unpack(">II", data[16:24]) == (full["width"], full["height"])
    assert abs(full["width"] / full["height"] - width / height) < 0.3


async def test_a_monstrous_figure_is_shown_small(run) -> None:
    result = await run(PLOT + "plt.figure(figsize=(300, 300), dpi=200)\nplt.plot([1]);")
    ((width, height),) = pictures(result)
    assert max(width, height) <= 1568
    assert result.notices == ["image/png: a figure of 60000 x 60000 pixels is shown smaller, and is not stored in full"]


async def test_a_user_may_choose_agg_himself(run) -> None:
    result = await run(
        "import matplotlib\nmatplotlib.use('Agg')\n" + PLOT + "plt.switch_backend('agg')\nplt.plot([1])\nplt.show()"
    )
    assert (result.status, result.stderr, len(pictures(result))) == ("ok", "", 1)


async def test_seaborn(run) -> None:
    result = await run(
        "import seaborn as sns, pandas as pd\ndf = pd.DataFrame({'x': [1, 2, 3, 4], 'k': list('aabb')})\n"
        "sns.displot(df, x='x', col='k')"
    )
    assert (result.status, len(pictures(result))) == ("ok", 1), result.error


async def test_plotly_gives_its_json_and_no_page_with_a_library_in_it(run) -> None:
    result = await run("import plotly.graph_objects as go\nfig = go.Figure(go.Scatter(y=[1, 2]))\nfig")
    assert result.result is not None
    assert sorted(result.result) == ["application/vnd.plotly.v1+json", "text/plain"]
    assert sum(map(len, result.result.values())) < 100_000
    for ask in ("fig.show()", "display(fig)"):
        shown = await run(ask)
        assert (shown.status, [sorted(each) for each in shown.displays]) == (
            "ok",
            [["application/vnd.plotly.v1+json", "text/plain"]],
        ), shown.error


async def test_altair_gives_its_vega_lite(run) -> None:
    result = await run(
        "import altair as alt, pandas as pd\nalt.Chart(pd.DataFrame({'a': [1, 2]})).mark_line().encode(x='a', y='a')"
    )
    assert result.result is not None, result.error
    kinds = sorted(result.result)
    assert kinds[0].startswith("application/vnd.vegalite.v")
    assert kinds[1:] == ["text/plain"]
    assert result.result["text/plain"] == "altair chart: line x=a y=a"


async def test_a_pillow_image_is_a_png(run, service: Service) -> None:
    small = await run("from PIL import Image\nImage.new('RGB', (30, 20), 'red')")
    assert small.result is not None
    assert sorted(small.result) == ["image/png", "text/plain"]
    assert small.result_metadata == {"image/png": {"width": 30, "height": 20}}
    large = await run("display(Image.new('RGB', (4000, 3000)))")
    assert pictures(large) == [(1568, 1176)]
    full = large.displays_metadata[0]["image/png"]["full"]
    assert (full["width"], full["height"]) == (4000, 3000)
    assert len(await service.figure("s", full["file"])) == full["bytes"]
