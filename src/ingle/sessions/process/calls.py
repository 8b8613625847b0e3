"""What a session is asked about its variables, between cells, and what became of it.

A listing is answered by the worker within a moment, and by what is known here when a cell runs or the worker does not
answer. One variable in full runs the user's own code: it has a limit, after which it is interrupted as a cell is; a
worker that was interrupted and does not heed even that is ended. There is one inquiry at a time, and none beside a
cell: a cell that is to begin meanwhile waits until the answer is there.
"""

import asyncio
import difflib
import time
from collections.abc import Callable, Iterable

from ingle import errors
from ingle.events import VariableInfo, Variables, VariableValue
from ingle.sessions.spec import Named
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

LISTING_LIMIT = 1.0
"""Seconds for a listing; the worker itself stops looking after a tenth of that."""

RESEND = 0.02
"""While the worker does not take SIGINT, it is sent again this often."""

MAX_VARIABLES = 10_000
MAX_TEXT = 2_000_000
"""What is believed of a worker's answer: more than these it does not send by itself."""

Answer = messages.Listed | messages.Asked


class Inquiries:
    def __init__(self, owner: Named, grace: float) -> None:
        self._owner = owner
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._ticket = 0
        self.asked: asyncio.Future[Answer | None] | None = None
        """What is just being told; a cell waits for it."""
        self._listing: asyncio.Future[Answer | None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def on_answer(self, answer: Answer) -> None:
        if answer.ticket == self._ticket:
            self._end(answer)

    def on_gone(self) -> None:
        """The worker has ended: nobody answers any more."""
        self._end(None)

    def interrupt(self, worker: Worker) -> None:
        """Stop what is being told."""
        if self.asked is not None:
            self._signal(worker, self._ticket, self._loop.time() + self._grace)

    async def list(self, worker: Worker | None, names: Iterable[str], why_not: str | None) -> Variables:
        """The variables as the worker tells them; where there is a reason why not, the names that are known here."""
        if worker is not None and why_not is None:
            if self._listing is None and self.asked is None:
                self._listing = self._ask(worker, messages.ListVariables, LISTING_LIMIT)
                self._listing.add_done_callback(self._forget_listing)
            if self._listing is None:
                why_not = "another variable is just being told; these are the names of the last finished cell"
            else:
                # Whoever asks while the worker is at it gets the same answer.
                answer = await asyncio.shield(self._listing)
                if isinstance(answer, messages.Listed) and not answer.interrupted:
                    return self._listed(answer)
                why_not = "the session did not answer; the variables are those of the last finished cell"
        known = sorted(name for name in names if not name.startswith("_"))
        kept = [VariableInfo(name) for name in known[:MAX_VARIABLES]]
        return Variables(self._owner.id, kept, len(known) - len(kept), [why_not] if why_not else [])

    def _listed(self, answer: messages.Listed) -> Variables:
        kept = answer.variables[:MAX_VARIABLES]
        more = max(answer.more, 0) + len(answer.variables) - len(kept)
        notices = [f"{more} more variables are not listed"] if more else []
        return Variables(self._owner.id, [_info(each) for each in kept], more, notices)

    def _forget_listing(self, _: object) -> None:
        self._listing = None

    async def tell(self, worker: Worker, name: str, limit: float, names: Callable[[], Iterable[str]]) -> VariableValue:
        """One variable in full."""
        # Whoever asked may go; the answer is waited for all the same, and its limit holds.
        answer = await asyncio.shield(self._ask(worker, messages.AskVariable, limit, name))
        if answer is None:
            raise errors.VariableUntold(
                f"the worker ended while it told of {name}, and its variables are lost"
                if worker.gone.done()
                else f"the session did not come to telling of {name}: a task of its event loop blocks it; try again"
            )
        if not isinstance(answer, messages.Asked) or answer.interrupted:
            raise errors.VariableUntold(
                f"telling of {name} was stopped: its own __repr__ or __str__ took longer than {limit:g} s, "
                "or was interrupted; the session is as it was"
            )
        if answer.error:
            raise errors.VariableUntold(f"{name} cannot be told: its own code raised {answer.error[:1000]}")
        if answer.variable is None:
            raise errors.VariableNotFound(name, difflib.get_close_matches(name, names(), 3))
        notices = [each[:1000] for each in answer.notices[:10]]
        return VariableValue(self._owner.id, _info(answer.variable), notices)

    def _ask(
        self, worker: Worker, kind: Callable[..., object], limit: float, *about: str
    ) -> "asyncio.Future[Answer | None]":
        assert self.asked is None
        self._ticket += 1
        self.asked = asked = self._loop.create_future()
        until = self._loop.time() + limit + self._grace
        self._timers.append(self._loop.call_later(limit, self._signal, worker, self._ticket, until))
        # The clock is the machine's: what the worker comes to only after its time, it does not begin.
        worker.send(kind(self._ticket, time.monotonic() + limit, *about))
        return asked

    def _end(self, answer: Answer | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.set_result(answer)

    def _signal(self, worker: Worker, ticket: int, until: float, again: bool = False) -> None:
        # No cell has this number, so that nothing else can be hit; init looks before it sends.
        sent = worker.interrupt(-ticket, again=again)

        def on_sent(sent: "asyncio.Future[bool]") -> None:
            if self.asked is None or ticket != self._ticket:
                return
            if not sent.result():
                self._timers.append(self._loop.call_later(self._grace, self._kill, worker, ticket))
            elif self._loop.time() < until:
                self._timers.append(self._loop.call_later(RESEND, self._signal, worker, ticket, until, True))
            else:
                self._end(None)  # it never came to it

        sent.add_done_callback(on_sent)

    def _kill(self, worker: Worker, ticket: int) -> None:
        if self.asked is not None and ticket == self._ticket:
            worker.kill("did not stop telling of a variable when its time was over, and was killed")


def _info(variable: messages.Variable) -> VariableInfo:
    def cut(text: str | None) -> str | None:
        return None if text is None else text[:MAX_TEXT]

    return VariableInfo(
        variable.name[:MAX_TEXT],
        cut(variable.type),
        variable.shape,
        variable.length,
        variable.size,
        cut(variable.preview),
        cut(variable.value),
        cut(variable.repr),
    )
