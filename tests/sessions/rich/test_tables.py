"""Tables: a short text for a reader, a page for a browser, and nothing computed that nobody asked for."""

import pytest

from ingle.events import Result
from ingle.service import Service

pytestmark = pytest.mark.req("rich.tables")

BUDGET = 600
FRAME = "import numpy as np, pandas as pd\nrng = np.random.default_rng(0)\n"


@pytest.fixture
async def run(service: Service):
    await service.create_session("s")

    async def run(code: str) -> Result:
        result = await service.execute("s", code)
        assert result.status == "ok", result.error
        return result

    return run


def text(result: Result) -> str:
    assert result.result is not None
    return result.result["text/plain"]


async def test_a_large_frame_reads_as_shape_types_head_and_tail(run) -> None:
    code = FRAME + "pd.DataFrame({'n': range(1000), 'x': np.arange(1000) / 8, 's': ['text'] * 1000})"
    result = await run(code)
    assert text(result) == (
        "DataFrame: 1000 rows x 3 columns\n"
        "dtypes: n int64, x float64, s str\n"
        "       n     x     s\n"
        "0      0     0  text\n"
        "1      1 0.125  text\n"
        "2      2  0.25  text\n"
        "..\n"
        "998  998 124.8  text\n"
        "999  999 124.9  text"
    )
    assert result.result["text/html"].count("<tr") < 70


@pytest.mark.parametrize(
    "frame",
    [
        "pd.DataFrame(rng.normal(size=(1000, 10)), columns=list('abcdefghij'))",
        "pd.DataFrame(rng.normal(size=(1000, 10)) * 1e9, columns=[f'a rather long name {n}' for n in range(10)])",
        "pd.DataFrame(rng.normal(size=(1000, 300)))",
        "pd.DataFrame({f'c{n}': ['x' * 5000] * 1000 for n in range(10)})",
        "pd.DataFrame(rng.normal(size=(1000, 10)), index=pd.MultiIndex.from_product([range(10), range(100)]))",
    ],
    ids=["10 columns", "long names", "300 columns", "long texts", "two levels"],
)
async def test_a_frame_of_a_thousand_rows_is_short_to_read(run, frame: str) -> None:
    shown = text(await run(FRAME + frame))
    assert len(shown) < BUDGET
    assert shown.startswith("DataFrame: 1000 rows x ")
    assert shown.split("\n")[-3] == ".."


async def test_left_out_columns_are_seen_to_be_left_out(run) -> None:
    shown = text(await run(FRAME + "pd.DataFrame(rng.normal(size=(1000, 300)))"))
    assert "x 300 columns" in shown
    assert " ... " in shown.split("\n")[2]
    assert shown.split("\n")[2].split()[-1] == "299"


@pytest.mark.parametrize(
    "frame",
    [
        "pd.DataFrame({'a': [1, 2], 'b': ['x', None]})",
        "pd.DataFrame(np.arange(60).reshape(20, 3))",
        "pd.DataFrame()",
        "pd.DataFrame({'a': []})",
        "pd.Series([1.5, 2], name='s')",
        "pd.Index(['a', 'b'])",
        "pd.DataFrame({'s': ['y' * 500]})",
    ],
)
async def test_a_small_table_is_shown_whole_as_pandas_prints_it(run, frame: str) -> None:
    result = await run(FRAME + f"value = {frame}\nprint(repr(value))\nvalue")
    assert text(result) + "\n" == result.stdout


async def test_a_description_of_ten_columns_has_all_ten(run) -> None:
    shown = text(await run(FRAME + "pd.DataFrame(rng.normal(size=(99, 10)), columns=list('abcdefghij')).describe()"))
    assert shown.split("\n")[0].split() == list("abcdefghij")
    assert [line.split()[0] for line in shown.split("\n")[1:]] == [
        *("count", "mean", "std", "min", "25%", "50%", "75%", "max"),
    ]


async def test_options_that_the_user_has_set_are_kept(run) -> None:
    await run(FRAME + "df = pd.DataFrame({'x': np.arange(1000) / 7})")
    await run("pd.set_option('display.precision', 2)")
    assert "\n2      0.29\n" in text(await run("df"))
    result = await run("pd.set_option('display.max_rows', 30)\nprint(repr(df))\ndf")
    assert text(result) + "\n" == result.stdout


