"""One cell while it runs: what has come of it so far, and who waits for it."""

import asyncio
import time

from ingle.events import CellError, Exit, Metadata, MimeBundle, Result, Truncated
from ingle.sessions.cells.displays import Displays
from ingle_worker.wire import messages, states

NO_TEXT = Truncated()


class RunningCell:
    def __init__(self, number: int, timeout: float | None, notices: list[str]) -> None:
        self.number = number
        self.timeout = timeout
        self.began = time.monotonic()
        self.notices = notices
        self.status: str = states.RUNNING
        self.value: MimeBundle | None = None
        self.value_metadata: Metadata = {}
        self.displays = Displays()
        self.error: CellError | None = None
        self.exit: Exit | None = None
        self.exiting: Exit | None = None
        self.timed_out = False
        self.needs_more_input = False
        self.execution_time: float | None = None
        self.prompt: str | None = None
        self.prompt_secret = False
        self.stdout_characters = 0
        self.stderr_characters = 0
        self.stdout_lines = 0
        self.stderr_lines = 0
        self.dropped_text = 0
        self.dropped_displays = 0
        self.last_line = ""
        self.raw_wait = False
        self.waits: dict[int, messages.InputWait] = {}
        self.waits_shown = 0
        self.interrupted_wait = 0
        self.answers = 0
        self.final: Result | None = None
        """The result of a cell that has ended, without its text."""
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    @property
    def settled(self) -> bool:
        """There is something to answer: the cell has ended, or waits for input.

        A wait that was interrupted is about to be over.
        """
        return self.status not in (states.RUNNING, states.WAITING) or (
            self.status == states.WAITING and self.waits_shown != self.interrupted_wait
        )

    def show(self, seq: int, data: MimeBundle, metadata: Metadata, display_id: str | None, update: bool) -> None:
        """Something was shown, by the event of this number."""
        self.displays.add(seq, data, metadata, display_id, update)

    def wake(self) -> None:
        """Let all who wait look at the cell again."""
        for waiter in self._waiters:
            _set(waiter)

    async def wait_settled(self, seconds: float) -> None:
        """Wait until the cell is settled, or for so many seconds. Leaving early changes nothing for the cell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.settled and loop.time() < deadline:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_at(deadline, _set, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        # If the cell goes on waiting in spite of the interrupt, the next caller is answered at once.
        self.interrupted_wait = 0

    def result(self, session_id: str) -> Result:
        """As it is now, without text."""
        return Result(
            session_id,
            self.number,
            self.status,
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
            prompt=self.prompt,
            prompt_secret=self.prompt_secret,
            notices=[*self.notices, *self.displays.notices(self.number)],
        )

    @property
    def left_nothing(self) -> bool:
        """Whether the cell has neither a value, nor displays, nor an error."""
        return self.value is None and not self.displays.bundles and self.error is None

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
        """Characters and ends of lines so far."""
        return (
            Truncated(self.stdout_characters, self.stderr_characters),
            Truncated(self.stdout_lines, self.stderr_lines),
        )


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
