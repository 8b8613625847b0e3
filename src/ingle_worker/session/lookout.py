"""Waiting for the next message, asleep or awake, whichever is quicker (see `wire.waiting`).

Awake only in a session that is the only one at work, and only where messages are close together.
"""

import os
import select
from time import perf_counter

from ingle_worker.wire.waiting import SOON, Choice

CHUNK = 1 << 15
"""Bytes read in one go. Not more: from 128 KiB on, every read would map and unmap memory of its own."""


class Lookout:
    def __init__(self) -> None:
        self._fd = -1
        self._ready = select.poll()
        self.alone = False
        """No other session was at work when the last cell came."""
        self._soon = False
        """The last message was close to the one before it."""
        self._choice = Choice()

    def watch(self, fd: int) -> None:
        """Messages come from here. It is made before there is a wire, so that its making is shared."""
        self._fd = fd
        self._ready.register(fd, select.POLLIN)

    def forget(self) -> None:
        self._ready.unregister(self._fd)
        self._fd = -1
        self._soon = False

    def read(self) -> bytes:
        """What comes next; nothing at the end. Raises OSError."""
        if not self.alone:
            self._soon = False
            return os.read(self._fd, CHUNK)
        began = perf_counter()
        close = self._soon
        awake = close and self._choice.awake
        if awake:
            poll, until = self._ready.poll, began + SOON
            while not poll(0) and perf_counter() < until:
                pass
        data = os.read(self._fd, CHUNK)
        took = perf_counter() - began
        self._soon = took < SOON
        if awake or (close and self._soon):
            self._choice.took(took)
        return data
