"""One cell while it runs: its result so far, its deadline, and the requests that wait for it."""

import asyncio
import time

from ingle.events import CellError, Exit, Metadata, MimeBundle, Result, Truncated
from ingle.files import FileChanges
from ingle.grants import ApprovalInfo
from ingle.requests import Author
from ingle.sessions.cells.deadline import Deadline
from ingle.sessions.cells.displays import Displays
from ingle.sessions.cells.turns import Turn
from ingle_worker.wire import messages, states

NO_TEXT = Truncated()
NO_FILES = FileChanges()

WAITS = (states.WAITING, states.APPROVAL)

INTERRUPTED_WAIT_SECONDS = 1.0
"""Time in which an interrupted wait for input ends. Only after that does it count as a wait again."""


class RunningCell:
    status: str = states.RUNNING
    value: MimeBundle | None = None
    value_event = 0
    """Number of the event that showed the value."""
    error: CellError | None = None
    exit: Exit | None = None
    exiting: Exit | None = None
    """How the process ends, once the cell has said so."""
    exit_grace_seconds = 0.0
    files: FileChanges | None = None
    """What the cell has changed in the session's folder, once it has ended."""
    needs_more_input = False
    execution_time: float | None = None
    prompt: str | None = None
    prompt_secret = False
    interrupted_by: Author | None = None
    """Who asked for its interrupt."""
    approval: ApprovalInfo | None = None
    """The call that it waits with, while its status is `waiting_for_approval`."""
    stdout_characters = 0
    stderr_characters = 0
    stdout_lines = 0
    stderr_lines = 0
    dropped_text = 0
    dropped_displays = 0
    last_line = ""
    raw_wait = False
    answers = 0
    final: Result | None = None
    """Result of a cell that has ended, without its text."""
    _waits_shown = 0
    _interrupted_wait = 0
    _wait_ends_by = 0.0

    def __init__(self, number: int, code: str, turn: Turn, deadline: Deadline, notices: list[str]) -> None:
        self.number = number
        self.code = code
        self.turn = turn
        """The turn that the cell holds until it has ended."""
        self.deadline = deadline
        self.began = time.monotonic()
        self.notices = notices
        self.value_metadata: Metadata = {}
        self.displays = Displays()
        self.waits: dict[int, messages.InputWait] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    @property
    def settled(self) -> bool:
        """Return whether the cell has ended, or waits for input or for approval.

        A wait that was interrupted is about to end, and does not count.
        """
        return self.status != states.RUNNING and not self._wait_is_ending

    @property
    def _wait_is_ending(self) -> bool:
        return (
            self.status in WAITS
            and self._waits_shown == self._interrupted_wait
            and time.monotonic() < self._wait_ends_by
        )

    @property
    def timed_out(self) -> bool:
        # A cell that finished in the moment its time was over is not one that timed out.
        return self.deadline.expired and self.status != states.OK

    def wait_for_input(self, prompt: str, secret: bool) -> None:
        self.prompt, self.prompt_secret = prompt, secret
        self._waits_shown += 1
        self.status = states.WAITING
        self.turn.waiting = True

    def wait_for_approval(self, approval: ApprovalInfo | None) -> None:
        """Wait until a person has answered, or with None go on. A wait for input is left alone."""
        if approval is not None and self.status in (states.RUNNING, states.APPROVAL):
            if self.approval is None or self.approval.id != approval.id:
                self._waits_shown += 1
            self.status, self.approval = states.APPROVAL, approval
        elif approval is None and self.status == states.APPROVAL:
            self.status, self.approval = states.RUNNING, None

    def interrupt(self) -> None:
        """Interrupt the code. A wait for input or approval that is interrupted is about to end."""
        if self.status in WAITS:
            self._interrupted_wait = self._waits_shown
            self._wait_ends_by = time.monotonic() + INTERRUPTED_WAIT_SECONDS
        self.deadline.interrupt()

    def resume(self) -> None:
        """Go on running: the input was taken."""
        self.prompt, self.prompt_secret = None, False
        self.status = states.RUNNING
        self.turn.waiting = False

    def show_value(self, seq: int, data: MimeBundle, metadata: Metadata) -> None:
        """Make this the cell's value. The value before it becomes a display."""
        if self.value is not None:
            self.displays.add(self.value_event, self.value, self.value_metadata, None, False)
        self.value, self.value_metadata, self.value_event = data, metadata, seq

    def take_done(self, done: messages.Done, seq: int) -> None:
        """Take over what the worker reports of the cell's end. `seq` is the number of the next event."""
        if done.value is not None:
            self.show_value(seq, done.value, {})
        self.needs_more_input = done.needs_more_input
        self.execution_time = done.execution_time
        self.notices += done.notices
        if done.error is not None:
            self.error = CellError(done.error.name, done.error.value, done.error.traceback)

    def take_exiting(self, exiting: messages.Exiting, grace_seconds: float) -> None:
        """Note that the cell ends its process, and limit the time until it exits."""
        text = exiting.message or f"exit({exiting.code})"
        self.exiting = Exit(exiting.code, None, text)
        self.execution_time = exiting.execution_time
        self.exit_grace_seconds = grace_seconds
        self.deadline.set_exit(grace_seconds)

    def end(self, status: str, exit: Exit | None, disk_trouble: str) -> None:
        """End the cell with this status. `disk_trouble` says why output was dropped, where some was."""
        self.deadline.cancel()
        self.status, self.exit = status, exit
        self.prompt, self.prompt_secret, self.approval = None, False, None
        if self.execution_time is None:
            self.execution_time = self.age
        if self.deadline.killed_at_exit:
            self.notices.append(
                f"exit handlers, threads or finalizers did not end within {self.exit_grace_seconds:g} s; "
                "the process was killed"
            )
        if self.dropped_text:
            self.notices.append(f"{self.dropped_text} characters of output were not kept: {disk_trouble}")
        if self.dropped_displays:
            self.notices.append(f"{self.dropped_displays} displays were kept as short text only: {disk_trouble}")

    def wake(self) -> None:
        """Let all waiting requests look at the cell again."""
        for waiter in self._waiters:
            _set(waiter)

    async def wait_settled(self, seconds: float) -> None:
        """Wait until the cell is settled, or for so many seconds. A cancelled request changes nothing for the cell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.settled and (left := deadline - loop.time()) > 0:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            if self.status != states.RUNNING:
                # A wait that goes on in spite of the interrupt is one to answer.
                left = min(left, max(0.0, self._wait_ends_by - time.monotonic()))
            timer = loop.call_later(left, _set, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)

    def result(self, session_id: str) -> Result:
        """Return the result as it is now, without text."""
        ending = self._wait_is_ending
        return Result(
            session_id,
            self.number,
            states.RUNNING if ending else self.status,
            self.status == states.OK,
            result=self.value,
            displays=list(self.displays.bundles),
            result_metadata=self.value_metadata,
            displays_metadata=list(self.displays.metadata),
            error=self.error,
            exit=self.exit,
            timed_out=self.timed_out,
            needs_more_input=self.needs_more_input,
            execution_time=self.age if self.execution_time is None else self.execution_time,
            prompt=None if ending else self.prompt,
            prompt_secret=self.prompt_secret and not ending,
            approval=None if ending else self.approval,
            notices=[*self.notices, *self.displays.notices(self.number)],
            files=self.files,
        )

    @property
    def left_nothing(self) -> bool:
        """Return whether the cell has neither a value, nor displays, nor an error, nor changed files."""
        nothing = self.value is None and not self.displays.bundles and self.error is None
        return nothing and (self.files is None or self.files == NO_FILES)

    @property
    def kept_text(self) -> int:
        return self.stdout_characters + self.stderr_characters

    def count(self, stream: str, text: str) -> None:
        if stream == "stdout":
            self.stdout_characters += len(text)
            self.stdout_lines += text.count("\n")
        else:
            self.stderr_characters += len(text)
            self.stderr_lines += text.count("\n")

    def counted(self) -> tuple[Truncated, Truncated]:
        """Return the characters and the line ends of both streams so far."""
        return (
            Truncated(self.stdout_characters, self.stderr_characters),
            Truncated(self.stdout_lines, self.stderr_lines),
        )


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
