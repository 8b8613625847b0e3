"""Calls to a worker between cells: variables, the user's library, clearing, loading a snapshot.

There is one call at a time: the caller holds the session's turn, or starts the worker. Each runs code of the user's, so
each has a deadline. What the worker answers is untrusted and bounded.
"""

import asyncio
import difflib
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from itertools import islice
from typing import Any, TypeVar

import msgspec

from ingle import errors
from ingle.events import VariableInfo, Variables, VariableValue
from ingle.introspection import MAX_ROWS, Rows, TablePage
from ingle.sessions.cells.deadline import Deadline
from ingle.sessions.persistence import fingerprints
from ingle.sessions.persistence.fingerprints import Fingerprint
from ingle.sessions.persistence.transfer import Transfer
from ingle.snapshots.user_library import Library
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

MAX_COMPARED_NAMES = 1000
MAX_COMPARED_CHARS = 100
"""Bounds of the names that are compared with one that does not exist."""

LISTING_SECONDS = 1.0
"""Limit of a listing. The worker itself stops looking after a tenth of that."""

NAMESPACE_SECONDS = 10.0
"""Limit for loading the library, and for clearing."""

NAMESPACE_INTERRUPTS = 3
"""Clearing has three steps, and each may need an interrupt of its own."""

MAX_VARIABLES = 10_000
MAX_TEXT_CHARS = 2_000_000
MAX_COLUMNS = 100
MAX_POINTS = 1000
"""Bounds of an answer. An honest worker sends less."""

ANSWERS = (
    messages.Listed,
    messages.Asked,
    messages.ValueMoved,
    messages.Completed,
    messages.Inspected,
    messages.Checked,
    messages.FrameAsked,
)
"""Answers to a question with a ticket."""

Reply = TypeVar("Reply")


