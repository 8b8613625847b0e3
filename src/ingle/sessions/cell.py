"""One cell while it runs: what has come of it so far, and who waits for it."""

import asyncio
import time

from ingle.events import CellError, Exit, Metadata, MimeBundle, Result, Truncated
from ingle.sessions.displays import Displays
from ingle_worker.wire import messages, states


class RunningCell:
    def __init__(self, number: int, timeout: float | None) -> None:
        self.number = number
        self.timeout = timeout
        self.began = time.monotonic()
        self.status = states.RUNNING
        self.value: MimeBundle | None = None
        self.error: CellError | None = None
        self.exit: Exit | None = None
        self.exiting: Exit | None = None
        self.timed_out = False
        self.needs_more_input = False
        self.execution_time: float | None = None
        self.prompt: str | None = None
        self.prompt_secret = False
        self.notices: list[str] = []
        self.characters = {"stdout": 0, "stderr": 0}
        self.lines = {"stdout": 0, "stderr": 0}
        self.dropped_text = 0
        self.dropped_displays = 0
        self.last_line = ""
        self.waits: dict[int, messages.InputWait] = {}
        self.raw_wait = False
        self.waits_shown = 0
        self.interrupted_wait = 0
        self.answers = 0
        self.displays = Displays()
        self.value_metadata: Metadata = {}
        self._waiters: list[asyncio.Future[None]] = []

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

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_settled(self, seconds: float) -> None:
        """Until there is something to answer, or the time is over. Leaving early changes nothing for the cell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.settled and (left := deadline - loop.time()) > 0:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            timer = loop.call_later(left, _finish, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
        # Should it go on waiting all the same, the next who asks is told so at once.
        self.interrupted_wait = 0

    def result(self, session_id: str) -> Result:
        """As it is now, without text."""
        return Result(
            session_id=session_id,
            cell=self.number,
            status=self.status,
            success=self.status == states.OK,
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
    def kept_text(self) -> int:
        return self.characters["stdout"] + self.characters["stderr"]

    def count(self, stream: str, text: str) -> None:
        self.characters[stream] += len(text)
        self.lines[stream] += text.count("\n")

    def counted(self) -> tuple[Truncated, Truncated]:
        """Characters and ends of lines so far."""
        return Truncated(**self.characters), Truncated(**self.lines)


def _finish(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
