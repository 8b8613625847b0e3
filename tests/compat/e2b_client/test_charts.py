"""Figures of matplotlib as charts that programs can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b_code_interpreter import Sandbox
from e2b_code_interpreter.charts import ChartType, ScaleType
from serving import ingle, running

pytestmark = pytest.mark.req("compat.sandboxes")


@pytest.fixture(scope="module")
def drawing() -> Iterator[Sandbox]:
    """A sandbox for all figures: the first one takes a second."""
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()


BEGIN = "import matplotlib.pyplot as plt, datetime\n"


def chart_of(sandbox: Sandbox, code: str) -> Any:
    execution = sandbox.run_code(f"{BEGIN}{code}\nplt.show()")
    assert execution.error is None, execution.error
    (result,) = execution.results
    assert result.png
    assert result.chart is not None
    return result.chart


def test_a_line_chart_has_points_ticks_and_units(drawing: Sandbox) -> None:
    chart = chart_of(
        drawing,
        "plt.plot([1, 2, 3], [4, 5, 6], label='s'); plt.xlabel('Time (s)'); plt.ylabel('Size (m)'); plt.title('T')",
    )
    assert (chart.type, chart.title) == (ChartType.LINE, "T")
    assert (chart.x_label, chart.x_unit, chart.y_label, chart.y_unit) == ("Time (s)", "s", "Size (m)", "m")
    assert (chart.x_scale, chart.y_scale) == (ScaleType.LINEAR, ScaleType.LINEAR)
    assert all(isinstance(each, float) for each in (*chart.x_ticks, *chart.y_ticks))
    assert all(isinstance(each, str) for each in (*chart.x_tick_labels, *chart.y_tick_labels))
    assert [(each.label, each.points) for each in chart.elements] == [("s", [(1.0, 4.0), (2.0, 5.0), (3.0, 6.0)])]


def test_dates_and_categories_are_told(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)], [1, 2])")
    assert chart.x_scale == ScaleType.DATETIME
    assert chart.elements[0].points == [("2024-01-01T00:00:00", 1.0), ("2024-01-03T00:00:00", 2.0)]
    assert all(isinstance(each, str) for each in chart.x_ticks)
    chart = chart_of(drawing, "plt.scatter(['a', 'b'], [1, 2])")
    assert (chart.x_scale, chart.elements[0].points) == (ScaleType.CATEGORICAL, [("a", 1.0), ("b", 2.0)])


def test_scales_are_named(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "plt.plot([1, 10], [1, 100]); plt.yscale('log')")
    assert chart.y_scale == ScaleType.LOG


def test_a_scatter_chart_has_its_groups(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "plt.scatter([1], [2], label='a'); plt.scatter([3], [4], label='b')")
    assert chart.type == ChartType.SCATTER
    assert [(each.label, each.points) for each in chart.elements] == [("a", [(1.0, 2.0)]), ("b", [(3.0, 4.0)])]


@pytest.mark.parametrize("draw", ["bar", "barh"])
def test_a_bar_chart_has_labels_and_values(drawing: Sandbox, draw: str) -> None:
    chart = chart_of(drawing, f"plt.{draw}(['x', 'y'], [10, 20], label='g')")
    assert chart.type == ChartType.BAR
    found = [(each.label, each.group, each.value) for each in chart.elements]
    assert found == [("x", "g", 10.0), ("y", "g", 20.0)]


def test_a_pie_chart_has_angles(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "plt.pie([90, 10], labels=['n', 'm'], autopct='%1.1f%%')")
    assert chart.type == ChartType.PIE
    assert [(each.label, round(each.angle), each.radius) for each in chart.elements] == [
        ("n", 324, 1.0),
        ("m", 36, 1.0),
    ]


def test_a_box_plot_has_its_quartiles(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "plt.boxplot([[85, 90, 78, 92, 88]])\nplt.xticks([1], ['A'])")
    assert chart.type == ChartType.BOX_AND_WHISKER
    (box,) = chart.elements
    assert (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max, box.outliers) == (
        "A", 78.0, 85.0, 88.0, 90.0, 92.0, []
    )  # fmt: skip


def test_charts_and_tables_are_told_by_a_new_process(sandbox: Sandbox) -> None:
    sandbox.run_code("exit()")
    assert chart_of(sandbox, "plt.plot([1, 2])").type == ChartType.LINE
    died = sandbox.run_code("import os; os.kill(os.getpid(), 9)")
    assert died.error is not None
    code = "import pandas as pd; pd.DataFrame({'a': [1]})"
    again = sandbox.run_code(code)
    assert (again.results[0].data, again.execution_count) == ({"a": [1]}, died.execution_count + 1)


def test_charts_are_told_after_hibernation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, "--idle-policy", "free", "--idle-timeout", "0.1") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", (home / "token").read_text().strip())
        patch.setenv("E2B_API_URL", url)
        patch.setenv("E2B_SANDBOX_URL", url)
        sandbox = Sandbox.create()
        sandbox.run_code("kept = [1]")
        while "hibernated" not in ingle(home, "ps"):
            continue
        assert chart_of(sandbox, "plt.plot(kept)").type == ChartType.LINE
        assert sandbox.run_code("kept").results[0].json == [1]
        sandbox.kill()


def test_several_axes_are_one_chart_of_charts(drawing: Sandbox) -> None:
    chart = chart_of(drawing, "f, (a, b) = plt.subplots(1, 2); f.suptitle('S'); a.plot([1, 2]); b.bar(['x'], [1])")
    assert (chart.type, chart.title) == (ChartType.SUPERCHART, "S")
    assert [each.type for each in chart.elements] == [ChartType.LINE, ChartType.BAR]


def test_other_figures_are_of_an_unknown_type(drawing: Sandbox) -> None:
    assert chart_of(drawing, "plt.imshow([[1, 2], [3, 4]])").type == ChartType.UNKNOWN
