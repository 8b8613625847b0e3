"""Events of a session's worker: each goes to the object that it is about. A worker that has ended is replaced."""

from dataclasses import replace
from typing import Any

from ingle.events import Exit
from ingle.sessions.cells.back_pressure import BackPressure
from ingle.sessions.cells.hints import NO_HINTS, Failure, Hints
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.notices import loss_notice
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.forks.failures import Failures
from ingle.sessions.metrics import Telemetry
from ingle.sessions.persistence.checkpoints import Checkpoints
from ingle.sessions.persistence.save_schedule import SaveSchedule
from ingle.sessions.persistence.worker_copies import WorkerCopies
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import SlotState
from ingle.sessions.process.workspace import EgressRefused
from ingle.sessions.spec import SessionSpec
from ingle.sessions.tools.calls import SessionTools
from ingle.support.background import Tasks
from ingle_worker.wire import messages


class WorkerEvents:
    def __init__(
        self,
        spec: SessionSpec,
        slot: ProcessSlot,
        runner: CellRunner,
        calls: WorkerCalls,
        journal: Journal,
        copies: WorkerCopies,
        checkpoints: Checkpoints,
        saves: SaveSchedule,
        telemetry: Telemetry,
        tasks: Tasks,
        tools: SessionTools,
        failures: Failures,
        hints: Hints = NO_HINTS,
    ) -> None:
        self._spec = spec
        self._slot = slot
        self._runner = runner
        self._calls = calls
        self._journal = journal
        self._copies = copies
        self._checkpoints = checkpoints
        self._saves = saves
        self._telemetry = telemetry
        self._tasks = tasks
        self._tools = tools
        self._failures = failures
        self._hints = hints
        self._ending: messages.Done | None = None
        """End of the cell whose hints are being looked for."""
        self._back_pressure = BackPressure(journal, slot, tasks)

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        self._telemetry.output_bytes += len(data)
        self._journal.output(stream, data, background)
        self._back_pressure.check()

    def on_message(self, message: Any) -> None:
        match message:
            case messages.Done():
                if message.error is not None and (self._hints.has(message.error.name) or self._failures.wants(message)):
                    self._ending = message
                    self._runner.on_ending(message)
                    self._tasks.start(self._end_failed(message, message.error))
                else:
                    self._end_cell(self._with_code_hints(message))
                return
            case messages.Result() | messages.Display():
                self._journal.shown(message)
            case messages.KeepImage():
                self._tasks.start(self._journal.store_image(message.data))
            case messages.InputWait():
                self._runner.on_input_wait(message)
            case messages.InputTaken():
                self._runner.on_input_taken(message)
            case messages.ToolRequest():
                if self._slot.worker is not None:
                    self._tools.on_request(self._slot.worker, message)
            case messages.ToolCancel():
                if self._slot.worker is not None:
                    self._tools.on_cancel(self._slot.worker, message.call)
            case messages.Exiting():
                self._runner.on_exiting(message)
            case messages.Started():
                self._slot.on_started(message)
            case EgressRefused():
                self._telemetry.note("egress_refused", self._slot.key, reason=message.text)
                self._runner.on_refused(message.text)
            case _:
                self._calls.on_message(message)
        self._back_pressure.check()

    def _with_code_hints(self, done: messages.Done) -> messages.Done:
        cell = self._runner.running
        if cell is None or done.error is not None:
            return done
        notices = self._hints.of_code(cell.code, self._spec.grant.gpus.cards.numbers)
        return replace(done, notices=[*done.notices, *notices]) if notices else done

    def _end_cell(self, done: messages.Done) -> None:
        if self._runner.on_done(done):
            self._saves.changed()

    async def _end_failed(self, done: messages.Done, error: messages.Raised) -> None:
        """End the cell once its failure is kept, and the hints for its exception are known."""
        notices: list[str] = []
        if self._slot.worker is not None and self._failures.wants(done):
            notices += await self._failures.keep(self._slot.worker, done)
        if self._hints.has(error.name):
            notices += await self._find_hints(error)
        if self._ending is done:
            self._ending = None
            self._end_cell(replace(done, notices=[*done.notices, *notices]))

    async def _find_hints(self, error: messages.Raised) -> list[str]:
        slot, spec, cell = self._slot, self._spec, self._runner.running
        now, later = (
            () if launcher.confinement is None else launcher.confinement.granted
            for launcher in (slot.launcher, slot.next_launcher)
        )
        grant = spec.grant
        failure = Failure(
            error.name,
            error.value,
            "" if cell is None else cell.code,
            spec.tenant,
            grant.isolation,
            grant.network,
            slot.cwd,
            granted=now,
            later=later,
            gpus=grant.gpus.cards.numbers,
        )
        return await self._hints.find(failure)

    def on_gone(self, exit: Exit) -> None:
        """Replace a worker that has ended, with everything below it. All its output has been seen."""
        if self._ending is not None:
            # The cell had ended before.
            done, self._ending = self._ending, None
            self._end_cell(done)
        slot, cell = self._slot, self._runner.running
        starting = slot.state is not SlotState.UP
        exit = slot.explain(exit)
        self._telemetry.worker_ended(slot.key, exit, slot.ending)
        lost = bool(slot.names) or self._runner.count > 0
        slot.on_gone(exit)
        if not starting or slot.replacing:
            # A cell that exits wants to begin anew. Every other end of a worker was not asked for.
            slot.restores = self._saves.worker_lost(anew=cell is not None and cell.exiting is not None)
        if starting and cell is None and not slot.ending:
            # The start goes on with another worker.
            if slot.replacing and lost:
                self._journal.notices.add(loss_notice(exit, None, restores=slot.restores))
            return
        # Checkpoints end with the whole process tree, if that was killed.
        reported = cell is not None and (exit.signal or exit.code is not None)
        way_back = self._checkpoints.way_back if reported else ""
        self._runner.on_lost(exit, way_back)
        if slot.ending:
            return
        if lost:
            number = cell.number if cell is not None else None
            self._journal.notices.add(loss_notice(exit, number, restores=slot.restores))
        slot.begin()
        tmp = slot.workspace.forget_tmp()
        if not slot.restores:
            self._copies.drop_tmp(tmp)
