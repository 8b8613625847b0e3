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

from ingle_worker.processes import clone, linux

Hook = Callable[[], Any] | None

_before: list[Hook] = []
_in_parent: list[Hook] = []
_in_child: list[Hook] = []

TWISTER_WORDS = 624
"""The state of a Mersenne Twister, which numpy's old functions draw from; all of them used up."""

_crowded = False
"""A library that was loaded beforehand has begun threads, of which a child has none."""

_reseed_random: Callable[[], Any] = super(random.Random, random._inst).seed
"""What random.seed() comes to, without the pages that its way there touches."""

_renumber: Callable[[], Any] = threading.main_thread()._set_native_id  # type: ignore[attr-defined]


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
        random.seed()  # with all that it sets back
        global _crowded
        _crowded = len(sys._current_frames()) > 1
        _renumber()  # so that what it looks up is known to all


def reseed() -> None:
    """In each process of which one session will be forked: no two sessions draw the same numbers."""
    _reseed_random()
    reseed_numpy()


def reseed_numpy() -> None:
    """Processes forked from one another must not draw the same numbers. (`random` sees to itself in a plain fork.)"""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    try:
        # A state at random, as a whole: numpy.random.seed() comes to the same by a way that is three times as long.
        numpy: Any = sys.modules["numpy"]
        key = numpy.frombuffer(os.urandom(4 * TWISTER_WORDS), numpy.uint32)
        numpy_random.set_state(("MT19937", key, TWISTER_WORDS, 0, 0.0))
    except Exception:  # the border to libraries: another generator, or another numpy
        numpy_random.seed()


def fork(group: int = -1) -> int:
    """As os.fork(), but that random numbers go on where they were (see `reseed`).

    `group`: the folder of a cgroup for the child to be born into, where `can_fork_into` says so.
    """
    pid = os.fork() if _crowded else _fork_single(group)
    if pid == 0:
        _renumber()
    return pid


def can_fork_into() -> bool:
    return not _crowded and clone.can_clone()


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
            with contextlib.suppress(Exception):  # the border to libraries: Python goes on as well
                hook()
