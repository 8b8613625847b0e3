"""Description of a session for listings."""

import os

from ingle.events import SessionInfo
from ingle.grants import OPEN_LEVELS
from ingle.requests import SessionLimits
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.persistence.autosave import AutoSave
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.spec import SessionSpec
from ingle_worker.wire import states


def describe_session(
    spec: SessionSpec,
    created_at: float,
    python: str | None,
    cells: CellRunner,
    slot: ProcessSlot,
    journal: Journal,
    autosave: AutoSave | None,
) -> SessionInfo:
    """Return what the host knows of a session without asking the kernel.

    `python` is None until a worker has reported its version.
    """
    names = sorted(name for name in slot.names if not name.startswith("_"))
    notices = journal.notices.all
    if cells.running is not None:
        notices.append("a cell is running; variables are those of the last finished cell")
    if spec.grant.gpus.hidden and spec.grant.isolation in OPEN_LEVELS:
        notices.append("other GPUs are only hidden from its libraries; in a sandbox it cannot open them")
    saved = autosave.last if autosave is not None else None
    if autosave is not None:
        notices += autosave.notices(hibernated=cells.state == states.HIBERNATED)
    return SessionInfo(
        session_id=spec.session_id,
        state=cells.state,
        created_at=created_at,
        last_executed=cells.last_begun,
        execution_count=cells.count,
        variable_count=len(names),
        variables=names,
        python=python or (saved.python if saved is not None else ""),
        cwd=slot.cwd,
        isolation=spec.grant.isolation,
        network=spec.grant.network,
        memory=None,
        cpu_seconds=None,
        idle_timeout=spec.idle_timeout,
        durable=autosave is not None and autosave.durable,
        notices=notices,
        saved_at=saved.time if saved is not None else None,
        saved_cell=saved.cell if saved is not None else None,
        limits=spec.grant.limits,
        next_event=journal.timeline.next_seq,
        environment=os.path.basename(os.path.dirname(spec.grant.build)) or None,
        gpus=list(spec.grant.gpus.cards.numbers),
        parent=spec.parent or None,
    )


def add_usage(info: SessionInfo, slot: ProcessSlot, limits: SessionLimits) -> None:
    """Add what the kernel knows: the limits that are in force, memory and CPU time. This takes a while."""
    info.limits = slot.workspace.limits_in_force(slot.worker, limits)
    if slot.worker is not None:
        info.memory, info.cpu_seconds = slot.worker.usage()
