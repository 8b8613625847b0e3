"""A time limit for the own code of an object, while a copy of the session pickles it.

The copy has none of the session's other threads, so code that waits for one of them (`__reduce__`, `__getstate__`)
would never end. Only single calls are limited: pickling as a whole takes as long as it makes progress.
"""

import _signal  # type: ignore[import-not-found]
import os
import threading
import types
from _thread import get_ident
from typing import Any

import ingle_worker
from ingle_worker.snapshot import chunks
from ingle_worker.snapshot.reduce_builtin import Unsavable

OWN_FILES = os.path.dirname(ingle_worker.__file__) + os.sep


class TimeLimit:
    """Raises Unsavable in code that is not ours, if one call of it lasts for `seconds` to twice that; 0: never.

    Code in C that waits is not interrupted. The host ends its copy after a while.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._call: types.FrameType | None = None
        """The call that was under way at the last look."""

    def __enter__(self) -> None:
        self._call = None
        if get_ident() != threading.main_thread().ident:
            return  # only the main thread can be interrupted
        _signal.signal(_signal.SIGALRM, self._look)
        _signal.setitimer(_signal.ITIMER_REAL, self._seconds, self._seconds)

    def __exit__(self, *exc: object) -> None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        self._call = None

    def _look(self, signum: int, frame: Any) -> None:
        call = _outer_call(frame)
        if call is not None and call is self._call:
            raise Unsavable(f"its own code did not end within {self._seconds:g} s; a copy has no other threads")
        self._call = call


def _outer_call(frame: types.FrameType | None) -> types.FrameType | None:
    """Return the call by which our code came to the code that runs now, or None if that is ours."""
    call = None
    while frame is not None and not frame.f_code.co_filename.startswith(OWN_FILES):
        call, frame = frame, frame.f_back
    # The sender of chunks waits for the host and for its own threads.
    return None if frame is None or frame.f_code.co_filename == chunks.__file__ else call
