"""A fork that becomes the session that it was forked from: its process, its files and its cells.

The process goes on without running anything again. Its cells follow those of the session, with numbers of their own
there.
"""

import time
from typing import TYPE_CHECKING

from ingle import errors
from ingle.files import FileChanges
from ingle.sessions.forks.replacement import Replacement
from ingle.sessions.persistence.checkpoints import Moment
from ingle.trees.store import KeptTree, NotKept, Trees
from ingle.workers import views
from ingle.workers.worker import Worker

if TYPE_CHECKING:
    from ingle.sessions.session import Session


def check(session: "Session", fork: "Session", worker: Worker) -> None:
    """Raise Conflict if the process of this fork cannot be that of the session."""
    if not fork.folders.is_fork_of(session.folders):
        raise errors.Conflict(
            f"{fork.id!r} is not a fork of {session.id!r}; take single variables and files from it with `merge`"
        )
    if worker.siblings is not fork.forked_below:
        # Its sandbox was made for the fork's folder, and shows no other one.
        raise errors.Conflict(
            f"{fork.id!r} has been started anew since it was forked, and its process sees only its own files; "
            "take variables and files from it with `merge`"
        )


async def adopt(session: "Session", fork: "Session", worker: Worker) -> tuple[str, FileChanges | None]:
    """Make the process of a fork the session's. Return a sentence about it, and which files changed.

    The caller holds the turns of both, and ends the fork if it has no process any more.
    """
    tree = await _take_files(fork, worker)
    try:
        await fork.slot.note_files(worker)
        if fork.worker is not worker or not worker.alive:
            raise errors.Conflict(f"the process of {fork.id!r} has ended, so that it cannot be adopted")
        text = _told(session, fork)
        moment = fork.slot.moment(fork.last_cell).moved(fork.folders.workspace, session.folders.workspace)
        # The fork's own ends with the fork.
        worker.blank = None if session.worker is None else session.worker.blank
        fork.slot.give_away()
        session.trials.take_folders(fork)
        return text, await _replace(session, fork, worker, moment, tree, text)
    finally:
        session.kept_files.release(tree)


async def _replace(
    session: "Session", fork: "Session", worker: Worker, moment: Moment, tree: KeptTree | NotKept, text: str
) -> FileChanges | None:
    folders = fork.folders
    assert session.slot.folders is not None

    async def make() -> tuple[Worker, None]:
        return worker, None

    async def leave_view(worker: Worker) -> None:
        await views.undo(worker, str(folders.folder), session.folders.workspace, [], *session.folders.fork_shown)

    replacement = Replacement(
        text,
        f"{fork.id!r} was adopted",
        moment,
        session.slot.folders,
        Trees(tree),
        make,
        time.time(),
        leave_view=leave_view if folders.has_view else None,
        source=folders.workspace if folders.separate else "",
    )
    try:
        _, changes = await session.slot.replace(replacement)
    finally:
        if session.worker is not worker:
            worker.kill()
    for cell in fork.journal.history.own_cells:
        await session.journal.absorb(fork.journal, cell)
    session.runner.last_begun = fork.runner.last_begun
    session.runner.last_ended = time.monotonic()
    session.saves.changed()
    return changes


async def _take_files(fork: "Session", worker: Worker) -> KeptTree | NotKept:
    if not fork.folders.separate:
        return NotKept("the fork shared them")
    try:
        return await fork.kept_files.take(worker)
    except NotKept as why:
        raise errors.Conflict(f"the files of {fork.id!r} cannot be taken over: {why}") from None


def _told(session: "Session", fork: "Session") -> str:
    count = len(fork.journal.history.own_cells)
    first = session.last_cell + 1
    cells = (
        "" if not count else f", with cell {first}" if count == 1 else f", with cells {first} to {first + count - 1}"
    )
    return f"adopted {fork.id!r}: its variables and files are now those of this session{cells}"
