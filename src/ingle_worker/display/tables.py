"""Text of tables for a reader: shape, types, first and last rows. Small tables are shown whole.

pandas, polars, Arrow and numpy are used only if the session has imported them. At most a few rows are computed, and a
lazy frame stays lazy. If the user set display options of the library, its own text is used. A failure here costs only
the preview.
"""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

from ingle_worker.display.import_hooks import MODULES, loaded

MAX_ROWS = 20
MAX_COLUMNS = 10
"""A table up to this size is shown whole, as its library prints it."""

MAX_WHOLE_CHARS = 2_000
"""Maximum characters of a table that is shown whole."""

PREVIEW_CHARS = 560
"""Rough maximum of a preview in characters. Columns are left out until it fits."""

HEAD_ROWS, TAIL_ROWS = 3, 2
MAX_CELL_CHARS = 24
"""Maximum characters of one cell in a preview."""

MAX_LINE_CHARS = 200
"""Maximum characters of a line. The name of a column alone may be longer."""

MAX_TYPES_CHARS = 150
"""Maximum characters of the line with column types."""

HTML_ROWS = 5

DEFAULT_EDGE_ITEMS = 3
"""numpy's default number of items at each end of a long dimension."""

LAYOUT_OPTIONS = ("max_rows", "min_rows", "max_columns", "width", "expand_frame_repr", "large_repr", "show_dimensions")
"""pandas options with which a user says how much of a table to show."""

_mro = type.__dict__["__mro__"].__get__


class Preview(NamedTuple):
    text: str
    html: str | None = None
    ask: bool = True
    """Whether methods of the value are called for more mime types."""


def preview(value: Any, cls: type) -> Preview | None:
    """Return text, and HTML for types without their own, of a table. Return None for other values."""
    for library, names in LIBRARIES:
        module = MODULES.get(library)
        if module is None:
            continue
        bases = _mro(cls)
        for name, show in names:
            kind = loaded(library, name)
            if isinstance(kind, type) and any(base is kind for base in bases):
                try:
                    return show(value, module)
                except Exception as error:  # library code, and user classes derived from it
                    return _fallback(value, cls, error)
    return None


def _fallback(value: Any, cls: type, error: Exception) -> Preview:
    try:
        return Preview(repr(value))
    except Exception:  # library code, and user classes derived from it
        return Preview(f"<{cls.__name__} that cannot be shown: {type(error).__name__}>")


# --- pandas ---


def _frame(frame: Any, pandas: Any) -> Preview:
    rows, columns = frame.shape
    if _is_set(pandas, *LAYOUT_OPTIONS):
        return Preview(repr(frame))
    if rows <= MAX_ROWS and columns <= MAX_COLUMNS:
        # Like repr, but with all columns: repr drops those beyond the width of a terminal.
        width = pandas.get_option("display.max_colwidth")
        text = frame.to_string(max_colwidth=width) if rows and columns else repr(frame)
        if len(text) <= MAX_WHOLE_CHARS:
            return Preview(text)
    head = f"{type(frame).__name__}: {_count(rows, 'row')} x {_count(columns, 'column')}"
    types = _types([str(name) for name in frame.columns[: MAX_COLUMNS * 2]], frame.dtypes, columns)
    some = frame if rows <= HEAD_ROWS + TAIL_ROWS else frame.iloc[[*range(HEAD_ROWS), *range(rows - TAIL_ROWS, rows)]]
    shown = min(columns, MAX_COLUMNS)
    while True:
        text = some.to_string(max_cols=shown if shown < columns else None, **_formats(pandas))
        if len(head) + len(types) + len(text) <= PREVIEW_CHARS or shown <= 2:
            break
        shown -= 1 if shown <= 6 else 2
    return Preview("\n".join([head, types, *(_cut(line, MAX_LINE_CHARS) for line in _dotted(text, rows))]))


