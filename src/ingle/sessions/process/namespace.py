"""A session's namespace being made ready by its worker: the user's library loaded or checked, all names cleared.

Each runs code of the user's, so each has a limit, after which it is interrupted as a cell is; a worker that does not
heed that is ended. There is one such thing at a time, and none beside a cell.
"""

import asyncio

from ingle.snapshots.user_library import Library
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

LIMIT = 10.0
"""Seconds for loading the library, and for clearing."""

RESEND = 0.02
"""While the worker does not take SIGINT, it is sent again this often."""

SIGNALS = 3
"""Clearing has three steps, and each may need its own."""

Answer = messages.StdlibLoaded | messages.Cleared
Message = Answer | messages.StdlibCompiled | messages.StdlibDescribed


class Preparing:
    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[Answer | None] | None = None
        """What is under way, if anything is."""
        self._library: Library | None = None
        self._version = ""
        self._described: messages.StdlibDescribed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._signals = 0

    async def load(self, worker: Worker, library: Library, *, run: bool = True) -> messages.StdlibLoaded | None:
        """Have the library loaded, or only kept for clearing; None when the worker ended."""
        self._version = worker.ready.result().python
        code = library.codes.get(self._version, b"")
        # Code that all sessions to come will run is taken from one that has run nothing yet, when it was asked for.
        self._library = library if not code else None
        answer = await self._ask(worker, messages.LoadStdlib(len(code), run, library.text + code))
        return answer if isinstance(answer, messages.StdlibLoaded) else None

    async def edit(
        self, worker: Worker, text: bytes, addition: str
    ) -> tuple[messages.StdlibDescribed | None, messages.StdlibLoaded | None]:
        """What the library holds, or would hold with this added, and what became of loading it then."""
        self._described = None
        answer = await self._ask(worker, messages.EditStdlib(addition, text))
        return self._described, answer if isinstance(answer, messages.StdlibLoaded) else None

    async def clear(self, worker: Worker) -> messages.Cleared | None:
        answer = await self._ask(worker, messages.Clear())
        return answer if isinstance(answer, messages.Cleared) else None

    async def _ask(self, worker: Worker, question: object) -> Answer | None:
        assert self.asked is None
        self.asked = self._loop.create_future()
        self._signals = 0
        worker.send(question)
        self._timer = self._loop.call_later(LIMIT, self._signal, worker)
        # Whoever asked may go; the limit holds all the same.
        return await asyncio.shield(self.asked)

    def on_message(self, message: Message) -> None:
        if self.asked is None:
            return
        if isinstance(message, messages.StdlibCompiled):
            if self._library is not None:
                self._library.codes.setdefault(self._version, message.data)
                self._library = None
        elif isinstance(message, messages.StdlibDescribed):
            # Said before anything of it runs: what has run could say something else.
            self._described = self._described or message
            if message.problem or not message.added:
                self._end(None)  # there is nothing to load
        else:
            self._end(message)

    def on_gone(self) -> None:
        """The worker has ended: nobody answers any more."""
        self._end(None)

    def _end(self, answer: Answer | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._library = None
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.set_result(answer)

    def _signal(self, worker: Worker, again: bool = False) -> None:
        asked = self.asked
        if asked is None:
            return
        if not again:
            self._signals += 1
            if self._signals > SIGNALS:
                worker.kill("did not stop preparing its namespace when its time was over, and was killed")
                return
            self._timer = self._loop.call_later(self._grace, self._signal, worker)
        sent = worker.interrupt(messages.PREPARING, again=again)

        def on_sent(sent: "asyncio.Future[bool]") -> None:
            if sent.result() and self.asked is asked:
                self._loop.call_later(RESEND, self._signal, worker, True)

        sent.add_done_callback(on_sent)
