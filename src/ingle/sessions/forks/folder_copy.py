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


async def fill_folder(worker: Worker, forked: ForkedFiles, files: KeptFiles, notices: Notices) -> KeptTree | None:
    """Bring the original's files into the folder of a fork. Return them if all of them are there.

    The fork itself makes its folder, or its view has made it. So there is nothing to do if the original has no files.
    """
    try:
        if forked.view is not None:
            await forked.view.give_to(worker)
        failed: list[str] = []
        tree = forked.tree
        if isinstance(tree, KeptTree) and tree.tree.entries:
            failed = (await files.restore(worker, tree, new=True)).failed
    except (NotKept, NoView) as why:
        raise errors.StartFailed(f"the files of a fork could not be copied: {why}; try again") from None
    if failed:
        notices.add(f"files that could not be copied: {some(failed, MAX_FILES_NAMED)}")
    return tree if isinstance(tree, KeptTree) and not failed else None
