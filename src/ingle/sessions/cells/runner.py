"""Runner of cells: the running cell of a session, from its first event to its `done`."""

import time

import msgspec

from ingle import errors, events
from ingle.events import CellError, Exit, Result
from ingle.grants import ApprovalInfo
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.limits import words
from ingle.requests import Author, NewCell
from ingle.sessions.cells.cell import RunningCell
from ingle.sessions.cells.deadline import Deadline
from ingle.sessions.cells.file_changes import FileTracker
from ingle.sessions.cells.input_waits import Prompt
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.notices import process_ended
from ingle.sessions.cells.turns import Turn, Turns
from ingle.sessions.metrics import Telemetry
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import SESSION_STATES, SlotState
from ingle.sessions.spec import SessionSpec
from ingle.settings import Settings
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, states

MIN_SECONDS_FOR_LIMIT_CHECK = 0.05
"""Successful cells shorter than this cannot have hit a limit, so the check is skipped."""

MAX_REFUSALS = 10
"""Hosts not granted that a cell's notices name."""


class CellRunner:
    def __init__(
        self,
        spec: SessionSpec,
        settings: Settings,
        turns: Turns,
        slot: ProcessSlot,
        journal: Journal,
        telemetry: Telemetry,
        files: FileTracker,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._turns = turns
        self._slot = slot
        self._journal = journal
        self._telemetry = telemetry
        self._files = files
        self.running: RunningCell | None = None
        self.last_begun: float | None = None
        """Time of the last cell's start."""
        self.last_ended = time.monotonic()
        self._short = 0
        """Number of the last cell that got a MemoryError."""

    @property
    def soft_memory(self) -> int:
        """Bytes at which the running cell gets a MemoryError; 0 if it never does, or has got one."""
        limit, cell = self._spec.grant.limits.memory, self.running
        if limit is None or cell is None or cell.number == self._short:
            return 0
        return int(limit * self._settings.soft_memory)

    def on_soft_memory(self) -> None:
        """Raise MemoryError in the running cell."""
        cell, worker = self.running, self._slot.worker
        if cell is None or worker is None or not self.soft_memory:
            return
        cell.notices.append(f"soft {words('memory', self.soft_memory)}: reached by this cell")
        self._short = cell.number
        worker.interrupt(cell.number, memory=True)

    @property
    def count(self) -> int:
        """Number of the last cell."""
        return self._journal.history.count

    @property
    def state(self) -> str:
        """State of the session, derived from its process and its cell."""
        if self.running is not None and self._slot.state is SlotState.UP:
            return self.running.status
        return SESSION_STATES[self._slot.state]

    def _publish(self, author: Author | None = None) -> None:
        self._journal.publish(self.state, author=author)

    # --- begin and wait ---

    def begin(self, turn: Turn, worker: Worker, new: NewCell) -> int:
        """Begin a cell in its turn. Return its number."""
        code, timeout = new.code, new.timeout
        number = self._journal.history.count + 1
        grace = self._settings.timeout_grace
        reason = ""
        if timeout is not None:
            reason = f"did not stop within {grace:g} s of its timeout of {timeout:g} s, and was killed"
        deadline = Deadline(worker, number, grace, reason)
        turn.begin_cell(number)
        cell = self.running = RunningCell(number, code, turn, deadline, self._journal.notices.take())
        self._telemetry.cell_begun(self._spec.key, number, code, self._spec.grant.isolation)
        self._journal.begin_cell(cell)
        self.last_begun = time.time()
        self._files.begin()
        self._journal.publish(states.RUNNING, code if code.isascii() else visible(code), new.author)
        worker.execute(number, new, crowded=self._slot.crowded)
        self._journal.flush_background()
        if timeout is not None:
            deadline.set(timeout)
        return number

    async def wait(self, number: int, seconds: float, from_event: int = 0) -> Result:
        """Return the result of a cell once it has ended or waits for input, or after so many seconds.

        With `from_event`, return only the text from that event on.
        """
        cell = self.running
        if cell is not None and cell.number == number:
            await cell.wait_settled(seconds)
            if cell.final is not None and not (from_event or cell.kept_text):
                return msgspec.structs.replace(cell.final)
        result = await self._journal.history.result(number, self.running, from_event)
        if number == self.count:
            result.notices = [*result.notices, *self._journal.background_notice()]
        return result

    def interrupt(self, author: Author | None) -> int | None:
        """Interrupt the running cell in the name of this author. Return its number."""
        cell = self.running
        if cell is None:
            return None
        cell.interrupted_by = author
        cell.interrupt()
        return cell.number

    # --- standard input ---

    def input(self, text: str, author: Author | None, *, eof: bool) -> int:
        """Answer the reader that waits for input. Return the number of the cell to wait for now."""
        cell, worker = self.running, self._slot.worker
        if worker is None or not self._slot.input.can_answer(cell):
            raise errors.NotWaiting(self._spec.session_id)
        if not text.endswith("\n") and not eof:
            text += "\n"
        # As a terminal does it: lines end with a newline alone.
        data = visible(text.replace("\r\n", "\n")).encode()
        answered = self._slot.input.answer(cell, worker, data, eof=eof)
        self._publish(author)
        return cell.number if cell is not None and answered else self.count

    def show_next_wait(self) -> None:
        """Report the cell's next reader of standard input, if an answer was on its way until now."""
        if self._slot.worker is not None:
            self._show(self._slot.input.next_prompt(self.running, self._slot.worker))

    def on_raw_read(self, cell: RunningCell, blocked: bool) -> None:
        """Take the kernel's word on whether a process of this cell is blocked in a read of standard input."""
        worker = self._slot.worker
        if cell is self.running and worker is not None and not worker.gone.done():
            prompt = self._slot.input.on_raw_read(cell, worker, blocked)
            self._publish()
            self._show(prompt)

    def _show(self, prompt: Prompt | None) -> None:
        if prompt is not None and self.running is not None:
            self._publish()
            self._journal.append(events.InputWanted, prompt.text, prompt.secret)
            self.running.wake()

    # --- approvals ---

    def show_approval(self, pending: ApprovalInfo | None, author: Author | None = None) -> None:
        """Have the running cell wait for this answer of a person, or with None go on after that of the author."""
        cell = self.running
        if cell is None:
            return
        cell.wait_for_approval(pending)
        self._publish(author)
        if cell.status == states.APPROVAL:
            cell.wake()
        else:
            self.show_next_wait()

    # --- what the worker reports ---

    def on_input_wait(self, message: messages.InputWait) -> None:
        if self._slot.worker is not None:
            self._show(self._slot.input.on_wait(self.running, self._slot.worker, message))

    def on_input_taken(self, message: messages.InputTaken) -> None:
        if self._slot.worker is not None:
            self._slot.input.on_taken(self.running, self._slot.worker, message.wait)
            self._publish()
            self.show_next_wait()

    def on_refused(self, text: str) -> None:
        """Name a host that the cell asked for and that is not granted."""
        cell = self.running
        if cell is not None and len(cell.notices) < MAX_REFUSALS and text not in cell.notices:
            cell.notices.append(text)

    def on_exiting(self, message: messages.Exiting) -> None:
        if self.running is not None and message.cell == self.running.number:
            self.running.take_exiting(message, self._settings.exit_grace)

    def on_ending(self, done: messages.Done) -> None:
        """Stop the deadline of a cell whose code has ended. Its `done` follows."""
        if self.running is not None and self.running.number == done.cell:
            self.running.deadline.cancel()

    def on_done(self, done: messages.Done) -> bool:
        """End the running cell. Return False if the message is about another cell."""
        cell, worker = self.running, self._slot.worker
        if cell is None or worker is None or done.cell != cell.number:
            return False
        self._slot.on_done(done)
        self._journal.take_done(cell, done)
        dropped = done.dropped_input + self._slot.input.on_done(cell, worker)
        if dropped:
            cell.notices.append(f"{dropped} bytes of input were not read by this cell and were dropped")
        status = done.status if done.status in states.FINAL_STATUSES else states.ERROR
        if status == states.ERROR or done.execution_time > MIN_SECONDS_FOR_LIMIT_CHECK:
            cell.notices += self._limits_met(worker, cell.error)
        self.end(status, None)
        self._publish()
        return True

    def _limits_met(self, worker: Worker, error: CellError | None) -> list[str]:
        """Return notices of the limits that refused something to a cell, or ended a process of it."""
        workspace = self._slot.workspace
        folders = (self._slot.cwd, str(workspace.folders.folder), workspace.tmp)
        return LimitApplier.met(worker.group, self._spec.grant.limits, error, folders)

    def on_lost(self, exit: Exit, way_back: str) -> None:
        """End the running cell, whose worker has ended. `way_back` names a checkpoint to roll back to, if any."""
        cell = self.running
        if cell is None:
            return
        if cell.exiting is not None:
            self.end(states.EXIT, cell.exiting)
            return
        if self._slot.ending:
            self.end(states.EXIT, exit)
            return
        if self._slot.restores:
            notice = f"{process_ended(exit)}; the session comes back as it was when it was last saved"
        else:
            notice = (
                f"{process_ended(exit)}; the session's variables, functions and imports are lost, "
                f"and a new process takes its place{way_back}"
            )
        cell.notices.append(notice)
        self.end(states.INTERRUPTED if cell.timed_out else states.EXIT, exit)

    def end(self, status: str, exit: Exit | None) -> None:
        """End the running cell: its `done` is its last event, and all waiting requests are answered."""
        cell = self.running
        if cell is None:
            return
        cell.files = self._files.end()
        if cell.files is None:
            cell.notices += self._files.take_notices()
        self._journal.end_cell(cell, status, exit)
        self.running = None
        self.last_ended = time.monotonic()
        self._telemetry.cell_ended(self._spec.key, cell.number, status, cell.execution_time or 0.0)
        cell.wake()
        self._turns.release(cell.turn)


def visible(text: str) -> str:
    """Return text that can be shown and stored: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
