"""Folder of a fork, filled with the files of its original."""

from ingle import errors
from ingle.render.phrases import some
from ingle.sessions.cells.notices import Notices
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.spec import ForkedFiles
from ingle.trees.store import NotKept
from ingle.workers.views import NoView
from ingle.workers.worker import Worker

MAX_FILES_NAMED = 5


async def fill_folder(worker: Worker, forked: ForkedFiles, files: KeptFiles, notices: Notices) -> list[int]:
    """Bring the original's files into the folder of a fork. Return the key of its view, if it has one."""
    try:
        if forked.view is not None:
            await forked.view.give_to(worker)
        restored = await files.restore(worker, forked.tree, new=True)
    except (NotKept, NoView) as why:
        raise errors.StartFailed(f"the files of a fork could not be copied: {why}; try again") from None
    if restored.failed:
        notices.add(f"files that could not be copied: {some(restored.failed, MAX_FILES_NAMED)}")
    return [] if forked.view is None else forked.view.key