async def test_a_long_series_and_a_long_index(run) -> None:
    series = await run(FRAME + "pd.Series(np.arange(1000) / 8, name='x')")
    assert text(series) == (
        "Series 'x': 1000 rows, float64\n0         0\n1     0.125\n2      0.25\n..\n998   124.8\n999   124.9"
    )
    assert series.result["text/html"].startswith("<div>")
    index = text(await run("pd.Index([f'k{n}' for n in range(1000)])"))
    assert len(index) < 300
    assert "length=1000" in index


async def test_a_broken_subclass_costs_its_preview_only(run) -> None:
    code = FRAME + (
        "class Broken(pd.DataFrame):\n"
        " @property\n def shape(self): raise RuntimeError('no shape')\n"
        " def __repr__(self): raise RuntimeError('no repr')\n"
        " def _repr_html_(self): raise RuntimeError('no page')\n"
        "Broken({'a': range(100)})"
    )
    result = await run(code)
    assert result.result == {"text/plain": "<Broken that cannot be shown: RuntimeError>"}
    assert result.notices == ["_repr_html_ of Broken raised RuntimeError: no page"]


async def test_polars(run) -> None:
    code = "import polars as pl\ndf = pl.DataFrame({'n': range(1000), 'x': [0.125] * 1000, 's': ['t' * 50] * 1000})\n"
    large = await run(code + "df")
    assert text(large) == (
        "DataFrame: 1000 rows x 3 columns\n"
        "dtypes: n Int64, x Float64, s String\n"
        "  n     x                        s\n"
        "  0 0.125 ttttttttttttttttttttttt…\n"
        "  1 0.125 ttttttttttttttttttttttt…\n"
        "  2 0.125 ttttttttttttttttttttttt…\n"
        "..\n"
        "998 0.125 ttttttttttttttttttttttt…\n"
        "999 0.125 ttttttttttttttttttttttt…"
    )
    assert "<table" in large.result["text/html"]
    small = await run("print(df.head(2))\ndf.head(2)")
    assert text(small) + "\n" == small.stdout
    assert text(await run("df['n']")) == "Series 'n': 1000 rows, Int64\n0\n1\n2\n..\n998\n999"
    own = await run("pl.Config.set_tbl_rows(4)\nprint(df)\ndf")
    assert text(own) + "\n" == own.stdout


async def test_a_lazy_frame_stays_lazy(run) -> None:
    code = (
        "import polars as pl\nran = []\n"
        "lazy = pl.DataFrame({'a': [1]}).lazy().map_batches(lambda df: ran.append(1) or df, schema={'a': pl.Int64})\n"
        "lazy"
    )
    result = await run(code)
    assert list(result.result) == ["text/plain"]
    assert "LazyFrame" in text(result) or "LAZY" in text(result).upper()
    assert text(await run("ran")) == "[]"
    assert text(await run("lazy.collect(); ran")) == "[1]"


async def test_arrow(run) -> None:
    code = "import pyarrow as pa\npa.table({'n': range(1000), 's': ['<b>'] * 1000})"
    result = await run(code)
    assert text(result) == (
        "Table: 1000 rows x 2 columns\ndtypes: n int64, s string\n"
        "  n   s\n  0 <b>\n  1 <b>\n  2 <b>\n..\n998 <b>\n999 <b>"
    )
    page = result.result["text/html"]
    assert "<td>999</td><td>&lt;b&gt;</td>" in page
    assert "<b>" not in page
    assert text(await run("pa.table({'a': [1, 2]})")) == "Table: 2 rows x 1 column\ndtype: int64\na\n1\n2"


async def test_numpy(run) -> None:
    assert text(await run("import numpy as np\nnp.arange(3)")) == "array([0, 1, 2])"
    large = text(await run("np.zeros((1000, 1000))"))
    assert large.split("\n")[0] == "ndarray: 1000 x 1000, float64"
    assert len(large) < BUDGET


async def test_a_library_that_is_not_imported_is_not_looked_at(run) -> None:
    code = "import sys\nclass DataFrame:\n def __repr__(self): return 'mine'\nbefore = set(sys.modules)\nDataFrame()"
    assert text(await run(code)) == "mine"
    assert text(await run("sorted(set(sys.modules) - before)")) == "[]"
