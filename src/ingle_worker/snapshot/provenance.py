"""Record of which cell bound which name, and the rerun of such cells after a load.

The code of past cells stays in memory, within a bound. It is used only in a copy that is being saved, for names that
cannot be saved. Only names bound by the cell itself count. A rerun sets only missing names; loaded ones keep their
value.
"""

import _signal  # type: ignore[import-not-found]
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ingle_worker.session import traceback_text
from ingle_worker.session.compiler import SYNTAX_ERRORS, Compiled, Compiler

MAX_CODE_CHARS = 1 << 20
"""Maximum characters of code in memory. The oldest cells are dropped first."""

CELL_OVERHEAD_CHARS = 200
"""Characters that a cell counts for besides its text."""

RERUN_SECONDS = 60
"""Seconds for the rerun of one cell."""

MAX_SHOWN_CHARS = 300
"""Maximum characters of its output in the notice."""

_cells: deque[tuple[str, str, bool]] = deque()
"""Oldest first: the file name of its code, its text, and whether it succeeded."""
_size = 0


class TooLong(BaseException):
    """A rerun took too long. It is no Exception, so that handlers of the cell do not catch it."""


def note(filename: str, code: str, ended_well: bool) -> None:
    """Record a cell that has run."""
    global _size
    _cells.append((filename, code, ended_well))
    _size += len(code) + CELL_OVERHEAD_CHARS
    while _size > MAX_CODE_CHARS:
        _size -= len(_cells.popleft()[1]) + CELL_OVERHEAD_CHARS


def forget() -> None:
    global _size
    _cells.clear()
    _size = 0


def find(names: Iterable[str], flags: int) -> dict[str, tuple[str, str]]:
    """Return the cell that bound each name last, and its text, as far as known."""
    found: dict[str, tuple[str, str]] = {}
    sought = set(names)
    for filename, code, ended_well in reversed(_cells):
        if not sought:
            break
        here = {name for name in sought if name in code}
        if not here:
            continue
        here &= bound_by(code, flags)
        sought -= here
        if ended_well:
            found.update(dict.fromkeys(here, (filename, code)))
        # How far a failed cell came is unknown, so it counts as no maker.
    return found


def order(files: Iterable[str]) -> list[str]:
    """Return these cells in the order in which they ran."""
    sought = set(files)
    # Each only once.
    return list(dict.fromkeys(filename for filename, _, _ in _cells if filename in sought))


def bound_by(code: str, flags: int) -> set[str]:
    """Return the names that a cell binds itself."""
    import dis

    compiler = Compiler()
    compiler.flags = flags
    try:
        compiled = compiler.compile(code, "<cell>")
    except SYNTAX_ERRORS:
        return set()
    codes = [each for each in (compiled.body, compiled.last) if each is not None]
    return {
        each.argval
        for one in codes
        for each in dis.get_instructions(one)
        if each.opname in ("STORE_NAME", "STORE_GLOBAL")
    }


class Rerun:
    """Rerun of cells after a load."""

    def __init__(self, space: dict[str, Any], compiler: Compiler, run: Callable[[Compiled], None]) -> None:
        self._space = space
        self._loaded = dict(space)
        self._compiler = compiler
        self._run = run

    def run(self, cell: str, filename: str, code: str, missing: set[str]) -> str:
        """Run one cell for the missing names and return a sentence about the result."""
        sentence = f"{cell} was run again"
        out = io.StringIO()
        before = dict(self._space)
        problem = self._attempt(filename, code, out)
        self._restore(missing)
        there = missing & self._space.keys()
        made = sorted(name for name in there if name not in before or before[name] is not self._space[name])
        sentence += f" for {', '.join(made)}" if made else ""
        if problem:
            sentence += f", and failed: {problem}"
        if printed := out.getvalue().strip():
            sentence += f"; it printed {printed[:MAX_SHOWN_CHARS]!r}" + ("…" if len(printed) > MAX_SHOWN_CHARS else "")
        if made:
            traceback_text.remember_source(filename, code)
            note(filename, code, True)
        return sentence

    def _attempt(self, filename: str, code: str, out: io.StringIO) -> str:
        """Run the cell and return the problem in one line, or ""."""
        me = os.getpid()
        streams = (sys.stdin, sys.stdout, sys.stderr, sys.displayhook)
        on_alarm = _signal.getsignal(_signal.SIGALRM)

        def stop(number: int, frame: object) -> None:
            raise TooLong(f"it took longer than {RERUN_SECONDS} s")

        _signal.signal(_signal.SIGALRM, stop)
        try:
            sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, out
            sys.displayhook = _show_nothing
            try:
                _signal.alarm(RERUN_SECONDS)
                self._run(self._compiler.compile(code, filename))
            finally:
                _signal.alarm(0)
        except BaseException as error:  # user code
            raised = traceback_text.bare(error)
            return f"{raised.name}: {raised.value}"[:MAX_SHOWN_CHARS]
        finally:
            if os.getpid() != me:
                os._exit(1)  # a process that the cell forked returned here
            _signal.signal(_signal.SIGALRM, on_alarm if on_alarm is not None else _signal.SIG_DFL)
            sys.stdin, sys.stdout, sys.stderr, sys.displayhook = streams
        return ""

    def _restore(self, missing: set[str]) -> None:
        space = self._space
        for name in [name for name in space if name not in self._loaded and name not in missing]:
            del space[name]
        space.update(self._loaded)


def _show_nothing(value: object) -> None:
    """Ignore the value of a cell in a rerun."""
