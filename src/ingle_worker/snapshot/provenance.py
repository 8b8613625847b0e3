"""Which cell made what a name stands for; and, where whoever loads a snapshot asks for it, that cell run once more.

The code of the cells that have run stays in memory, within a bound. It is looked at only in a copy of the session that
is being saved, for names that cannot be: those that a cell binds by itself, not through what it calls. A cell that
runs again gives only what is missing; names that were loaded keep what they have.
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

KEPT = 1 << 20
"""Characters of code that are kept; the oldest cells are forgotten first."""

EACH = 200
"""What a cell counts for besides its text."""

PATIENCE = 60
"""Seconds for one cell that is run again."""

SHOWN = 300
"""Characters that are told of what it prints."""

_cells: deque[tuple[str, str, bool]] = deque()
"""From the oldest to the newest: the name of its code, its text, and whether it came to its end."""
_size = 0


class TooLong(BaseException):
    """A cell that was run again did not come to its end. No handler for mere errors should catch it."""


def note(filename: str, code: str, ended_well: bool) -> None:
    """A cell has run."""
    global _size
    _cells.append((filename, code, ended_well))
    _size += len(code) + EACH
    while _size > KEPT:
        _size -= len(_cells.popleft()[1]) + EACH


def forget() -> None:
    global _size
    _cells.clear()
    _size = 0


def find(names: Iterable[str], flags: int) -> dict[str, tuple[str, str]]:
    """For each of these names, as far as it can be told: the cell that bound it last, and its text."""
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
        # Of one that failed nobody knows how far it came: then it is not told who made it.
    return found


def order(files: Iterable[str]) -> list[str]:
    """Names of cells' code, in the order in which they ran."""
    sought = set(files)
    # Once each: a cell is run again once.
    return list(dict.fromkeys(filename for filename, _, _ in _cells if filename in sought))


def bound_by(code: str, flags: int) -> set[str]:
    """The names that a cell binds itself."""
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


class Again:
    """Cells that are run again after a load."""

    def __init__(self, space: dict[str, Any], compiler: Compiler, run: Callable[[Compiled], None]) -> None:
        self._space = space
        self._loaded = dict(space)
        self._compiler = compiler
        self._run = run

    def make(self, cell: str, filename: str, code: str, missing: set[str]) -> str:
        """Run one for what is missing; a sentence of what came of it."""
        told = f"{cell} was run again"
        out = io.StringIO()
        before = dict(self._space)
        problem = self._attempt(filename, code, out)
        self._put_back(missing)
        there = missing & self._space.keys()
        made = sorted(name for name in there if name not in before or before[name] is not self._space[name])
        told += f" for {', '.join(made)}" if made else ""
        if problem:
            told += f", and failed: {problem}"
        if printed := out.getvalue().strip():
            told += f"; it printed {printed[:SHOWN]!r}" + ("…" if len(printed) > SHOWN else "")
        if made:
            traceback_text.remember_source(filename, code)
            note(filename, code, True)
        return told

    def _attempt(self, filename: str, code: str, out: io.StringIO) -> str:
        """What went wrong, in a line."""
        me = os.getpid()
        streams = (sys.stdin, sys.stdout, sys.stderr, sys.displayhook)
        on_alarm = _signal.getsignal(_signal.SIGALRM)

        def stop(number: int, frame: object) -> None:
            raise TooLong(f"it took longer than {PATIENCE} s")

        _signal.signal(_signal.SIGALRM, stop)
        try:
            sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, out
            sys.displayhook = _show_nothing
            try:
                _signal.alarm(PATIENCE)
                self._run(self._compiler.compile(code, filename))
            finally:
                _signal.alarm(0)
        except BaseException as error:  # the border to the user's code
            raised = traceback_text.bare(error)
            return f"{raised.name}: {raised.value}"[:SHOWN]
        finally:
            if os.getpid() != me:
                os._exit(1)  # a process that it forked, and that came back here
            _signal.signal(_signal.SIGALRM, on_alarm if on_alarm is not None else _signal.SIG_DFL)
            sys.stdin, sys.stdout, sys.stderr, sys.displayhook = streams
        return ""

    def _put_back(self, missing: set[str]) -> None:
        space = self._space
        for name in [name for name in space if name not in self._loaded and name not in missing]:
            del space[name]
        space.update(self._loaded)


def _show_nothing(value: object) -> None:
    """The value of a cell that is run again is nobody's."""
