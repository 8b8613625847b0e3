"""Which files of the session's folder each cell changes.

Changes between two cells belong to neither. Changes by others during a cell count as its own: by a fork that shares the
folder, by a shell task, or by an upload.
"""

from ingle.files import FileChanges
from ingle.sessions.watch.folders import FolderWatches
from ingle.sessions.watch.mark import Mark


class FileTracker:
    def __init__(self, watches: FolderWatches, root: str, *, project: bool) -> None:
        self._watches = watches
        self._folder = watches.watch(root, project=project)
        self._mark = Mark()
        self._told = False
        if self._folder is not None:
            self._folder.add(self._mark)

    @property
    def ready(self) -> bool:
        """Whether the folder is watched, or cannot be."""
        folder = self._folder
        return folder is None or folder.watched or bool(folder.problem)

    async def wait_ready(self) -> None:
        """Watch the folder. Wait a moment only, if it is large."""
        if self._folder is not None:
            await self._folder.ready()

    def begin(self) -> None:
        """Begin a cell."""
        if self._folder is not None:
            self._watches.catch_up()
            self._folder.reset(self._mark)

    def end(self) -> FileChanges | None:
        """End the cell. Return what it changed, or None if that is not known."""
        if self._folder is None:
            return None
        self._watches.read()
        return self._folder.changes(self._mark)

    def take_notices(self) -> list[str]:
        """Return once why changes are not known."""
        if self._told or self._folder is None or not self._folder.problem:
            return []
        self._told = True
        return [f"results of this session do not name the files that cells change: {self._folder.problem}"]

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove(self._mark)
            self._watches.release(folder)
