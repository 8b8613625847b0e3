"""One cell while it runs: what has come of it so far, and who waits for it."""

import asyncio
import time
from typing import Any

from ingle.events import CellError, Exit, Metadata, MimeBundle, Result, Truncated
from ingle.sessions.cells.displays import Displays
from ingle_worker.wire import messages, states

NO_TEXT = Truncated()
NO_COUNTS = (NO_TEXT, NO_TEXT)
NOTHING: list[Any] = []
"""In every result that has none of them: nobody adds to what a result holds, and most hold nothing."""

NO_METADATA: Metadata = {}
NO_DISPLAYS = Displays()


class RunningCell:
    # What most cells never change stands here once.
    status: str = states.RUNNING
    value: MimeBundle | None = None
    value_metadata: Metadata = NO_METADATA
    displays: Displays = NO_DISPLAYS
    error: CellError | None = None
    exit: Exit | None = None
    exiting: Exit | None = None
    timed_out = False
    needs_more_input = False
    execution_time: float | None = None
    prompt: str | None = None
    prompt_secret = False
    stdout_characters = 0
    stderr_characters = 0
    stdout_lines = 0
    stderr_lines = 0
    dropped_text = 0
    dropped_displays = 0
    last_line = ""
    raw_wait = False
    waits_shown = 0
    interrupted_wait = 0
    answers = 0
    final: Result | None = None
    """How it ended, without its text."""

    def __init__(self, number: int, timeout: float | None, notices: list[str]) -> None:
        self.number = number
        self.timeout = timeout
        self.began = time.monotonic()
        self.notices = notices
        self.waits: dict[int, messages.InputWait] = {}
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
        if self.displays is NO_DISPLAYS:
            self.displays = Displays()
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
            displays=NOTHING if self.displays is NO_DISPLAYS else list(self.displays.bundles),
            result_metadata=self.value_metadata,
            displays_metadata=NOTHING if self.displays is NO_DISPLAYS else list(self.displays.metadata),
            error=self.error,
            exit=self.exit,
            timed_out=self.timed_out,
            needs_more_input=self.needs_more_input,
            execution_time=self.age if self.execution_time is None else self.execution_time,
            prompt=self.prompt,
            prompt_secret=self.prompt_secret,
            notices=self._all_notices() if self.notices or self.displays.left_out else NOTHING,
        )

    def _all_notices(self) -> list[str]:
        return [*self.notices, *(self.displays.notices(self.number) if self.displays.left_out else ())]

    @property
    def left_nothing(self) -> bool:
        """Neither a value, nor displays, nor an error."""
        return self.value is None and self.displays is NO_DISPLAYS and self.error is None

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
        if not (self.stdout_characters or self.stderr_characters):
            return NO_COUNTS
        return (
            Truncated(self.stdout_characters, self.stderr_characters),
            Truncated(self.stdout_lines, self.stderr_lines),
        )


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
