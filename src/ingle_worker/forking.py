"""Forking a session's process off an interpreter with one thread.

Python's own work after a fork (new locks, lists of threads, what its library has registered) writes to a hundred pages
that the child would otherwise share, and takes half a millisecond. With one thread no lock is held, so nearly all of
it is for nothing. What other libraries have registered is called as Python would.
"""

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ingle_worker import kernel

Hook = Callable[[], Any] | None

_before: list[Hook] = []
_in_parent: list[Hook] = []
_in_child: list[Hook] = []


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """While libraries are loaded: notice what they register, those of Python itself aside."""
    # That of everybody: the guest has a copy of its own.
    theirs = sys.modules["os"]
    register = os.register_at_fork

    def register_at_fork(*, before: Hook = None, after_in_parent: Hook = None, after_in_child: Hook = None) -> None:
        given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        register(**{name: hook for name, hook in given.items() if hook is not None})
        if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] not in sys.stdlib_module_names:
            _before.insert(0, before)
            _in_parent.append(after_in_parent)
            _in_child.append(after_in_child)

    theirs.register_at_fork = register_at_fork  # type: ignore[attr-defined]
    try:
        yield
    finally:
        theirs.register_at_fork = register  # type: ignore[attr-defined]


def fork() -> int:
    """As os.fork()."""
    if len(sys._current_frames()) > 1:
        # A library that was loaded beforehand has begun threads, of which the child has none.
        pid = os.fork()
    else:
        pid = _fork_single()
    if pid == 0:
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    return pid


def _fork_single() -> int:
    _call(_before)
    try:
        pid = kernel.fork_bare()
    except OSError:
        _call(_in_parent)
        raise
    if pid:
        _call(_in_parent)
    else:
        random.seed()
        _call(_in_child)
    return pid


def _call(hooks: list[Hook]) -> None:
    for hook in hooks:
        if hook is not None:
            with contextlib.suppress(Exception):  # the border to libraries: Python goes on as well
                hook()
