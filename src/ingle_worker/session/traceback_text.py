"""Text of an exception for people and models: frames of the user only, with source lines.

Debuggers and printed stacks show frames of the user only, too: `traceback`, `inspect`, `bdb` and `pdb` are extended.
Sources of cells are in `linecache` under `<cell 12>`, where `traceback`, `pdb` and `inspect` find them.
"""

import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ingle_worker.wire.messages import Raised

GUEST_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
RUNS_CELLS = os.path.join(GUEST_FOLDER, "session", "evaluate.py")
"""The module whose frames call the code of cells."""

MAX_VALUE_CHARS = 100_000
MAX_TRACEBACK_CHARS = 1_000_000


def remember_source(filename: str, code: str) -> None:
    # Split lines as the compiler does, not like str.splitlines(). End the last one with a newline, or carets are a
    # column off. Without a modification time the entry survives linecache.checkcache().
    if "\n" not in code and "\r" not in code:
        linecache.cache[filename] = (len(code), None, [code + "\n"], filename)
        return
    text = code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")]
    linecache.cache[filename] = (len(code), None, lines, filename)


def forget_sources() -> None:
    """Forget the sources of all cells."""
    for filename in [name for name in list(linecache.cache) if name.startswith("<cell ")]:
        forget_source(filename)


def forget_source(filename: str) -> None:
    linecache.cache.pop(filename, None)


def strip(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside of the guest."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(GUEST_FOLDER):
        tb = tb.tb_next
    return tb


def _drop_guest_frames(report: traceback.TracebackException, seen: set[int]) -> None:
    if id(report) in seen:
        return
    seen.add(id(report))
    if report.stack:
        report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith(GUEST_FOLDER)]
    parts = [report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())]
    for part in parts:
        if part is not None:
            _drop_guest_frames(part, seen)


def describe(exc: BaseException) -> Raised:
    """Return name, value and traceback of an exception. May run its `__str__`."""
    tb = strip(exc.__traceback__)
    exc.__traceback__ = tb
    _remember_as_last(exc, tb)
    name = type(exc).__qualname__ if type(exc).__module__ in ("builtins", "__main__") else _full_name(type(exc))
    # Before `traceback` does: it swallows an interrupt during __str__.
    value = _shorten(_value(exc), MAX_VALUE_CHARS)
    try:
        report = traceback.TracebackException(type(exc), exc, tb, compact=True)
        _drop_guest_frames(report, set())
        lines = report.format() if report.stack else _without_stack(report)
        text = "".join(lines)
    except RecursionError:
        text = "".join(traceback.format_exception_only(type(exc), exc))
    return Raised(name, value, _shorten(text, MAX_TRACEBACK_CHARS))


def _without_stack(report: traceback.TracebackException) -> Any:
    if report.__cause__ is None and (report.__context__ is None or report.__suppress_context__):
        return report.format_exception_only()
    return report.format()


def bare(exc: BaseException, *, ask: bool = True) -> Raised:
    """Describe an exception for which `describe` failed, because of its own methods or a library that the user changed.

    Without `ask` not even its `__str__` is called, because that was interrupted before.
    """
    name = type(exc).__name__
    value = "<interrupted while it was described>"
    if ask:
        try:
            value = _shorten(_value(exc), MAX_VALUE_CHARS)
        except BaseException:  # user code: __str__ may raise anything
            value = ""
    lines = []
    tb = strip(exc.__traceback__)
    while tb is not None:
        code = tb.tb_frame.f_code
        if not code.co_filename.startswith(GUEST_FOLDER):
            lines.append(f'  File "{code.co_filename}", line {tb.tb_lineno}, in {code.co_name}\n')
        tb = tb.tb_next
    if lines:
        lines.insert(0, "Traceback (most recent call last):\n")
    return Raised(name, value, _shorten("".join(lines), MAX_TRACEBACK_CHARS) + f"{name}: {value}\n")


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _value(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # user code: an exception may have any __str__
        return "<exception str() failed>"


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 35 // 100, limit * 65 // 100
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def _remember_as_last(exc: BaseException, tb: TracebackType | None) -> None:
    """Set `sys.last_exc` and the like, for `pdb.pm()` and others."""
    sys.last_exc = exc  # type: ignore[attr-defined]
    sys.last_type, sys.last_value, sys.last_traceback = type(exc), exc, tb


# --- inspect.getsource for classes of a cell ---------------------------------------------------------------

_getfile = inspect.getfile


def _getfile_of_cells(obj: Any) -> str:
    """Extend `inspect.getfile` to classes of `__main__` made in cells and in the library."""
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


# --- stacks and debuggers ----------------------------------------------------------------------------------

_walk_stack = traceback.walk_stack
_getouterframes = inspect.getouterframes
Entry = TypeVar("Entry")


def _users(entries: Iterable[Entry], frame_of: Any) -> Iterator[Entry]:
    """Yield the entries of a stack, innermost first, that belong to the running cell and not to the guest."""
    for entry in entries:
        filename = frame_of(entry).f_code.co_filename
        if filename == RUNS_CELLS:
            return
        if not filename.startswith(GUEST_FOLDER):
            yield entry


def _walk_users_stack(f: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    # Without a frame, `traceback` counts its callers, and a wrapper would be one more.
    return _walk_stack(f) if f is None else _users(_walk_stack(f), lambda entry: entry[0])


def _users_outer_frames(frame: Any, context: int = 1) -> list[Any]:
    return list(_users(_getouterframes(frame, context), lambda entry: entry[0]))


def extend_bdb(bdb: Any) -> None:
    """Keep debuggers out of the guest: its frames are neither listed nor stepped into."""
    get_stack, stop_here = bdb.Bdb.get_stack, bdb.Bdb.stop_here

    def get_users_stack(self: Any, f: Any, t: Any) -> tuple[list[Any], int]:
        stack, place = get_stack(self, f, t)
        shown = list(_users(reversed(stack), lambda entry: entry[0]))[::-1]
        return (shown, place - (len(stack) - len(shown))) if shown else (stack, place)

    def stop_at_users(self: Any, frame: Any) -> bool:
        return not frame.f_code.co_filename.startswith(GUEST_FOLDER) and bool(stop_here(self, frame))

    bdb.Bdb.get_stack, bdb.Bdb.stop_here = get_users_stack, stop_at_users


def extend_pdb(pdb: Any) -> None:
    """Have an interrupt at the prompt of `pdb` end the cell. By default `pdb` would only ask again."""
    pdb.Pdb._cmdloop = lambda self: self.cmdloop()


def end_stepping() -> None:
    """End the steps of a debugger with the cell, or the debugger would stop in the next one."""
    debugger: Any = getattr(sys.gettrace(), "__self__", None)
    bdb = sys.modules.get("bdb")
    # -1: it goes on to the next breakpoint.
    if isinstance(debugger, getattr(bdb, "Bdb", ())) and getattr(debugger, "stoplineno", 0) != -1:
        sys.settrace(None)


def install() -> None:
    inspect.getfile = _getfile_of_cells  # type: ignore[assignment]
    inspect.getouterframes = _users_outer_frames
    # The module that cells import; the guest has a private copy.
    sys.modules["traceback"].walk_stack = _walk_users_stack  # type: ignore[attr-defined]
