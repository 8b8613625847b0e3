"""Graceful end of a session: all that Python does at exit, except destroying the interpreter.

Non-daemon threads are joined, exit handlers run, and the namespace is emptied so that finalizers run. Their output
belongs to the last cell. The host bounds the time.
"""

import atexit
import gc
import sys
import threading
import types
from collections.abc import Callable

from ingle_worker.session import traceback_text
from ingle_worker.session.event_loop import EventLoop


def exit_code(exc: SystemExit) -> tuple[int, str | None]:
    """Return the exit code and message of a SystemExit, as Python would."""
    code = exc.code
    if code is None:
        return 0, None
    if isinstance(code, int):
        return code & 0xFF, None
    try:
        return 1, str(code)
    except Exception:  # user code: any object may be the exit code
        return 1, "<exit message could not be created>"


def finish(main: types.ModuleType, event_loop: EventLoop, spare: dict[str, int]) -> None:
    """Run all steps of the exit. Objects in `spare`, by name and id, belong to another session too and stay."""
    for step in (
        event_loop.close,
        threading._shutdown,  # type: ignore[attr-defined]
        atexit._run_exitfuncs,
        lambda: _empty_namespace(main, spare),
        gc.collect,
        lambda: _flush(),
    ):
        _run_step(step)


def _run_step(step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException as exc:  # user code: an exit handler may raise anything
        try:
            sys.__stderr__.write(traceback_text.describe(exc).traceback)  # type: ignore[union-attr]
        except Exception:
            return


def _empty_namespace(main: types.ModuleType, spare: dict[str, int]) -> None:
    """Drop the user's names, those with an underscore first, as Python does."""
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
