"""Telemetry of this node: counts for metrics, lines for the log and the audit log.

The log has names, durations and reasons, and never code, output or a token. A line below the log's level costs nothing.
"""

import logging
from bisect import bisect_left
from collections import Counter
from typing import Any

from ingle.capacity import Histogram, Metrics
from ingle.events import Exit
from ingle.support.audit_log import Audit

logger = logging.getLogger("ingle.sessions")

START_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CELL_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)


class Times:
    """Histogram of durations."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def seen(self) -> Histogram:
        return Histogram(list(self._bounds), list(self._counts), self._sum)


class Telemetry:
    def __init__(self) -> None:
        self.audit: Audit | None = None
        self._cells: Counter[str] = Counter()
        self._exits: Counter[str] = Counter()
        self._cell_seconds = Times(CELL_SECONDS)
        self._start_seconds = Times(START_SECONDS)
        self.output_bytes = 0
        self.running_cells = 0
        """Cells that run now, in all sessions of this node, also those that no listing shows."""

    def metrics(self, states: dict[str, int]) -> Metrics:
        return Metrics(
            sessions=states,
            cells=dict(self._cells),
            cell_seconds=self._cell_seconds.seen(),
            start_seconds=self._start_seconds.seen(),
            worker_exits=dict(self._exits),
            output_bytes=self.output_bytes,
        )

    def session_made(self, key: str, seconds: float, isolation: str = "", network: str = "") -> None:
        self._start_seconds.add(seconds)
        self.note("session_made", key, isolation=isolation, network=network)
        log("session made", session=key, seconds=seconds)

    def session_ended(self, key: str, seconds: float, reason: str) -> None:
        self.note("session_ended", key, reason=reason)
        log("session ended", session=key, seconds=seconds, reason=reason)

    def worker_started(self, key: str, pid: int | None, seconds: float) -> None:
        if logger.isEnabledFor(logging.INFO):
            log("worker started", session=key, pid=pid, seconds=seconds)

    def worker_ended(self, key: str, exit: Exit, wanted: bool) -> None:
        reason = "ended" if wanted else exit.signal or ("exit" if exit.code == 0 else "failed")
        self._exits[reason] += 1
        if not wanted:
            self.note("worker_ended", key, reason=exit.message, signal=exit.signal, exit_code=exit.code)
        log("worker ended", session=key, reason=reason, code=exit.code, signal=exit.signal, how=exit.message)

    def note(self, action: str, key: str, **about: Any) -> None:
        """Write a line of the audit log, if there is one."""
        if self.audit is not None:
            tenant, _, session = key.rpartition("/")
            self.audit.note(action, tenant=tenant, session=session or None, **about)

    def cell_begun(self, key: str, cell: int, code: str, isolation: str) -> None:
        self.running_cells += 1
        if self.audit is not None:
            self.note("cell", key, cell=cell, code=code, isolation=isolation)
        if logger.isEnabledFor(logging.INFO):
            log("cell begun", session=key, cell=cell)

    def tool_called(
        self, key: str, server: str, tool: str, seconds: float, outcome: str, sent: int, received: int
    ) -> None:
        if self.audit is not None:
            about = {"seconds": round(seconds, 6), "outcome": outcome, "sent": sent, "received": received}
            self.note("tool", key, server=server, tool=tool, **about)
        if logger.isEnabledFor(logging.INFO):
            log("tool called", session=key, tool=f"{server}.{tool}", seconds=seconds, outcome=outcome)

    def cell_ended(self, key: str, cell: int, status: str, seconds: float) -> None:
        self.running_cells -= 1
        self._cells[status] += 1
        self._cell_seconds.add(seconds)
        if logger.isEnabledFor(logging.INFO):
            log("cell ended", session=key, cell=cell, status=status, seconds=seconds)


def log(what: str, **fields: object) -> None:
    if logger.isEnabledFor(logging.INFO):
        logger.info(what, extra={"fields": fields})
