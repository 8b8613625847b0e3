"""File descriptors of the server: idle sessions give theirs away, after a while or when others need them."""

import time
from collections.abc import Callable, Iterable

from ingle.sessions import capacity
from ingle.sessions.session import Session

LEND_AFTER_SECONDS = 5.0
LEND_SOON_SECONDS = 0.2
"""Idle time after which a session's init keeps the descriptors of its worker, and that while descriptors run low. To
get them back takes a tenth of a millisecond."""

LOW_SHARE = 0.5
SCARCE_SHARE = 0.8
"""Shares of descriptors in use from which on they are low, and from which on every idle session gives them away."""

SEARCH_SHARE = 0.02
SEARCH_SECONDS = 0.2
"""While they are scarce, idle sessions are looked for again once this share more is in use, or after this time. To look
at thousands of sessions takes milliseconds, too long for each request."""


class Descriptors:
    def __init__(self, sessions: Callable[[], Iterable[Session]]) -> None:
        self._sessions = sessions
        self._left_in_use = 0.0
        """Share of descriptors that was in use after the last search."""
        self._search_at = 0.0
        """When the next search may begin."""
        capacity.raise_file_limit()

    def lend(self) -> None:
        """Have the inits of idle sessions keep the descriptors of their workers."""
        self._lend(LEND_SOON_SECONDS if capacity.used_descriptors() > LOW_SHARE else LEND_AFTER_SECONDS)

    def make_room(self) -> None:
        """Free descriptors for one more session in use. Raise TooManySessions if nearly all are in use."""
        used, now = capacity.used_descriptors(), time.monotonic()
        if used > SCARCE_SHARE and (used > self._left_in_use + SEARCH_SHARE or now >= self._search_at):
            self._lend(0.0, at_once=True)
            self._left_in_use, self._search_at = capacity.used_descriptors(), now + SEARCH_SECONDS
        capacity.check_descriptors()

    def _lend(self, seconds: float, *, at_once: bool = False) -> None:
        for session in self._sessions():
            worker = session.worker
            if worker is not None and not worker.lent and session.turns.free and session.idle_for >= seconds:
                worker.lend_ends(at_once=at_once)
            for copy in (*session.checkpoints.workers, *session.slot.blanks.workers):
                copy.lend_ends(at_once=at_once)
