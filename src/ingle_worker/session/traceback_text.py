"""What a person or a model reads of an exception: the user's frames only, with their source lines.

Sources of cells are kept in `linecache` under `<cell 12>`, where `traceback`, `pdb` and `inspect` look for them.
"""

import inspect
import linecache
import os
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from ingle_worker.wire.messages import Raised

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MAX_VALUE = 100_000
MAX_TRACEBACK = 1_000_000


def cell_name(cell: int) -> str:
    return f"<cell {cell}>"


def remember_source(filename: str, code: str) -> None:
    # Lines end where the compiler ends them, which is in fewer places than str.splitlines() does; and the last one
    # ends like the others, or carets come out a column too far. Without a modification time the entry survives
    # linecache.checkcache().
    if "\n" not in code and "\r" not in code:
        linecache.cache[filename] = (len(code), None, [code + "\n"], filename)
        return
    text = code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")]
    linecache.cache[filename] = (len(code), None, lines, filename)


def forget_sources() -> None:
    """All cells: what they defined is gone."""
    for filename in [name for name in list(linecache.cache) if name.startswith("<cell ")]:
        forget_source(filename)


def forget_source(filename: str) -> None:
    linecache.cache.pop(filename, None)


def strip(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the guest's."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(HOME):
        tb = tb.tb_next
    return tb


def _drop_guest_frames(report: traceback.TracebackException, seen: set[int]) -> None:
    if id(report) in seen:
        return
    seen.add(id(report))
    if report.stack:
        report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith(HOME)]
    parts = [report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())]
    for part in parts:
        if part is not None:
            _drop_guest_frames(part, seen)


def describe(exc: BaseException) -> Raised:
    """The exception as name, value and traceback. May run the exception's own `__str__`."""
    tb = strip(exc.__traceback__)
    exc.__traceback__ = tb
    _remember_as_last(exc, tb)
    name = type(exc).__qualname__ if type(exc).__module__ in ("builtins", "__main__") else _full_name(type(exc))
    # Asked before `traceback` asks: that one swallows an interrupt which comes while __str__ runs.
    value = _shorten(_value(exc), MAX_VALUE)
    try:
        report = traceback.TracebackException(type(exc), exc, tb, compact=True)
        _drop_guest_frames(report, set())
        lines = report.format() if report.stack else _without_stack(report)
        text = "".join(lines)
    except RecursionError:
        text = "".join(traceback.format_exception_only(type(exc), exc))
    return Raised(name, value, _shorten(text, MAX_TRACEBACK))


def _without_stack(report: traceback.TracebackException) -> Any:
    if report.__cause__ is None and (report.__context__ is None or report.__suppress_context__):
        return report.format_exception_only()
    return report.format()


def bare(exc: BaseException, *, ask: bool = True) -> Raised:
    """For when describing failed, be it by the exception's own methods or by a library that the user has changed.

    Without `ask` not even the exception's `__str__` is called: it was interrupted before.
    """
    name = type(exc).__name__
    value = "<interrupted while it was described>"
    if ask:
        try:
            value = _shorten(_value(exc), MAX_VALUE)
        except BaseException:  # the border to the cell: __str__ may raise anything
            value = ""
    lines = []
    tb = strip(exc.__traceback__)
    while tb is not None:
        code = tb.tb_frame.f_code
        if not code.co_filename.startswith(HOME):
            lines.append(f'  File "{code.co_filename}", line {tb.tb_lineno}, in {code.co_name}\n')
        tb = tb.tb_next
    if lines:
        lines.insert(0, "Traceback (most recent call last):\n")
    return Raised(name, value, _shorten("".join(lines), MAX_TRACEBACK) + f"{name}: {value}\n")


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _value(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # the border to the cell: an exception may have any __str__
        return "<exception str() failed>"


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 35 // 100, limit * 65 // 100
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def _remember_as_last(exc: BaseException, tb: TracebackType | None) -> None:
    """For `pdb.pm()` and whoever else looks there."""
    sys.last_exc = exc  # type: ignore[attr-defined]
    sys.last_type, sys.last_value, sys.last_traceback = type(exc), exc, tb


# --- inspect.getsource for classes of a cell ---------------------------------------------------------------

_getfile = inspect.getfile


def _getfile_of_cells(obj: Any) -> str:
    """`inspect.getfile`, which knows no file for classes of `__main__`, extended to those made in cells and library."""
    try:
        return _getfile(obj)
    except (OSError, TypeError):
        if not inspect.isclass(obj) or obj.__module__ != "__main__":
            raise
        pattern = re.compile(rf"^\s*class\s+{re.escape(obj.__name__)}\b", re.MULTILINE)
        for filename, entry in reversed(list(linecache.cache.items())):
            if filename.startswith(("<cell ", "<stdlib>")) and len(entry) == 4 and pattern.search("".join(entry[2])):
                return filename
        raise


def install() -> None:
    inspect.getfile = _getfile_of_cells  # type: ignore[assignment]
