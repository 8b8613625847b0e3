"""Evaluation of one cell in the user's namespace. Exceptions of the cell end in its outcome."""

import sys
import types
from typing import Any

from ingle_worker.display.import_hooks import MODULES
from ingle_worker.display.matplotlib_figures import PYPLOT, Figures
from ingle_worker.session import traceback_text
from ingle_worker.session.compiler import SYNTAX_ERRORS, Compiled, Compiler, needs_more_input
from ingle_worker.session.event_loop import EventLoop
from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.wire import states
from ingle_worker.wire.messages import Raised

CO_COROUTINE = 0x80


class Outcome:
    """How a cell ended, as far as the guest knows."""

    status: str = states.OK
    error: Raised | None = None
    exception: BaseException | None = None
    exit: SystemExit | None = None
    needs_more_input = False
    finished = False


class Evaluator:
    def __init__(
        self,
        main: types.ModuleType,
        compiler: Compiler,
        event_loop: EventLoop,
        interrupts: Interrupts,
        output: OutputStreams,
        figures: Figures,
    ) -> None:
        self._main = main
        self._compiler = compiler
        self._event_loop = event_loop
        self._interrupts = interrupts
        self._output = output
        self.figures = figures

    def evaluate(self, code: str, filename: str, outcome: Outcome) -> Compiled | None:
        """Compile and run a cell, and record exceptions in `outcome`."""
        compiled: Compiled | None = None
        traceback_text.remember_source(filename, code)
        try:
            try:
                compiled = self._compiler.compile(code, filename)
            except SYNTAX_ERRORS as exc:
                outcome.status = states.ERROR
                outcome.error = describe_safely(exc)
                outcome.needs_more_input = isinstance(exc, SyntaxError) and needs_more_input(code)
            else:
                if PYPLOT in MODULES:
                    self.figures.cell_begins()
                self.run(compiled)
        except SystemExit as exc:
            outcome.status, outcome.exit = states.EXIT, exc
        except BaseException as exc:
            interrupted = isinstance(exc, KeyboardInterrupt)
            outcome.exception = exc
            outcome.status = states.INTERRUPTED if interrupted else states.ERROR
            try:
                outcome.error = describe_safely(exc)
            except KeyboardInterrupt:
                outcome.status, outcome.error = states.INTERRUPTED, traceback_text.bare(exc, ask=False)
        if sys.gettrace() is not None:
            traceback_text.end_stepping()
        if PYPLOT in MODULES or self.figures.any:
            try:
                self.figures.cell_ends(interrupted=outcome.status == states.INTERRUPTED)
            except KeyboardInterrupt as exc:
                if outcome.status == states.OK:
                    outcome.status, outcome.error = states.INTERRUPTED, describe_safely(exc)
        outcome.finished = True
        return compiled

    def run(self, compiled: Compiled) -> None:
        space = vars(self._main)
        if compiled.awaits:
            self._output.has_tasks = self._output.crowded = True
            value = self._event_loop.run(lambda: self._run_async(compiled, space))
        else:
            if compiled.body is not None:
                exec(compiled.body, space)
            value = eval(compiled.last, space) if compiled.last is not None else None
        if compiled.last is not None:
            sys.displayhook(value)

    async def _run_async(self, compiled: Compiled, space: dict[str, Any]) -> Any:
        if compiled.body is not None:
            await self._run_part(compiled.body, space)
        return await self._run_part(compiled.last, space) if compiled.last is not None else None

    async def _run_part(self, code: types.CodeType, space: dict[str, Any]) -> Any:
        if not code.co_flags & CO_COROUTINE:
            return eval(code, space)
        running = None
        try:
            # An interrupt between the two lines would leave a coroutine that is never awaited, which Python warns
            # about.
            self._interrupts.shield()
            try:
                running = eval(code, space)
            finally:
                self._interrupts.unshield()
            return await running
        finally:
            if running is not None:
                running.close()


def describe_safely(exc: BaseException) -> Raised:
    try:
        return traceback_text.describe(exc)
    except KeyboardInterrupt:
        raise
    except BaseException:  # user code: methods of the exception
        return traceback_text.bare(exc)
