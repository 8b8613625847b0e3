"""Tables as a reader of text wants them: shape, types, the first rows and the last; whole when they are small.

pandas, polars, Arrow and numpy are looked at only where the session has imported them. Nothing is computed beyond a
few rows: a lazy frame stays lazy. A user who has set the options of his library sees what that library prints. Whatever
goes wrong in here costs the preview only.
"""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

from ingle_worker.display.import_hooks import MODULES, loaded

ROWS = 20
COLUMNS = 10
"""A table of so many rows and columns is shown whole, as its library prints it."""

WHOLE = 2_000
"""Characters of a table that is shown whole."""

BUDGET = 560
"""Characters of a preview, about: columns are left out until it fits."""

HEAD, TAIL = 3, 2
CELL = 24
"""Characters of one cell in a preview."""

LINE = 200
"""Characters of a line: a column's name alone may be longer."""

TYPES = 150
"""Characters for the types of the columns."""

HTML_ROWS = 5

EDGE = 3
"""What numpy shows at each end of a long dimension, unless the user has set it."""

LAYOUT = ("max_rows", "min_rows", "max_columns", "width", "expand_frame_repr", "large_repr", "show_dimensions")
"""Options of pandas with which a user says how much of a table he wants to see."""

_mro = type.__dict__["__mro__"].__get__


class Preview(NamedTuple):
    text: str
    html: str | None = None
    ask: bool = True
    """Whether the value's own methods are asked for more."""


def preview(value: Any, cls: type) -> Preview | None:
    """Text, and for those that have none of their own a page, of a table; None for what is no table."""
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
                except Exception as error:  # the border to the library, and to what a user has derived from it
                    return _fallback(value, cls, error)
    return None


def _fallback(value: Any, cls: type, error: Exception) -> Preview:
    try:
        return Preview(repr(value))
    except Exception:  # the border to the library, and to what a user has derived from it
        return Preview(f"<{cls.__name__} that cannot be shown: {type(error).__name__}>")


# --- pandas ---


def _frame(frame: Any, pandas: Any) -> Preview:
    rows, columns = frame.shape
    if _is_set(pandas, *LAYOUT):
        return Preview(repr(frame))
    if rows <= ROWS and columns <= COLUMNS:
        # As repr has it, but with all columns: repr leaves those out that are beyond the width of a terminal.
        width = pandas.get_option("display.max_colwidth")
        text = frame.to_string(max_colwidth=width) if rows and columns else repr(frame)
        if len(text) <= WHOLE:
            return Preview(text)
    head = f"{type(frame).__name__}: {_count(rows, 'row')} x {_count(columns, 'column')}"
    types = _types([str(name) for name in frame.columns[: COLUMNS * 2]], frame.dtypes, columns)
    some = frame if rows <= HEAD + TAIL else frame.iloc[[*range(HEAD), *range(rows - TAIL, rows)]]
    shown = min(columns, COLUMNS)
    while True:
        text = some.to_string(max_cols=shown if shown < columns else None, **_formats(pandas))
        if len(head) + len(types) + len(text) <= BUDGET or shown <= 2:
            break
        shown -= 1 if shown <= 6 else 2
    return Preview("\n".join([head, types, *(_cut(line, LINE) for line in _dotted(text, rows))]))


def _series(series: Any, pandas: Any) -> Preview:
    rows = len(series)
    if _is_set(pandas, "max_rows", "min_rows") or (rows <= ROWS and len(repr(series)) <= WHOLE):
        return Preview(repr(series), _series_page(series))
    some = series if rows <= HEAD + TAIL else series.iloc[[*range(HEAD), *range(rows - TAIL, rows)]]
    name = "" if series.name is None else f" {_cut(str(series.name))!r}"
    head = f"{type(series).__name__}{name}: {_count(rows, 'row')}, {series.dtype}"
    formats = _formats(pandas)
    width = formats.pop("max_colwidth", CELL)
    with pandas.option_context("display.max_colwidth", width):
        text = some.to_string(**formats)
    return Preview("\n".join([head, *_dotted(text, rows)]), _series_page(series))


def _series_page(series: Any) -> str | None:
    page: str | None = series.to_frame()._repr_html_()
    return page


def _index(index: Any, pandas: Any) -> Preview:
    if len(index) <= ROWS or _is_set(pandas, "max_seq_items"):
        return Preview(repr(index))
    with pandas.option_context("display.max_seq_items", 2 * HEAD):
        return Preview(repr(index))


def _styled(styler: Any, module: Any) -> Preview:
    """Its page has the colours; whoever reads text wants the data."""
    return Preview(_frame(styler.data, MODULES["pandas"]).text)


def _is_set(pandas: Any, *names: str) -> bool:
    """Whether the user has set one of these options himself."""
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
        formats["max_colwidth"] = CELL
    return formats


def _short_number(number: float) -> str:
    """Four digits, but never fewer than stand before the point: rows that differ shall not look alike."""
    if 1_000 <= abs(number) < 1_000_000_000:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:.4g}"