def _series(series: Any, pandas: Any) -> Preview:
    rows = len(series)
    if _is_set(pandas, "max_rows", "min_rows") or (rows <= MAX_ROWS and len(repr(series)) <= MAX_WHOLE_CHARS):
        return Preview(repr(series), _series_page(series))
    some = series if rows <= HEAD_ROWS + TAIL_ROWS else series.iloc[[*range(HEAD_ROWS), *range(rows - TAIL_ROWS, rows)]]
    name = "" if series.name is None else f" {_cut(str(series.name))!r}"
    head = f"{type(series).__name__}{name}: {_count(rows, 'row')}, {series.dtype}"
    formats = _formats(pandas)
    width = formats.pop("max_colwidth", MAX_CELL_CHARS)
    with pandas.option_context("display.max_colwidth", width):
        text = some.to_string(**formats)
    return Preview("\n".join([head, *_dotted(text, rows)]), _series_page(series))


def _series_page(series: Any) -> str | None:
    page: str | None = series.to_frame()._repr_html_()
    return page


def _index(index: Any, pandas: Any) -> Preview:
    if len(index) <= MAX_ROWS or _is_set(pandas, "max_seq_items"):
        return Preview(repr(index))
    with pandas.option_context("display.max_seq_items", 2 * HEAD_ROWS):
        return Preview(repr(index))


def _styled(styler: Any, module: Any) -> Preview:
    """Return the data of a styled table as text. Its HTML has the colours."""
    return Preview(_frame(styler.data, MODULES["pandas"]).text)


def _is_set(pandas: Any, *names: str) -> bool:
    """Return whether the user changed one of these options."""
    registered = MODULES["pandas._config.config"]._registered_options
    return any(
        pandas.get_option(f"display.{name}") != registered[f"display.{name}"].defval
        for name in names
        if f"display.{name}" in registered
    )


def _formats(pandas: Any) -> dict[str, Any]:
    formats: dict[str, Any] = {}
    if not _is_set(pandas, "precision", "float_format"):
        formats["float_format"] = _short_number
    if not _is_set(pandas, "max_colwidth"):
        formats["max_colwidth"] = MAX_CELL_CHARS
    return formats


def _short_number(number: float) -> str:
    """Return four digits, but never fewer than stand before the point, so that different rows look different."""
    if 1_000 <= abs(number) < 1_000_000_000:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:.4g}"


def _dotted(text: str, rows: int) -> list[str]:
    """Return the lines of the first and last rows with a mark in between."""
    lines = text.split("\n")
    if rows > HEAD_ROWS + TAIL_ROWS:
        lines.insert(len(lines) - TAIL_ROWS, "..")
    return lines


# --- polars, Arrow ---


def _polars_frame(frame: Any, polars: Any) -> Preview:
    if _polars_is_set(polars):
        return Preview(repr(frame))
    rows, columns = frame.shape
    if rows <= MAX_ROWS and columns <= MAX_COLUMNS and len(text := repr(frame)) <= MAX_WHOLE_CHARS:
        return Preview(text)
    some = frame if rows <= HEAD_ROWS + TAIL_ROWS else polars.concat([frame.head(HEAD_ROWS), frame.tail(TAIL_ROWS)])
    return Preview(_grid(type(frame).__name__, rows, list(frame.columns), list(frame.dtypes), some.rows))


def _polars_series(series: Any, polars: Any) -> Preview:
    if len(series) <= MAX_ROWS or _polars_is_set(polars):
        return Preview(repr(series))
    some = [*series.head(HEAD_ROWS), *series.tail(TAIL_ROWS)]
    cells = [_cell(each) for each in some]
    name = f" {_cut(series.name)!r}" if series.name else ""
    head = f"{type(series).__name__}{name}: {_count(len(series), 'row')}, {series.dtype}"
    return Preview("\n".join([head, *cells[:HEAD_ROWS], "..", *cells[HEAD_ROWS:]]))


def _polars_lazy(frame: Any, polars: Any) -> Preview:
    return Preview(repr(frame), ask=False)  # its HTML would run a program to draw the plan


def _polars_is_set(polars: Any) -> bool:
    state = polars.Config.state(if_set=True, env_only=True)
    return any(name.startswith("POLARS_FMT_") for name in state)


