"""SIGINT in a session: it interrupts the running cell and nothing else.

One handler stays installed. It raises KeyboardInterrupt in a cell, ignores the signal outside of cells, and defers it
while the guest writes a frame. It replaces `signal.default_int_handler`, because libraries compare with that. A user's
own handler is removed between cells and restored with the next one.

Init checks the number of the running cell in shared memory before it sends SIGINT. It also sends nudges. A nudge wakes
a system call that began at the moment of SIGINT. It also calls the handler for a SIGINT that was ignored, as during
libc's `system()`. Python drops exceptions in finalizers, so an interrupt there waits for a nudge too.
"""

import _signal  # type: ignore[import-not-found]
import signal
import sys
from _thread import get_ident
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

NUDGE = _signal.SIGURG
"""The signal of a nudge. It is ignored by default, and no program uses it."""

RUNNING, OWED, PID, TAGGED, SHORT = 0, 1, 2, 3, 4
"""Words of a worker's slot in the memory shared with init: the running cell, the cell that ignored a SIGINT, the pid,
whether its descendants carry a tag, and the cell whose SIGINT means that memory runs short."""

WORDS = 5


def slot_words(shared: memoryview, slot: int) -> memoryview:
    """Return one worker's slot."""
    return shared[slot * WORDS : (slot + 1) * WORDS]


MAX_NUDGES = 10
NUDGE_AFTER_MS = 20
"""How often, and after how many milliseconds each, init nudges a worker after SIGINT."""

FINALIZER_GRACE_SECONDS = 0.15
"""How long an interrupt waits for finalizers. Then it is raised inside, because they may never end."""

WEAK_MODULES = ("weakref", "_weakrefset")
"""Modules whose callbacks run when a weakly referenced object is gone."""


class Interrupts:
    def __init__(self) -> None:
        self.armed = False
        self._main = get_ident()
        self._shields = 0
        self._pending = False
        self._deferred_until = 0.0
        self._users_handler: Any = None
        self._page = _private_page()
        self.on_interrupt: Callable[[FrameType | None], bool] | None = None
        """Set while a cell awaits. It is called first, and returns True if it handled the signal."""
        # One bound method for good: code compares getsignal() with it by identity.
        self.handler = self._on_sigint

    def publish_to(self, page: memoryview) -> None:
        """Write the number of the running cell (0 for none) to this slot from now on."""
        self._page = page
        self.armed = self._pending = False
        self._shields = 0

    def abandon(self) -> None:
        """Stop publishing, in a process that user code forked."""
        self._page = _private_page()

    def install(self) -> None:
        signal.default_int_handler = self.handler  # type: ignore[assignment]
        _signal.signal(_signal.SIGINT, self.handler)
        _signal.signal(NUDGE, self._on_nudge)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if not self.armed:
            return
        if self._shields or _is_finalizing(frame):
            self._pending = True
            self._deferred_until = monotonic() + FINALIZER_GRACE_SECONDS
            return
        self._interrupt(frame)

    def _interrupt(self, frame: FrameType | None) -> None:
        short = self._page[SHORT] and self._page[SHORT] == self._page[RUNNING]
        self._page[SHORT] = 0
        if self.on_interrupt is None or not self.on_interrupt(frame):
            raise MemoryError("the session has reached its soft memory limit") if short else KeyboardInterrupt

    def _on_nudge(self, number: int, frame: FrameType | None) -> None:
        if self._page[OWED] and self._page[OWED] == self._page[RUNNING]:
            handler = _signal.getsignal(_signal.SIGINT)
            if callable(handler):  # else the user ignores SIGINT
                self._page[OWED] = 0
                handler(_signal.SIGINT, frame)
        elif self._pending and self.armed and not self._shields:
            if monotonic() < self._deferred_until and _is_finalizing(frame):
                return
            self._pending = False
            self._interrupt(frame)

    def shield(self) -> None:
        """Defer SIGINT. Handlers run in the main thread only, so other threads need no shield."""
        if get_ident() == self._main:
            self._shields += 1

    def unshield(self) -> None:
        if get_ident() != self._main:
            return
        if self._shields:  # an interrupt may come before `shield` counts, and its `unshield` follows all the same
            self._shields -= 1
        if self._pending and not self._shields:
            self._pending = False
            if self.armed:
                _signal.raise_signal(_signal.SIGINT)

    def cell_begins(self, cell: int) -> None:
        if self._users_handler is not None:
            _signal.signal(_signal.SIGINT, self._users_handler)
            self._users_handler = None
        self._pending = False
        self._shields = 0
        self.armed = True
        self._page[RUNNING] = cell

    def cell_ended(self) -> None:
        self.armed = False
        self._page[RUNNING] = 0
        current = _signal.getsignal(_signal.SIGINT)
        if current is not self.handler:
            # None is a handler set by C code, which cannot be restored. A debugger's handler is not restored either,
            # because the code that it debugged is over.
            self._users_handler = None if _is_debuggers(current) else current
            _signal.signal(_signal.SIGINT, self.handler)


def _private_page() -> memoryview:
    return memoryview(bytearray(WORDS * 8)).cast("q")


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__" or (name in ("remove", "_remove") and frame.f_globals.get("__name__") in WEAK_MODULES):
            return True
        frame = frame.f_back
    return False


def _is_debuggers(handler: Any) -> bool:
    bdb = sys.modules.get("bdb")
    return bdb is not None and isinstance(getattr(handler, "__self__", None), getattr(bdb, "Bdb", ()))