def _dotted(text: str, rows: int) -> list[str]:
    """Lines of the first and last rows, with a mark between them."""
    lines = text.split("\n")
    if rows > HEAD + TAIL:
        lines.insert(len(lines) - TAIL, "..")
    return lines


# --- polars, Arrow ---


def _polars_frame(frame: Any, polars: Any) -> Preview:
    if _polars_is_set(polars):
        return Preview(repr(frame))
    rows, columns = frame.shape
    if rows <= ROWS and columns <= COLUMNS and len(text := repr(frame)) <= WHOLE:
        return Preview(text)
    some = frame if rows <= HEAD + TAIL else polars.concat([frame.head(HEAD), frame.tail(TAIL)])
    return Preview(_grid(type(frame).__name__, rows, list(frame.columns), list(frame.dtypes), some.rows))


def _polars_series(series: Any, polars: Any) -> Preview:
    if len(series) <= ROWS or _polars_is_set(polars):
        return Preview(repr(series))
    some = [*series.head(HEAD), *series.tail(TAIL)]
    cells = [_cell(each) for each in some]
    name = f" {_cut(series.name)!r}" if series.name else ""
    head = f"{type(series).__name__}{name}: {_count(len(series), 'row')}, {series.dtype}"
    return Preview("\n".join([head, *cells[:HEAD], "..", *cells[HEAD:]]))


def _polars_lazy(frame: Any, polars: Any) -> Preview:
    return Preview(repr(frame), ask=False)  # its page would run a program to draw the plan


def _polars_is_set(polars: Any) -> bool:
    state = polars.Config.state(if_set=True, env_only=True)
    return any(name.startswith("POLARS_FMT_") for name in state)


def _arrow(table: Any, pyarrow: Any) -> Preview:
    rows, columns = table.num_rows, table.num_columns
    few = rows <= HTML_ROWS
    head, tail = table.slice(0, rows if few else HEAD), table.slice(rows if few else rows - TAIL)

    def cells() -> list[tuple[Any, ...]]:
        return [
            tuple(row) for part in (head, tail) for row in zip(*(_values(each) for each in part.columns), strict=True)
        ]

    names = [str(name) for name in table.schema.names]
    text = _grid(type(table).__name__, rows, names, list(table.schema.types), cells)
    shown = names[:50]
    lines = ["".join(f"<td>{escape(_cell(each))}</td>" for each in row[:50]) for row in cells()]
    if not few:
        lines.insert(HEAD, "<td>…</td>" * len(shown))
    header = "".join(f"<th>{escape(_cut(name))}</th>" for name in shown)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    page = f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table><p>{rows} x {columns}</p>"
    return Preview(text, page)


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _grid(kind: str, rows: int, names: list[str], types: list[Any], get: Callable[[], Any]) -> str:
    """A table of text, with as many columns as fit."""
    columns = len(names)
    lines = [[_cell(each) for each in row] for row in get()]
    head = f"{kind}: {_count(rows, 'row')} x {_count(columns, 'column')}"
    typed = _types(names, types, columns)
    shown = min(columns, COLUMNS)
    while True:
        first, last = (shown, 0) if shown == columns else (shown - shown // 2, shown // 2)

        def pick(row: list[str], first: int = first, last: int = last) -> list[str]:
            return row if not last else [*row[:first], "...", *row[len(row) - last :]]

        picked = [pick([_cut(name) for name in names]), *(pick(line) for line in lines)]
        widths = [max(map(len, column)) for column in zip(*picked, strict=True)]
        text = [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in picked]
        if len(head) + len(typed) + sum(map(len, text)) + 8 <= BUDGET or shown <= 2:
            break
        shown -= 1 if shown <= 6 else 2
    if rows > HEAD + TAIL:
        text.insert(1 + HEAD, "..")
    return "\n".join([head, typed, *text])


# --- numpy ---


def _array(array: Any, numpy: Any) -> Preview:
    options = numpy.get_printoptions()
    if array.size <= options["threshold"]:
        return Preview(repr(array))
    # With every further dimension three at each end become nine times as many lines.
    with numpy.printoptions(edgeitems=1 if array.ndim > 2 and options["edgeitems"] == EDGE else options["edgeitems"]):
        text = repr(array)
    # The first line says it, also where the library does not.
    text = text.replace(f", shape={array.shape}", "")
    return Preview(f"{type(array).__name__}: {' x '.join(map(str, array.shape))}, {array.dtype}\n{text}")


# --- words ---


def _types(names: list[str], types: Any, count: int) -> str:
    """The columns' types: once where they are all the same, else by name as far as there is room."""
    kinds = [str(types.iloc[at] if hasattr(types, "iloc") else types[at]) for at in range(min(count, COLUMNS * 2))]
    if count and len(set(kinds)) == 1 and (count <= len(kinds) or _all_same(types)):
        return f"dtype: {kinds[0]}"
    text, shown = "dtypes:", 0
    for name, kind in zip(names, kinds, strict=False):
        more = f" {_cut(name)} {kind},"
        if len(text) + len(more) > TYPES:
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


def _cut(text: str, limit: int = CELL) -> str:
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
