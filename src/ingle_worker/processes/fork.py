"""Fork of a session's process from an interpreter with one thread.

Python's own work after a fork writes to a hundred shared pages and takes half a millisecond. With one thread no lock is
held, so nearly all of that work is unnecessary. Fork hooks of other libraries are called as Python calls them.
"""

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ingle_worker.processes import clone, linux

Hook = Callable[[], Any] | None

_before: list[Hook] = []
_in_parent: list[Hook] = []
_in_child: list[Hook] = []

TWISTER_WORDS = 624
"""Size of a Mersenne Twister's state, also its index when all words are used up. numpy's legacy functions use it."""

_has_threads = False
"""Whether a preloaded library started threads. A forked child has none of them."""

_reseed_random: Callable[[], Any] = super(random.Random, random._inst).seed
"""The effect of random.seed() with fewer pages touched."""

_update_thread_id: Callable[[], Any] = threading.main_thread()._set_native_id  # type: ignore[attr-defined]


@contextlib.contextmanager
def record_fork_hooks() -> Iterator[None]:
    """Record the fork hooks that libraries register in this block, except those of Python itself."""
    # The `os` module that everybody uses: the guest has a private copy.
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
        random.seed()  # also resets cached values
        global _has_threads
        _has_threads = len(sys._current_frames()) > 1
        _update_thread_id()  # once here, so that forks share the lookups


def reseed() -> None:
    """Reseed all generators. Called in each process that one session is forked from, so that sessions differ."""
    _reseed_random()
    reseed_numpy()


def reseed_numpy() -> None:
    """Reseed numpy's legacy generator after a fork. Python reseeds `random` itself after a plain fork."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    try:
        # Set a whole random state: numpy.random.seed() takes three times as long for the same effect.
        numpy: Any = sys.modules["numpy"]
        key = numpy.frombuffer(os.urandom(4 * TWISTER_WORDS), numpy.uint32)
        numpy_random.set_state(("MT19937", key, TWISTER_WORDS, 0, 0.0))
    except Exception:  # library code: another generator, or another numpy
        numpy_random.seed()


def fork(group: int = -1) -> int:
    """Fork like os.fork(), but without reseeding random generators (see `reseed`).

    `group` is the folder of a cgroup in which the child starts, if `can_fork_into` returns True.
    """
    pid = os.fork() if _has_threads else _fork_single(group)
    if pid == 0:
        _update_thread_id()
    return pid


def can_fork_into() -> bool:
    return not _has_threads and clone.can_clone()


def _fork_single(group: int) -> int:
    if _before:
        _call(_before)
    try:
        pid = linux.fork_bare() if group < 0 else clone.fork_into(group)
    except OSError:
        _call(_in_parent)
        raise
    hooks = _in_parent if pid else _in_child
    if hooks:
        _call(hooks)
    return pid


def _call(hooks: list[Hook]) -> None:
    for hook in hooks:
        if hook is not None:
            with contextlib.suppress(Exception):  # library code: Python ignores errors of hooks too
                hook()
