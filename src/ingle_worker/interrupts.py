"""SIGINT in a session: it belongs to the running cell, and to nothing else.

One handler stays installed for good. While a cell runs it raises KeyboardInterrupt; outside of cells it swallows
the signal; while the guest does something that must not be torn (a frame on the wire) it waits until that is
done. It stands in for `signal.default_int_handler`, also under that name, because libraries compare with it to
learn whether anybody has taken over SIGINT. A user's own handler is put aside between cells and comes back with
the next one.

A signal carries no address, so init looks before it sends one: the number of the running cell stands in a page
that both see. An interrupt that overtakes its cell is held back until the cell has begun. And since Python's own
handler only leaves a note, which a system call entered in that very moment sleeps over, init nudges the worker
once more with a signal that does nothing but wake it.
"""

import _signal  # type: ignore[import-not-found]
import signal
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

NUDGE = _signal.SIGURG
"""Ignored wherever it is not handled, and expected by nobody."""


class Interrupts:
    def __init__(self) -> None:
        self.armed = False
        self._main = get_ident()
        self._shields = 0
        self._pending = False
        self._aside: Any = None
        self._running = _private_page()
        self.instead: Callable[[FrameType | None], bool] | None = None
        """While a cell awaits: asked first, and True when it has dealt with the signal."""
        # One bound method for good: getsignal() is compared with it by identity.
        self.handler = self._on_sigint

    def publish_to(self, page: memoryview) -> None:
        """From now on the number of the running cell, 0 for none, stands in this page."""
        self._running = page

    def abandon(self) -> None:
        """In a process that a user's code forked: what it runs is no cell."""
        self._running = _private_page()

    def install(self) -> None:
        signal.default_int_handler = self.handler  # type: ignore[assignment]
        _signal.signal(_signal.SIGINT, self.handler)
        _signal.signal(NUDGE, lambda number, frame: None)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if not self.armed:
            return
        if self._shields:
            self._pending = True
            return
        if self.instead is not None and self.instead(frame):
            return
        raise KeyboardInterrupt

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
        self._running[0] = cell

    def cell_ended(self) -> None:
        self.armed = False
        self._running[0] = 0
        current = _signal.getsignal(_signal.SIGINT)
        if current is not self.handler:
            # None is a handler that was set by C code; there is nothing to give back then.
            self._aside = current
            _signal.signal(_signal.SIGINT, self.handler)


def _private_page() -> memoryview:
    return memoryview(bytearray(8)).cast("q")
