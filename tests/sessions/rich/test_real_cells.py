"""Real cells as a model reads them: whole text, mime types and pictures of each, from the table in `real_cells/`."""

import os
from pathlib import Path

import pytest

from ingle.service import Service
from support import real_cells
from support.real_cells import Case
from support.service import make_settings

CASES = real_cells.load_all()
READS = {(case.title, at): step for case in CASES for at, step in enumerate(case.steps, 1)}

pytestmark = pytest.mark.req("rich.mime", "rich.figures", "rich.tables", "rich.magics", "out.clean")


@pytest.fixture(scope="module")
def settings():
    return make_settings(**real_cells.OPTIONS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.title}")
async def test_a_cell_reads_as_it_should(service: Service, case: Case, tmp_path: Path) -> None:
    assert await real_cells.run(service, case, tmp_path) == case


def reads(title: str, step: int = 1) -> str:
    return READS[title, step].reads


def shows(title: str, step: int = 1) -> str:
    return READS[title, step].shows


# What is in the table is what cells read like; these say what is good about it.


def test_the_table_is_large_and_each_of_its_titles_is_there_once() -> None:
    assert len(CASES) >= 60
    assert len({case.title for case in CASES}) == len(CASES)
    assert all(step.reads for case in CASES for step in case.steps)
    assert real_cells.written(CASES[:3]) in real_cells.written(real_cells.load(real_cells.FOLDER / "display.txt"))


@pytest.mark.parametrize(
    ("title", "below"),
    [
        ("a progress bar of tqdm", 100),
        ("a progress bar of tqdm for notebooks", 100),
        ("progress of rich", 100),
        ("a frame of 1000 rows and 10 columns", 600),
        ("a frame of 100 columns", 600),
        ("a frame of a million rows", 300),
        ("a long series", 150),
        ("a long frame of polars", 200),
        ("a wide array", 600),
        ("a picture as an array", 300),
        ("the same line again and again", 100),
        ("a figure of plotly", 100),
        ("a large figure of plotly", 100),
        ("many traces of plotly", 250),
        ("a chart of altair", 100),
        ("a line plot", 50),
        ("a long list of numbers", 10_001),
        ("a flood of lines", 10_001),
    ],
)
def test_what_is_long_reads_short(title: str, below: int) -> None:
    assert 10 < len(reads(title)) < below


@pytest.mark.parametrize(
    ("title", "mime"),
    [
        ("a figure of plotly", "result application/vnd.plotly.v1+json text/plain"),
        ("a figure of plotly that is shown", "display application/vnd.plotly.v1+json text/plain"),
        ("a formula of sympy", "result text/latex text/plain"),
        ("a small frame", "result text/html text/plain"),
        ("an image of Pillow", "result image/png text/plain · 1 image"),
    ],
)
def test_a_page_gets_more_than_text(title: str, mime: str) -> None:
    assert shows(title) == mime


def test_pictures_are_counted_as_they_are_shown() -> None:
    assert shows("a grid of seaborn").endswith("· 1 image")
    assert shows("two plots, each shown").endswith("· 2 images")
    kept = "a figure that is kept and changed in the next cell"
    assert [shows(kept, step).endswith("1 image") for step in (1, 2, 3)] == [True, False, True]


def test_complaints_are_marked_as_such_and_said_once() -> None:
    assert reads("logging goes to stderr").startswith("done\n[stderr]\nINFO app: started\n")
    for step in (1, 2):
        assert reads("a warning is shown once", step).count("Warning: ") == 1
    assert reads("an exception group").count("Traceback") == 3


def test_no_text_has_a_path_of_this_machine_in_it() -> None:
    here = [os.path.expanduser("~"), str(Path(__file__).parents[3]), "/tmp", "site-packages"]
    assert [case.title for case in CASES for step in case.steps if any(each in step.reads for each in here)] == []
