"""Answers to the host's requests about names and values between cells. SIGINT stops one that takes too long."""

import os
import time
import types
from typing import Any

from ingle_worker.introspection import completion, frames, inspection, table_pages
from ingle_worker.session import traceback_text, variables
from ingle_worker.session.compiler import Compiler
from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link
from ingle_worker.snapshot import fingerprints
from ingle_worker.wire.messages import (
    Asked,
    AskFrame,
    AskVariable,
    CheckCode,
    Checked,
    Complete,
    Completed,
    FrameAsked,
    Inspect,
    Inspected,
    Listed,
    ListVariables,
    MoveValue,
    ValueMoved,
    Variable,
)

MAX_ERROR_CHARS = 1000

Question = ListVariables | AskVariable | MoveValue | Complete | Inspect | CheckCode | AskFrame
ANSWERS: dict[type, Any] = {
    ListVariables: Listed,
    AskVariable: Asked,
    MoveValue: ValueMoved,
    Complete: Completed,
    Inspect: Inspected,
    CheckCode: Checked,
    AskFrame: FrameAsked,
}
"""Answers without content: of a request that was interrupted, or raised an error."""

QUESTIONS: Any = tuple(ANSWERS)


class NamespaceQuestions:
    def __init__(self, link: Link, interrupts: Interrupts, main: types.ModuleType, compiler: Compiler) -> None:
        self._link = link
        self._interrupts = interrupts
        self._main = main
        self._compiler = compiler
        self.failure: BaseException | None = None
        """Exception that ended the last cell. Its frames are alive until the next one."""

    def answer(self, message: Question) -> None:
        ticket = message.ticket
        me = os.getpid()
        without_content = ANSWERS[type(message)]
        answer: object = without_content(ticket, interrupted=True)
        if time.monotonic() > message.until:
            self._link.send(answer)
            return
        try:
            try:
                # A number that no cell has, so an interrupt for this request hits nothing else.
                self._interrupts.cell_begins(-ticket)
                answer = self._look(message)
            finally:
                self._interrupts.cell_ended()
        except KeyboardInterrupt:
            self._interrupts.cell_ended()
            answer = without_content(ticket, interrupted=True)
        except BaseException as error:  # user code: __repr__ may exit, or raise anything
            raised = traceback_text.bare(error)
            answer = without_content(ticket, error=f"{raised.name}: {raised.value}"[:MAX_ERROR_CHARS])
        if os.getpid() != me:
            os._exit(1)  # a process forked by the user's __repr__
        self._link.send(answer)

    def _look(self, message: Question) -> object:
        space = vars(self._main)
        ticket = message.ticket
        match message:
            case MoveValue():
                return variables.move(message, space)
            case ListVariables():
                named = variables.named_values(space)
                listed = variables.describe_all(named[: variables.MAX_NAMES])
                if message.hash_seconds:
                    fingerprints.add_to(listed, named, message.hash_seconds)
                more = len(named) - len(listed)
                return Listed(ticket, [Variable(**each) for each in listed], more)
            case AskVariable():
                if message.name not in space:
                    return Asked(ticket)
                value = space[message.name]
                table = None
                if message.rows:
                    table = table_pages.page(value, message.first, message.rows, message.column)
                if table is not None:
                    (variable,) = variables.describe_all([(message.name, value)])
                    return Asked(ticket, Variable(**variable, table=table))
                variable, notices = variables.whole(message.name, value)
                return Asked(ticket, Variable(**variable), notices)
            case Complete():
                matches, replaced, more = completion.complete(space, message.code)
                return Completed(ticket, matches, replaced, more)
            case Inspect():
                before, after = message.code[: message.cursor], message.code[message.cursor :]
                return inspection.inspect_at(ticket, space, before, after, source=message.source)
            case CheckCode():
                return Checked(ticket, *self._compiler.check(message.code))
            case AskFrame():
                return frames.answer(message, self.failure)