def _arrow(table: Any, pyarrow: Any) -> Preview:
    rows, columns = table.num_rows, table.num_columns
    few = rows <= HTML_ROWS
    head, tail = table.slice(0, rows if few else HEAD_ROWS), table.slice(rows if few else rows - TAIL_ROWS)

    def cells() -> list[tuple[Any, ...]]:
        parts = ([each.to_pylist() for each in part.columns] for part in (head, tail))
        return [row for columns in parts for row in zip(*columns, strict=True)]

    names = [str(name) for name in table.schema.names]
    text = _grid(type(table).__name__, rows, names, list(table.schema.types), cells)
    shown = names[:50]
    lines = ["".join(f"<td>{escape(_cell(each))}</td>" for each in row[:50]) for row in cells()]
    if not few:
        lines.insert(HEAD_ROWS, "<td>…</td>" * len(shown))
    header = "".join(f"<th>{escape(_cut(name))}</th>" for name in shown)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    page = f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table><p>{rows} x {columns}</p>"
    return Preview(text, page)


def _grid(kind: str, rows: int, names: list[str], types: list[Any], get: Callable[[], Any]) -> str:
    """Return a table as text with as many columns as fit."""
    columns = len(names)
    lines = [[_cell(each) for each in row] for row in get()]
    head = f"{kind}: {_count(rows, 'row')} x {_count(columns, 'column')}"
    typed = _types(names, types, columns)
    shown = min(columns, MAX_COLUMNS)
    while True:
        first, last = (shown, 0) if shown == columns else (shown - shown // 2, shown // 2)

        def pick(row: list[str], first: int = first, last: int = last) -> list[str]:
            return row if not last else [*row[:first], "...", *row[len(row) - last :]]

        picked = [pick([_cut(name) for name in names]), *(pick(line) for line in lines)]
        widths = [max(map(len, column)) for column in zip(*picked, strict=True)]
        text = [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in picked]
        if len(head) + len(typed) + sum(map(len, text)) + 8 <= PREVIEW_CHARS or shown <= 2:
            break
        shown -= 1 if shown <= 6 else 2
    if rows > HEAD_ROWS + TAIL_ROWS:
        text.insert(1 + HEAD_ROWS, "..")
    return "\n".join([head, typed, *text])


# --- numpy ---


def _array(array: Any, numpy: Any) -> Preview:
    options = numpy.get_printoptions()
    if array.size <= options["threshold"]:
        return Preview(repr(array))
    # Each further dimension multiplies the lines, so fewer items are shown.
    with numpy.printoptions(
        edgeitems=1 if array.ndim > 2 and options["edgeitems"] == DEFAULT_EDGE_ITEMS else options["edgeitems"]
    ):
        text = repr(array)
    # The first line has the shape already.
    text = text.replace(f", shape={array.shape}", "")
    return Preview(f"{type(array).__name__}: {' x '.join(map(str, array.shape))}, {array.dtype}\n{text}")


# --- texts ---


def _types(names: list[str], types: Any, count: int) -> str:
    """Return the types of the columns: once if all are equal, else by name as far as they fit."""
    kinds = [str(types.iloc[at] if hasattr(types, "iloc") else types[at]) for at in range(min(count, MAX_COLUMNS * 2))]
    if count and len(set(kinds)) == 1 and (count <= len(kinds) or _all_same(types)):
        return f"dtype: {kinds[0]}"
    text, shown = "dtypes:", 0
    for name, kind in zip(names, kinds, strict=False):
        more = f" {_cut(name)} {kind},"
        if len(text) + len(more) > MAX_TYPES_CHARS:
            break
        text += more
        shown += 1
    return text.rstrip(",") + (f", and {count - shown} more" if shown < count else "")


def _all_same(types: Any) -> bool:
    first, *rest = list(types)
    return all(each == first for each in rest)


def _cell(value: Any) -> str:
    if type(value) is float:
        return _short_number(value)
    return _cut(str(value).replace("\n", "\\n"))


def _cut(text: str, limit: int = MAX_CELL_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


LIBRARIES: tuple[tuple[str, tuple[tuple[str, Callable[[Any, Any], Preview]], ...]], ...] = (
    ("pandas", (("DataFrame", _frame), ("Series", _series), ("Index", _index))),
    ("pandas.io.formats.style", (("Styler", _styled),)),
    ("polars", (("DataFrame", _polars_frame), ("Series", _polars_series), ("LazyFrame", _polars_lazy))),
    ("pyarrow", (("Table", _arrow), ("RecordBatch", _arrow))),
    ("numpy", (("ndarray", _array),)),
)
