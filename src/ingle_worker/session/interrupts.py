"""SIGINT in a session: it belongs to the running cell, and to nothing else.

One handler stays installed for good. While a cell runs it raises KeyboardInterrupt; outside of cells it swallows
the signal; while the guest does something that must not be torn (a frame on the wire) it waits until that is
done. It stands in for `signal.default_int_handler`, also under that name, because libraries compare with it to
learn whether anybody has taken over SIGINT. A user's own handler is put aside between cells and comes back with
the next one.

A signal carries no address, so init looks before it sends one: the number of the running cell stands in a page
that both see. An interrupt that overtakes its cell is held back until the cell has begun. Besides SIGINT, init
sends a nudge: it wakes a system call that was entered in the very moment SIGINT came, and slept over it; and
where SIGINT was ignored (libc's `system()` does that), it has the handler called for the SIGINT that is owed.
The interpreter drops what is raised in a finalizer, so an interrupt that comes there waits for the nudge as well.
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
"""Ignored wherever it is not handled, and expected by nobody."""

RUNNING, OWED, PID, TAGGED = 0, 1, 2, 3
"""Words of a worker's place in the memory it shares with init: the cell that runs, the cell that was sent a SIGINT
while it ignored that; who has this place, and whether what descends from it can be told by its tag."""

WORDS = 4


def place(shared: memoryview, slot: int) -> memoryview:
    """One worker's words."""
    return shared[slot * WORDS : (slot + 1) * WORDS]


NUDGES = 10
NUDGE_AFTER = 20
"""How often, and every how many milliseconds, a worker is nudged after SIGINT."""

PATIENCE = 0.15
"""How long an interrupt waits for the end of finalizers; then it is raised there, for they may be endless."""

WEAK = ("weakref", "_weakrefset")
"""Modules whose dictionaries and sets have such functions called when an object has gone."""


class Interrupts:
    def __init__(self) -> None:
        self.armed = False
        self._main = get_ident()
        self._shields = 0
        self._pending = False
        self._put_off_until = 0.0
        self._aside: Any = None
        self._page = _private_page()
        self.instead: Callable[[FrameType | None], bool] | None = None
        """While a cell awaits: asked first, and True when it has dealt with the signal."""
        # One bound method for good: getsignal() is compared with it by identity.
        self.handler = self._on_sigint

    def publish_to(self, page: memoryview) -> None:
        """From now on the number of the running cell, 0 for none, stands here."""
        self._page = page
        self.armed = self._pending = False
        self._shields = 0

    def abandon(self) -> None:
        """In a process that a user's code forked: what it runs is no cell."""
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
            self._put_off_until = monotonic() + PATIENCE
            return
        self._interrupt(frame)

    def _interrupt(self, frame: FrameType | None) -> None:
        if self.instead is None or not self.instead(frame):
            raise KeyboardInterrupt

    def _on_nudge(self, number: int, frame: FrameType | None) -> None:
        if self._page[OWED] and self._page[OWED] == self._page[RUNNING]:
            handler = _signal.getsignal(_signal.SIGINT)
            if callable(handler):  # else the user himself has it ignored
                self._page[OWED] = 0
                handler(_signal.SIGINT, frame)
        elif self._pending and self.armed and not self._shields:
            if monotonic() < self._put_off_until and _is_finalizing(frame):
                return
            self._pending = False
            self._interrupt(frame)

    def shield(self) -> None:
        """Hold SIGINT back. Handlers run in the main thread only, so other threads have nothing to shield."""
        if get_ident() == self._main:
            self._shields += 1

    def unshield(self) -> None:
        if get_ident() != self._main:
            return
        self._shields -= 1
        if self._pending and not self._shields:
            self._pending = False
            if self.armed:
                _signal.raise_signal(_signal.SIGINT)

    def cell_begins(self, cell: int) -> None:
        if self._aside is not None:
            _signal.signal(_signal.SIGINT, self._aside)
            self._aside = None
        self._pending = False
        self._shields = 0
        self.armed = True
        self._page[RUNNING] = cell

    def cell_ended(self) -> None:
        self.armed = False
        self._page[RUNNING] = 0
        current = _signal.getsignal(_signal.SIGINT)
        if current is not self.handler:
            # None is a handler that was set by C code; there is nothing to give back then. Nor is there when a
            # debugger went on: it waits for SIGINT to break in, but the code that it watched is over.
            self._aside = None if _is_debuggers(current) else current
            _signal.signal(_signal.SIGINT, self.handler)


def _private_page() -> memoryview:
    return memoryview(bytearray(16)).cast("q")


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__" or (name in ("remove", "_remove") and frame.f_globals.get("__name__") in WEAK):
            return True
        frame = frame.f_back
    return False


def _is_debuggers(handler: Any) -> bool:
    bdb = sys.modules.get("bdb")
    return bdb is not None and isinstance(getattr(handler, "__self__", None), getattr(bdb, "Bdb", ()))
