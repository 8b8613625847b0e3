"""Readers of standard input in a session, and which of them gets the next answer.

Readers of the running cell come first, in their order. A thread of an earlier cell gets an answer when no cell wants
one. No reader is reported while an answer is on its way.
"""

from dataclasses import dataclass

from ingle.sessions.cells.cell import RunningCell
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states
from ingle_worker.wire.constants import MAX_PROMPT_CHARS

MAX_READERS = 1000
"""Reads without an answer. Each is a thread that waits or was interrupted, so an honest worker has fewer."""


@dataclass(frozen=True)
class Prompt:
    """A cell begins to wait for input."""

    text: str
    secret: bool


class InputWaits:
    def __init__(self) -> None:
        self.background: set[int] = set()
        """Reads of threads of earlier cells."""
        self._answering = False
        self._unanswered = 0
        """Reads since the last answer, or since the cell began."""

    def reset(self) -> None:
        """Forget all readers: the worker is another one, or none."""
        self.background.clear()
        self._unanswered = 0
        self._answering = False

    def can_answer(self, cell: RunningCell | None) -> bool:
        if cell is not None and cell.status == states.WAITING:
            return True
        return bool(self.background) and not self._answering

    def answer(self, cell: RunningCell | None, worker: Worker, data: bytes, *, eof: bool) -> bool:
        """Give the data to the first reader. Return whether that is the cell, which goes on then."""
        self._unanswered = 0
        if cell is not None and cell.status == states.WAITING:
            cell.answers += 1
            self._answering = bool(cell.waits)
            cell.raw_wait = False
            cell.last_line = ""
            cell.resume()
            worker.stdin.answer(data, eof=eof)
            return True
        self._answering = True
        worker.stdin.answer(data, eof=eof)
        return False

    def on_wait(self, cell: RunningCell | None, worker: Worker, wait: messages.InputWait) -> Prompt | None:
        """Add a reader. Return the prompt if the cell waits for it from now on."""
        prompt = None
        if cell is None or wait.background:
            self.background.add(wait.wait)
        else:
            text = None if wait.prompt is None else wait.prompt[-MAX_PROMPT_CHARS:]
            cell.waits[wait.wait] = messages.InputWait(wait.wait, False, text, wait.secret)
            prompt = self.next_prompt(cell, worker)
        self._unanswered += 1
        if max(self._unanswered, len(self.background)) > MAX_READERS:
            worker.break_off("more readers than a process has threads")
        return prompt

    def next_prompt(self, cell: RunningCell | None, worker: Worker) -> Prompt | None:
        """Have the cell wait for its first reader, unless an answer is on its way. Return the prompt if it does."""
        if cell is None or not cell.waits or cell.status != states.RUNNING:
            return None
        if self._answering or worker.stdin.under_way:
            return None
        wait = next(iter(cell.waits.values()))
        return self._wait(cell, wait.prompt, wait.secret)

    @staticmethod
    def _wait(cell: RunningCell, prompt: str | None, secret: bool) -> Prompt:
        text = cell.last_line if prompt is None else prompt
        cell.wait_for_input(text, secret)
        return Prompt(text, secret)

    def on_taken(self, cell: RunningCell | None, worker: Worker, wait: int) -> None:
        """Remove a reader that has its input, or was interrupted. The cell goes on if it waited for this one."""
        self._answering = False
        if wait in self.background:
            self.background.discard(wait)
            if cell is None and not self.background:
                worker.stdin.drop()
        elif cell is not None:
            shown = next(iter(cell.waits), None)
            cell.waits.pop(wait, None)
            if wait == shown and cell.status == states.WAITING and not cell.raw_wait:
                # Interrupted while it waited, or a child process took the input.
                cell.resume()

    def on_raw_read(self, cell: RunningCell, worker: Worker, blocked: bool) -> Prompt | None:
        """Take the kernel's word on whether a process of the cell is blocked in a read of standard input."""
        if blocked and cell.status == states.RUNNING and worker.stdin.unread() == 0:
            cell.raw_wait = True
            return self._wait(cell, None, False)
        if not blocked and cell.raw_wait and cell.status == states.WAITING:
            cell.raw_wait = False
            if not cell.waits:
                cell.resume()
        return None

    def on_done(self, cell: RunningCell, worker: Worker) -> int:
        """Drop input that the ended cell has not read. Return its bytes."""
        self._unanswered = 0
        if self.background or cell.waits:
            # A thread still reads: the rest of the pipe, its end included, is for that thread.
            self.background.update(cell.waits)
            return 0
        return worker.stdin.drop()