class WorkerCalls:
    def __init__(self, session_id: str, grace_seconds: float) -> None:
        self._session_id = session_id
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._ticket = 0
        self._reply: asyncio.Future[Any] | None = None
        self._expected: type | tuple[type, ...] = ()
        self._deadline: Deadline | None = None
        self._library: Library | None = None
        self._version = ""
        self._described: messages.StdlibDescribed | None = None
        self._transfer: Transfer | None = None

    # --- what comes back ---

    def on_message(self, message: Any) -> None:
        """Take an answer of the worker. An answer without a question is dropped."""
        if isinstance(message, messages.ChannelWanted | messages.Loaded):
            if self._transfer is not None:
                self._transfer.on_message(message)
        elif self._reply is None:
            return
        elif isinstance(message, ANSWERS):
            if message.ticket == self._ticket and isinstance(message, self._expected):
                self._resolve(message)
        elif isinstance(message, messages.StdlibCompiled):
            if self._library is not None:
                self._library.codes.setdefault(self._version, message.data)
                self._library = None
        elif isinstance(message, messages.StdlibDescribed):
            # Sent before any of it runs: code that has run could send something else.
            self._described = self._described or message
            if message.problem or not message.added:
                self._resolve(None)  # there is nothing to load
        elif isinstance(message, self._expected):
            self._resolve(message)

    def on_gone(self) -> None:
        """End the call: the worker has ended, and will not answer."""
        self._resolve(None)
        if self._transfer is not None:
            self._transfer.on_gone()

    def _resolve(self, reply: Any) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def interrupt(self) -> None:
        """Interrupt a request about a variable. Other calls have limits of their own."""
        if self._deadline is not None and self._deadline.abandoned is not None:
            self._deadline.expire()

    async def _ask(
        self, worker: Worker, question: object, expected: type[Reply], seconds: float, deadline: Deadline
    ) -> Reply | None:
        """Return the worker's answer; None if the worker ended, or never came to it."""
        assert self._reply is None
        reply = self._reply = self._loop.create_future()
        self._expected, self._deadline = expected, deadline
        deadline.set(seconds)
        worker.send(question)
        try:
            # The worker may have ended before it was asked.
            ends: set[asyncio.Future[Any]] = {reply, worker.gone}
            if deadline.abandoned is not None:
                ends.add(deadline.abandoned)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        finally:
            deadline.cancel()
            self._reply = self._deadline = self._library = None

    # --- variables ---

    async def list(self, worker: Worker) -> Variables | None:
        """Return all variables as the worker describes them; None if it does not answer in time."""
        deadline = self._variable_deadline(worker)
        until = time.monotonic() + LISTING_SECONDS
        question = messages.ListVariables(self._ticket, until)
        answer = await self._ask(worker, question, messages.Listed, LISTING_SECONDS, deadline)
        if answer is None or answer.interrupted or answer.error:
            return None
        kept = answer.variables[:MAX_VARIABLES]
        more = max(answer.more, 0) + len(answer.variables) - len(kept)
        notices = [f"{more} more variables are not listed"] if more else []
        return Variables(self._session_id, [_info(each) for each in kept], more, notices)

    async def fingerprints(self, worker: Worker, hash_seconds: float) -> dict[str, Fingerprint] | None:
        """Return all variables with the hashes that the worker knows by itself; None if it does not answer in time."""
        deadline = self._variable_deadline(worker)
        limit = LISTING_SECONDS + hash_seconds
        question = messages.ListVariables(self._ticket, time.monotonic() + limit, hash_seconds)
        answer = await self._ask(worker, question, messages.Listed, limit, deadline)
        if answer is None or answer.interrupted or answer.error:
            return None
        try:
            return {each.name: fingerprints.told(each) for each in answer.variables[:MAX_VARIABLES]}
        except msgspec.ValidationError:
            return None

    def known(self, names: Iterable[str], why: str) -> Variables:
        """Return the variables by the names that the host knows, and why it is only those."""
        known = sorted(name for name in names if not name.startswith("_"))
        kept = [VariableInfo(name) for name in known[:MAX_VARIABLES]]
        return Variables(self._session_id, kept, len(known) - len(kept), [why])

    async def describe(
        self, worker: Worker, name: str, limit: float, names: Iterable[str], rows: Rows | None = None
    ) -> VariableValue:
        """Return one variable in full, or some of its rows. Runs its `__repr__` and `__str__` in the worker."""
        deadline = self._variable_deadline(worker)
        # The clock is the machine's: a worker that comes to the question only after its time does not begin.
        until = time.monotonic() + limit
        question = messages.AskVariable(self._ticket, until, name)
        if rows is not None:
            column = -1 if rows.column is None else rows.column
            question = messages.AskVariable(self._ticket, until, name, rows.first, rows.count, column)
        answer = await self._ask(worker, question, messages.Asked, limit, deadline)
        if answer is None:
            raise errors.VariableUntold(
                f"the session's process ended while it described {name}, and its variables are lost"
                if worker.gone.done()
                else f"the session did not come to telling of {name}: a task of its event loop blocks it; try again"
            )
        if answer.interrupted:
            raise errors.VariableUntold(
                f"telling of {name} was stopped: its own __repr__ or __str__ took longer than {limit:g} s, "
                "or was interrupted; the session is as it was"
            )
        if answer.error:
            raise errors.VariableUntold(f"{name} cannot be told: its own code raised {answer.error[:1000]}")
        if answer.variable is None:
            raise errors.VariableNotFound(name, _near(name, names))
        notices = [each[:1000] for each in answer.notices[:10]]
        return VariableValue(self._session_id, _info(answer.variable), notices)

    async def move_value(
        self, worker: Worker, name: str, kind: str, path: str, limit: float, names: Iterable[str]
    ) -> messages.ValueMoved:
        """Have the worker write a variable to a file, or set it from one."""
        deadline = self._variable_deadline(worker)
        question = messages.MoveValue(self._ticket, time.monotonic() + limit, name, kind, path)
        answer = await self._ask(worker, question, messages.ValueMoved, limit, deadline)
        if answer is None:
            raise errors.VariableUntold(
                f"the session's process ended or was blocked while it exchanged {name}; try again"
            )
        if answer.interrupted:
            raise errors.VariableUntold(f"exchanging {name} took longer than {limit:g} s, or was interrupted")
        if answer.missing:
            raise errors.VariableNotFound(name, _near(name, names))
        if answer.error:
            raise errors.InvalidRequest(f"the session cannot exchange {name or 'a value'}: {answer.error[:1000]}")
        return answer

    async def ask(
        self, worker: Worker, make: Callable[[int, float], object], expected: type[Reply], limit: float
    ) -> Reply | None:
        """Return the answer to the question that `make` returns for a ticket and the time until which it is of use."""
        deadline = self._variable_deadline(worker)
        return await self._ask(worker, make(self._ticket, time.monotonic() + limit), expected, limit, deadline)

    def _variable_deadline(self, worker: Worker) -> Deadline:
        self._ticket += 1
        # No cell has a negative number, so the signal cannot hit anything else.
        return Deadline(
            worker,
            -self._ticket,
            self._grace_seconds,
            "did not stop telling of a variable when its time was over, and was killed",
            kill_undelivered=False,
        )

    # --- the namespace ---

    async def load_library(self, worker: Worker, library: Library, *, run: bool = True) -> messages.StdlibLoaded | None:
        """Have the user's library loaded, or only kept for clearing. Return None if the worker ended."""
        version = worker.ready.result().python
        code = library.codes.get(version, b"")
        # Code that all later sessions will run is taken only from a worker that has run nothing yet.
        self._library, self._version = (library if not code else None), version
        return await self._ask_namespace(
            worker, messages.LoadStdlib(len(code), run, library.text + code), messages.StdlibLoaded
        )

    async def edit_library(
        self, worker: Worker, text: bytes, addition: str
    ) -> tuple[messages.StdlibDescribed | None, messages.StdlibLoaded | None]:
        """Return what the library holds, or would hold with this addition, and the result of loading it then."""
        self._described = None
        loaded = await self._ask_namespace(worker, messages.EditStdlib(addition, text), messages.StdlibLoaded)
        return self._described, loaded

    async def clear(self, worker: Worker) -> messages.Cleared | None:
        """Reset the namespace. Return None if the worker ended."""
        return await self._ask_namespace(worker, messages.Clear(), messages.Cleared)

    async def _ask_namespace(self, worker: Worker, question: object, expected: type[Reply]) -> Reply | None:
        deadline = Deadline(
            worker,
            messages.PREPARING,
            self._grace_seconds,
            "did not stop preparing its namespace when its time was over, and was killed",
            interrupts=NAMESPACE_INTERRUPTS,
        )
        return await self._ask(worker, question, expected, NAMESPACE_SECONDS, deadline)

    # --- snapshots ---

    async def load(
        self,
        worker: Worker,
        summary: bytes,
        send: Callable[[socket.socket], None],
        executor: Executor,
        *,
        rerun: bool = False,
        random: bool = True,
    ) -> messages.Loaded:
        """Have the worker load a snapshot. `send` writes its bytes, in a thread of the executor."""
        self._transfer = Transfer()
        try:
            return await self._transfer.load(worker, summary, send, executor, rerun=rerun, random=random)
        finally:
            self._transfer = None


