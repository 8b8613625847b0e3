"""The orderly end of a session: what Python itself does when an interpreter exits, but for tearing itself down.

Non-daemon threads are joined, exit handlers run, and the user's namespace is emptied so that finalizers run; what
they print is still the last cell's output. The host bounds the time for all of it.
"""

import atexit
import gc
import sys
import threading
import types
from collections.abc import Callable

from ingle_worker.session import traceback_text
from ingle_worker.session.event_loop import Looping


def exit_code(exc: SystemExit) -> tuple[int, str | None]:
    """The process's exit code and the message, as the interpreter understands `SystemExit`."""
    code = exc.code
    if code is None:
        return 0, None
    if isinstance(code, int):
        return code & 0xFF, None
    try:
        return 1, str(code)
    except Exception:  # the border to the cell: any object may be the code
        return 1, "<exit message could not be made>"


def finish(main: types.ModuleType, looping: Looping, spare: dict[str, int]) -> None:
    """What the spared names stand for, by its id, is not touched: it belongs to another session too."""
    for step in (
        looping.close,
        threading._shutdown,  # type: ignore[attr-defined]
        atexit._run_exitfuncs,
        lambda: _empty(main, spare),
        gc.collect,
        lambda: _flush(),
    ):
        _attempt(step)


def _attempt(step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException as exc:  # the border to the cell: an exit handler may raise anything
        try:
            sys.__stderr__.write(traceback_text.describe(exc).traceback)  # type: ignore[union-attr]
        except Exception:
            return


def _empty(main: types.ModuleType, spare: dict[str, int]) -> None:
    """Drop the user's names, those that start with an underscore first, as the interpreter does."""
    space = vars(main)
    names = [
        name
        for name, value in space.items()
        if isinstance(name, str) and name != "__builtins__" and spare.get(name) != id(value)
    ]
    for name in sorted(names, key=lambda name: not (name.startswith("_") and not name.startswith("__"))):
        space[name] = None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
