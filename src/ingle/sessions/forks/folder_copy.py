"""Folder of a fork, filled with the files of its original."""

from ingle import errors
from ingle.render.phrases import some
from ingle.sessions.cells.notices import Notices
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.spec import ForkedFiles
from ingle.trees.store import KeptTree, NotKept
from ingle.workers.views import NoView
from ingle.workers.worker import Worker

MAX_FILES_NAMED = 5


async def fill_folder(worker: Worker, forked: ForkedFiles, files: KeptFiles, notices: Notices) -> list[int]:
    """Bring the original's files into the folder of a fork. Return the key of its view, if it has one."""
    try:
        if forked.view is not None:
            await forked.view.give_to(worker)
        failed: list[str] = []
        tree = forked.tree
        if isinstance(tree, KeptTree) and (forked.view is None or tree.tree.entries):
            # The view of a fork has made its folder.
            failed = (await files.restore(worker, tree, new=True)).failed
        if isinstance(tree, KeptTree) and not failed:
            await files.know(worker, tree)
    except (NotKept, NoView) as why:
        raise errors.StartFailed(f"the files of a fork could not be copied: {why}; try again") from None
    if failed:
        notices.add(f"files that could not be copied: {some(failed, MAX_FILES_NAMED)}")
    return [] if forked.view is None else forked.view.key
