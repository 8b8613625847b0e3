"""Help for people who write code in a session: completions, descriptions, and whether code is complete.

The worker answers between cells, from its live objects and without running user code. While a cell runs, the host
completes plain names by those it knows.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from ingle import errors
from ingle.introspection import Completeness, Completion, Inspection, Suggestion
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.sessions.process.slot import ProcessSlot
from ingle_worker.wire import messages

MAX_SECONDS = 2.0
"""Limit of one answer. The worker itself needs a few milliseconds, or a fifth of a second to read folders."""

MAX_CHARS_BEFORE = 10_000
MAX_CHARS_AFTER = 1000
"""Code around the cursor that is looked at."""

MAX_MATCHES = 1000
MAX_NAME_CHARS = 1000
MAX_TEXT_CHARS = 200_000
"""Bounds of an answer. An honest worker sends less."""

CELL_RUNS = "a cell is running; the names are those of the last finished cell"
NO_ANSWER = "the session did not answer in time; try again"

_NAME_BEFORE = re.compile(r"(?<![\w.])[^\W\d]\w*$")

Reply = TypeVar("Reply", messages.Completed, messages.Inspected, messages.Checked)


class Introspection:
    def __init__(self, session_id: str, worker: ExclusiveWorker, slot: ProcessSlot, calls: WorkerCalls) -> None:
        self._session_id = session_id
        self._worker = worker
        self._slot = slot
        self._calls = calls

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return the names that may stand at the cursor. While a cell runs, return names the host knows."""
        line = code[:cursor].rpartition("\n")[2][-MAX_CHARS_BEFORE:]
        try:
            answer = await self._ask(lambda ticket, until: messages.Complete(ticket, until, line), messages.Completed)
        except errors.Busy:
            return self._known(line, cursor)
        if answer is None:
            return Completion(self._session_id, [], cursor, cursor, notices=[NO_ANSWER])
        matches = [
            Suggestion(each.text[:MAX_NAME_CHARS], each.type[:MAX_NAME_CHARS]) for each in answer.matches[:MAX_MATCHES]
        ]
        replaced = min(max(answer.replaced, 0), len(line))
        more = max(answer.more, 0) + len(answer.matches) - len(matches)
        return Completion(self._session_id, matches, cursor - replaced, cursor, more)

    def _known(self, line: str, cursor: int) -> Completion:
        match = _NAME_BEFORE.search(line)
        prefix = match[0] if match else ""
        names = sorted(each for each in self._slot.names if prefix and each.startswith(prefix))
        matches = [Suggestion(each) for each in names[:MAX_MATCHES]]
        more = len(names) - len(matches)
        return Completion(self._session_id, matches, cursor - len(prefix), cursor, more, [CELL_RUNS])

    async def inspect(self, code: str, cursor: int, *, source: bool) -> Inspection:
        """Return a description of the object at the cursor. Raise Busy while a cell runs."""
        before, after = code[:cursor][-MAX_CHARS_BEFORE:], code[cursor : cursor + MAX_CHARS_AFTER]
        answer = await self._ask(
            lambda ticket, until: messages.Inspect(ticket, until, len(before), source, before + after),
            messages.Inspected,
        )
        if answer is None:
            return Inspection(self._session_id, False, notices=[NO_ANSWER])
        found = answer.variable
        if found is None:
            return Inspection(self._session_id, False)
        return Inspection(
            self._session_id,
            True,
            found.name[:MAX_NAME_CHARS],
            found.type[:MAX_NAME_CHARS],
            answer.signature[:MAX_TEXT_CHARS],
            answer.doc[:MAX_TEXT_CHARS],
            answer.source[:MAX_TEXT_CHARS],
            (found.preview or "")[:MAX_TEXT_CHARS],
            found.shape,
            found.length,
            found.size,
        )

    async def check(self, code: str) -> Completeness:
        """Return whether code is complete. Raise Busy while a cell runs."""
        answer = await self._ask(lambda ticket, until: messages.CheckCode(ticket, until, code), messages.Checked)
        if answer is None or answer.status not in ("complete", "incomplete", "invalid"):
            return Completeness(self._session_id, "unknown")
        return Completeness(self._session_id, answer.status, answer.indent[:MAX_NAME_CHARS])

    async def _ask(self, make: Callable[[int, float], object], expected: type[Reply]) -> Reply | None:
        """Return the worker's answer; None if there is none in time."""
        answer = await self._worker.call(
            "introspection", lambda worker: self._calls.ask(worker, make, expected, MAX_SECONDS)
        )
        return None if answer is None or answer.interrupted or answer.error else answer
