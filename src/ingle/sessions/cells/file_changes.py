"""Which files each cell changes: in the folder that the session starts in, its own, and tracked ones.

Changes between two cells belong to neither. Changes by others during a cell count as its own: by a fork that shares the
folder, by a shell task, or by an upload.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingle.files import FileChanges
from ingle.render.phrases import UNNAMED_FILES
from ingle.sessions.watch.folders import FolderWatch, FolderWatches
from ingle.sessions.watch.mark import MAX_CHANGES, NOTHING, Mark
from ingle.support.folder_paths import outermost, told_path
from ingle.trees.folder_changes import FolderChanges


@dataclass(frozen=True)
class Root:
    """A folder whose changes are told."""

    place: str
    """The folder, as the host sees it."""
    path: str
    """The folder, as it is told."""
    project: bool
    """Whether some directories in it belong to other programs."""
    tracked: tuple[str, ...] = ()
    """Tracked folders in it, or the folder itself."""


@dataclass(frozen=True)
class _Watched:
    root: Root
    folder: FolderWatch
    mark: Mark = field(default_factory=Mark)


def roots_of(own: Root, start: str | None, tracked: Sequence[str]) -> list[Root]:
    """Return the folders whose changes are told, each inside of no other. `start` is another than its own."""
    found = [own]
    for folder in outermost([*([start] if start is not None else []), *tracked]):
        within = tuple(each for each in tracked if f"{each}/".startswith(f"{folder}/"))
        found.append(Root(folder, folder, True, within))
    return found


class FileTracker:
    def __init__(
        self, watches: FolderWatches, roots: Sequence[Root], start: str, changes: FolderChanges, key: str
    ) -> None:
        """Paths below `start` are told relative to it. `key` is that of the session, for which `changes` are noted."""
        self._watches = watches
        self._start = start
        self._changes = changes
        self._key = key
        self._watched: list[_Watched] = []
        self._told = False
        for root in roots:
            folder = watches.watch(root.place, project=root.project)
            if folder is not None:
                self._watched.append(_Watched(root, folder))
                folder.add(self._watched[-1].mark)

    @property
    def ready(self) -> bool:
        """Whether each folder is watched, or cannot be."""
        return all(each.folder.watched or each.folder.problem for each in self._watched)

    async def wait_ready(self) -> None:
        """Watch the folders. Wait a moment only, if they are large."""
        for each in self._watched:
            await each.folder.ready()

    def begin(self) -> None:
        """Begin a cell."""
        if self._watched:
            # A commit or an upload may have ended in this turn of the event loop, which has not read its events yet.
            self._watches.read()
            for each in self._watched:
                each.folder.reset(each.mark)

    def end(self) -> FileChanges | None:
        """End the cell. Return what it changed, or None if that is not known."""
        if not self._watched:
            return None
        self._watches.read()
        touched = [
            (each.root, changes) for each in self._watched if (changes := each.folder.changes(each.mark)) is not NOTHING
        ]
        if not touched:
            return NOTHING
        for folder in (folder for root, _ in touched for folder in root.tracked):
            self._changes.note(folder, self._key)
        groups: tuple[list[str], list[str], list[str]] = ([], [], [])
        for root, changes in touched:
            if changes is None:
                return None
            for group, paths in zip(groups, (changes.created, changes.changed, changes.deleted), strict=True):
                group += (
                    paths if root.path == self._start else [told_path(self._start, root.path, path) for path in paths]
                )
        if sum(map(len, groups)) > MAX_CHANGES:
            return None
        return FileChanges(*map(sorted, groups))

    def take_notices(self) -> list[str]:
        """Return once why changes are not known."""
        problems = [each.folder.problem for each in self._watched if each.folder.problem]
        if self._told or not problems:
            return []
        self._told = True
        return [f"{UNNAMED_FILES}{problems[0]}"]

    def close(self) -> None:
        watched, self._watched = self._watched, []
        for each in watched:
            each.folder.remove(each.mark)
            self._watches.release(each.folder)