def _info(variable: messages.Variable) -> VariableInfo:
    def cut(text: str | None) -> str | None:
        return None if text is None else text[:MAX_TEXT_CHARS]

    return VariableInfo(
        variable.name[:MAX_TEXT_CHARS],
        cut(variable.type),
        variable.shape,
        variable.length,
        variable.size,
        cut(variable.preview),
        cut(variable.value),
        cut(variable.repr),
        None if variable.table is None else _page(variable.table),
    )


def _page(table: messages.TablePage) -> TablePage:
    """Return the rows that a worker told, with bounds that it may have ignored."""
    cut = table.columns[:MAX_COLUMNS], table.types[:MAX_COLUMNS]
    index, cells = table.index[:MAX_ROWS], [row[:MAX_COLUMNS] for row in table.cells[:MAX_ROWS]]
    points = table.points and table.points[:MAX_POINTS]
    return TablePage(*cut, index, cells, table.first, table.total, table.width, points)


def _near(name: str, names: Iterable[str]) -> list[str]:
    """Return names that look like this one. Few and short ones are compared, because that takes time."""
    short = (each for each in names if len(each) <= MAX_COMPARED_CHARS)
    return difflib.get_close_matches(name[:MAX_COMPARED_CHARS], list(islice(short, MAX_COMPARED_NAMES)), 3)
