"""Who waits for standard input in a session, and who of them is answered.

Readers of the running cell come first, in their order; a thread of an earlier cell that still reads gets an answer when
no cell wants one. Nobody is shown to wait while an answer is on its way.
"""

from collections.abc import Callable
from typing import Any

from ingle import events
from ingle.sessions.cells.cell import RunningCell
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states
from ingle_worker.wire.constants import MAX_PROMPT_CHARS

MOST_READERS = 1000
"""Reads that nobody has answered: each is a thread that waits, or was interrupted, so there cannot be so many."""


class Asking:
    def __init__(self, move: Callable[[str], None], append: Callable[..., None]) -> None:
        self._move = move
        self._append: Callable[..., Any] = append
        self.background: set[int] = set()
        """Reads of threads of earlier cells."""
        self._answering = False
        self._unanswered = 0
        """Reads that came since the last answer, or since the cell began."""

    def reset(self) -> None:
        """There is another worker, or none."""
        self.background.clear()
        self._unanswered = 0
        self._answering = False

    def can_answer(self, cell: RunningCell | None) -> bool:
        if cell is not None and cell.status == states.WAITING:
            return True
        return bool(self.background) and not self._answering

    def answer(self, cell: RunningCell | None, worker: Worker, data: bytes, *, eof: bool) -> bool:
        """Give it to whoever is first. Whether that is the cell."""
        self._unanswered = 0
        if cell is not None and cell.status == states.WAITING:
            cell.answers += 1
            self._answering = bool(cell.waits)
            cell.raw_wait = False
            cell.last_line = ""
            self._go_on(cell)
            worker.stdin.answer(data, eof=eof)
            return True
        self._answering = True
        worker.stdin.answer(data, eof=eof)
        return False

    def on_wait(self, cell: RunningCell | None, worker: Worker | None, wait: messages.InputWait) -> None:
        prompt = None if wait.prompt is None else wait.prompt[-MAX_PROMPT_CHARS:]
        if cell is None or wait.background:
            self.background.add(wait.wait)
        else:
            cell.waits[wait.wait] = messages.InputWait(wait.wait, False, prompt, wait.secret)
            self.show_next(cell, worker)
        self._unanswered += 1
        if worker is not None and max(self._unanswered, len(self.background)) > MOST_READERS:
            worker.break_off("more readers than a process has threads")

    def show_next(self, cell: RunningCell | None, worker: Worker | None) -> None:
        """Announce the first reader of the running cell that waits, once no answer is on its way to one."""
        if cell is None or worker is None or not cell.waits or cell.status != states.RUNNING:
            return
        if not self._answering and not worker.stdin.under_way:
            wait = next(iter(cell.waits.values()))
            self._show(cell, wait.prompt, wait.secret)

    def _show(self, cell: RunningCell, prompt: str | None, secret: bool) -> None:
        cell.prompt = cell.last_line if prompt is None else prompt
        cell.prompt_secret = secret
        cell.waits_shown += 1
        if cell.status != states.WAITING:
            cell.status = states.WAITING
            self._move(states.WAITING)
        self._append(events.InputWanted, cell.prompt, secret)
        cell.wake()

    def _go_on(self, cell: RunningCell) -> None:
        cell.prompt, cell.prompt_secret = None, False
        cell.status = states.RUNNING
        self._move(states.RUNNING)

    def on_taken(self, cell: RunningCell | None, worker: Worker | None, wait: int) -> None:
        self._answering = False
        if wait in self.background:
            self.background.discard(wait)
            if cell is None and not self.background and worker is not None:
                worker.stdin.drop()
            return
        if cell is None:
            return
        shown = next(iter(cell.waits), None)
        cell.waits.pop(wait, None)
        if wait == shown and cell.status == states.WAITING and not cell.raw_wait:
            # Interrupted while it waited, or taken by a child.
            self._go_on(cell)
        self.show_next(cell, worker)

    def on_raw_read(self, cell: RunningCell, worker: Worker, blocked: bool) -> None:
        """The kernel says whether some process of the running cell is blocked reading standard input."""
        if blocked and cell.status == states.RUNNING and worker.stdin.unread() == 0:
            cell.raw_wait = True
            self._show(cell, None, False)
        elif not blocked and cell.raw_wait and cell.status == states.WAITING:
            cell.raw_wait = False
            if not cell.waits:
                self._go_on(cell)

    def on_done(self, cell: RunningCell, worker: Worker) -> int:
        """The cell has ended. How many bytes nobody has read, and nobody will."""
        self._unanswered = 0
        if self.background or cell.waits:
            # With a thread still reading, what is in the pipe, its end included, is for that thread.
            self.background.update(cell.waits)
            return 0
        return worker.stdin.drop()
