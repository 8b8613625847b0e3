"""Rows of a table, an array or a list, a page at a time, and the points of a row of numbers.

pandas, polars, Arrow and numpy are used only if the session has imported them. Only the rows that are asked for are
turned into text, by `str()`. Everything is bounded, however large the value is.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from ingle_worker.session.variables import module_attribute, preview
from ingle_worker.wire.messages import TablePage

MAX_COLUMNS = 100
MAX_CELL_CHARS = 200
MAX_POINTS = 1000
"""Points of a row of numbers. Of a longer one every n-th is taken."""


def page(value: Any, first: int, rows: int, column: int) -> "TablePage | None":
    """Return rows from `first` on, and the points of a column; None for a value without rows.

    The column is counted from 0. The points of a value with one column are always told.
    """
    for (module, name), describe in _KINDS.items():
        kind = module_attribute(module, name)
        if isinstance(kind, type) and isinstance(value, kind):
            return describe(value, first, rows, column)
    if type(value) in (list, tuple, range):
        return _of_items(value, first, rows)
    if type(value) is dict:
        return _of_dict(value, first, rows)
    return None


def _frame(value: Any, first: int, rows: int, column: int) -> TablePage:
    part = value.iloc[first : first + rows, :MAX_COLUMNS]
    cells = _rows([part.iloc[:, each].tolist() for each in range(part.shape[1])])
    points = _points(value.iloc[:, column], len(value)) if 0 <= column < part.shape[1] else None
    names, types = _texts(part.columns), _texts(part.dtypes)
    return TablePage(names, types, _texts(part.index), cells, first, len(value), int(value.shape[1]), points)


def _series(value: Any, first: int, rows: int, column: int) -> TablePage:
    part = value.iloc[first : first + rows]
    name = "" if value.name is None else _text(value.name)
    cells = _rows([part.tolist()])
    return TablePage([name], [_text(value.dtype)], _texts(part.index), cells, first, len(value), 1, _points(value))


def _polars_frame(value: Any, first: int, rows: int, column: int) -> TablePage:
    part = value[:, :MAX_COLUMNS].slice(first, rows)
    cells = [_texts(row) for row in part.rows()]
    points = _points(value[:, column], value.height) if 0 <= column < part.width else None
    index = _numbers(first, len(cells))
    return TablePage(_texts(part.columns), _texts(part.dtypes), index, cells, first, value.height, value.width, points)


def _polars_series(value: Any, first: int, rows: int, column: int) -> TablePage:
    cells = _rows([value.slice(first, rows).to_list()])
    index = _numbers(first, len(cells))
    return TablePage([_text(value.name)], [_text(value.dtype)], index, cells, first, len(value), 1, _points(value))


def _arrow(value: Any, first: int, rows: int, column: int) -> TablePage:
    part = value.slice(first, rows).select(range(min(MAX_COLUMNS, value.num_columns)))
    cells = _rows([part.column(each).to_pylist() for each in range(part.num_columns)])
    points = _points(value.column(column).to_pylist()) if 0 <= column < part.num_columns else None
    index, types = _numbers(first, len(cells)), _texts(part.schema.types)
    return TablePage(_texts(part.column_names), types, index, cells, first, value.num_rows, value.num_columns, points)


def _array(value: Any, first: int, rows: int, column: int) -> "TablePage | None":
    if value.ndim not in (1, 2) or value.dtype.names:
        return None
    table = value.reshape(len(value), -1)
    part = table[first : first + rows, :MAX_COLUMNS]
    cells, width = [_texts(row) for row in part.tolist()], int(table.shape[1])
    names = [""] if value.ndim == 1 else _numbers(0, part.shape[1])
    chosen = 0 if value.ndim == 1 else column
    points = _points(table[:, chosen], len(table)) if 0 <= chosen < part.shape[1] else None
    types, index = [_text(value.dtype)] * part.shape[1], _numbers(first, len(cells))
    return TablePage(names, types, index, cells, first, len(value), width, points)


def _of_items(value: Any, first: int, rows: int) -> TablePage:
    cells = [[_cut(preview(each))] for each in value[first : first + rows]]
    return TablePage([""], [""], _numbers(first, len(cells)), cells, first, len(value), 1, _points(value))


def _of_dict(value: "dict[Any, Any]", first: int, rows: int) -> TablePage:
    items = list(value.items())[first : first + rows]
    index, cells = [_cut(preview(key)) for key, _ in items], [[_cut(preview(each))] for _, each in items]
    return TablePage([""], [""], index, cells, first, len(value), 1)


_KINDS: "dict[tuple[str, str], Callable[[Any, int, int, int], TablePage | None]]" = {
    ("pandas.core.frame", "DataFrame"): _frame,
    ("pandas.core.series", "Series"): _series,
    ("polars.dataframe.frame", "DataFrame"): _polars_frame,
    ("polars.series.series", "Series"): _polars_series,
    ("pyarrow", "Table"): _arrow,
    ("numpy", "ndarray"): _array,
}


def _points(values: Any, length: "int | None" = None) -> "list[float | None] | None":
    """Return some of the values as numbers, and None where one is missing; None if they are no numbers."""
    length = len(values) if length is None else length
    step = max(1, -(-length // MAX_POINTS))
    taken = values.iloc[::step] if hasattr(values, "iloc") else values[::step]
    taken = taken.tolist() if hasattr(taken, "tolist") else list(taken)
    if length < 2 or not all(each is None or type(each) in (int, float) for each in taken):
        return None
    try:
        points = [None if each is None else float(each) for each in taken]
    except OverflowError:
        return None
    return [each if each is not None and math.isfinite(each) else None for each in points]


def _rows(columns: "list[list[Any]]") -> "list[list[str]]":
    return [_texts(row) for row in zip(*columns, strict=True)]


def _numbers(first: int, count: int) -> "list[str]":
    return [str(each) for each in range(first, first + count)]


def _texts(values: Iterable[Any]) -> "list[str]":
    return [_text(each) for each in values]


def _text(value: Any) -> str:
    text = str(value)
    return _cut(text if type(text) is str else "".join(text))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 1] + "…"
