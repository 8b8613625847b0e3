"""Watches of folders in one inotify instance: marks are set on a folder, and tell later which files have changed.

Without a change, a mark costs no system call to set, and one to read. A folder that changes too fast is not followed
event by event: its watches are removed, and a comparison of its files with those before gives the answer.
"""

import asyncio
import contextlib
import errno
import logging
import os

from ingle.files import FileChanges
from ingle.sessions.watch.listing import DIRECTORY, Directory, Listing, TooLarge, open_below
from ingle.sessions.watch.mark import Mark
from ingle.support import inotify
from ingle.support.inotify import Event, Inotify

logger = logging.getLogger(__name__)

MAX_FILES = 20_000
MAX_FOLDERS = 1000
"""Size of a folder that is watched. A larger one is not watched at all."""

QUICK_FILES = 2000
QUICK_FOLDERS = 200
"""Size of a folder that is listed at once. A larger one is listed in a thread."""

MAX_EVENTS = 4000
"""Events of one folder after a mark that are followed one by one."""

FOLDER_EVENTS = 10
"""A new directory costs as much as so many other events."""

PAUSE_SECONDS = 0.05
"""Pause between two reads that no mark asks for: a busy folder must not keep the event loop busy."""

LIST_SECONDS = 0.2
"""How long a cell waits for the list of a large folder. Then it begins, and its changes are unknown."""

USER_SHARE = 4
"""A server uses at most one of so many parts of the user's watches. Editors need some too."""

DEFAULT_USER_WATCHES = 8192

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox"})
"""Directories of a project that are not watched: other programs own them, and they are large."""

_APPEARED = inotify.CREATE | inotify.MOVED_TO
_VANISHED = inotify.DELETE | inotify.MOVED_FROM
_SELF_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT


class Watches:
    """Watches of the kernel, and the folders that each belongs to: folders may overlap."""

    def __init__(self, kernel: Inotify, most: int) -> None:
        self.kernel = kernel
        self._most = most
        self.folders: dict[int, list[FolderWatch]] = {}
        self.listing: set[FolderWatch] = set()
        """Folders that a thread lists, so that they do not know all their watches yet."""

    @property
    def left(self) -> int:
        return max(0, self._most - len(self.folders))

    def add(self, watch: int, folder: "FolderWatch") -> None:
        self.folders.setdefault(watch, []).append(folder)

    def remove(self, watch: int, folder: "FolderWatch") -> None:
        """Remove a watch of a folder. The kernel's ends with its last folder."""
        holders = self.folders.get(watch, [])
        if folder in holders:
            holders.remove(folder)
        if not holders:
            self.folders.pop(watch, None)
            self.kernel.remove(watch)


class FolderWatch:
    """One watched folder, for all sessions that use it."""

    def __init__(self, watches: Watches, root: str, skipped: frozenset[str]) -> None:
        self.root = root
        self.holders = 0
        self.problem = ""
        """Why the folder is not watched."""
        self._watches = watches
        self._skipped = skipped
        self._top: Directory | None = None
        self._directories: dict[int, Directory] = {}
        """By watch."""
        self._marks: list[Mark] = []
        self._events = 0
        self._listing: asyncio.Task[None] | None = None
        self._early: list[Event] = []
        """Events that came while a thread listed the folder."""

    # --- marks ---

    @property
    def watched(self) -> bool:
        return self._top is not None

    def add(self, mark: Mark) -> None:
        self._marks.append(mark)

    def remove(self, mark: Mark) -> None:
        self._marks.remove(mark)

    def reset(self, mark: Mark) -> None:
        """Let an added mark collect changes from now on. All events have been read."""
        mark.reset()
        self._events = 0
        if self._top is None and not self._list_quickly():
            if os.path.lexists(self.root):
                mark.unknown = True
            else:
                # A folder that does not exist yet is empty. It is listed when the changes are asked for.
                mark.base = set()

    def changes(self, mark: Mark) -> FileChanges | None:
        """Return the changes since the mark was set, or None if they are not known. All events have been read."""
        if mark.base is not None:
            self._list_quickly()
        return mark.changes()

    async def ready(self) -> None:
        """Watch the folder, if it is not watched yet. For a large one, wait a moment only."""
        if self._top is None and self._listing is None and not self.problem and not self._list_quickly():
            self._listing = asyncio.get_running_loop().create_task(self._list_slowly())
        if self._listing is not None:
            await asyncio.wait({self._listing}, timeout=LIST_SECONDS)

    # --- listing ---

    def _list_quickly(self) -> bool:
        """Watch the folder if it is small. Return whether it is watched now."""
        if self._listing is not None or self.problem:
            return False
        times = any(mark.base is not None for mark in self._marks)
        return self._take(*self._list(QUICK_FILES, QUICK_FOLDERS, times=times))

    async def _list_slowly(self) -> None:
        self._watches.listing.add(self)
        most = min(MAX_FOLDERS, self._watches.left)
        try:
            listing, failure = await asyncio.to_thread(self._list, MAX_FILES, most, times=True)
        finally:
            self._watches.listing.discard(self)
            self._listing = None
        if self._take(listing, failure):
            for event in self._early:
                self.handle(event)
            if len(self._early) == MAX_EVENTS:
                self.lose()
        elif isinstance(failure, TooLarge):
            self.problem = f"{self.root} has more than {MAX_FILES} files or {most} folders"
        elif isinstance(failure, OSError) and failure.errno == errno.ENOSPC:
            self.problem = "the kernel's watches are used up; raise fs.inotify.max_user_watches"
        self._early = []

    def _list(self, files: int, folders: int, *, times: bool) -> tuple[Listing, Exception | None]:
        """Return what was watched and listed, and why that is not all."""
        listing = Listing(self._watches.kernel, self._skipped, files, folders, times=times)
        try:
            listing.enter(os.open(self.root, DIRECTORY), "")
        except (TooLarge, OSError) as failure:
            return listing, failure
        return listing, None

    def _take(self, listing: Listing, failure: Exception | None) -> bool:
        """Follow the events of what was listed, and answer the marks that lack events. Return whether that went."""
        for each in listing.directories:
            self._watches.add(each.watch, self)
        self._directories = {each.watch: each for each in listing.directories}
        if failure is not None:
            self.close()
            return False
        self._top = listing.directories[0]
        self._events = 0
        for mark in self._marks:
            if mark.base is not None:
                mark.compare(listing.files)
        return True

    def lose(self) -> None:
        """Stop following events, because some were lost or there are too many. Marks remember what was before."""
        if self._top is not None:
            known = set(self._top.all_files())
            for mark in self._marks:
                mark.stop(known)
            self.close()

    def close(self) -> None:
        for watch in self._directories:
            self._watches.remove(watch, self)
        self._directories = {}
        self._top = None

    # --- events ---

    def keep(self, event: Event) -> None:
        """Keep an event until the thread has listed the folder."""
        if len(self._early) < MAX_EVENTS:
            self._early.append(event)

    def handle(self, event: Event) -> None:
        directory = self._directories.get(event.watch)
        if directory is None:
            return
        mask, name = event.mask, event.name
        self._events += 1
        if self._events > MAX_EVENTS or (mask & _SELF_GONE and directory is self._top):
            self.lose()
        elif not name:
            pass  # about the directory itself, which its parent reports too
        elif mask & inotify.IS_DIRECTORY:
            self._handle_directory(directory, mask, name)
        elif mask & _VANISHED:
            if name in directory.files:
                directory.files.discard(name)
                self._vanish(directory.path + name)
        elif name in directory.files:
            for mark in self._marks:
                mark.write(directory.path + name)
        elif mask & _APPEARED:
            directory.files.add(name)
            self._appear(directory.path + name)

    def _handle_directory(self, parent: Directory, mask: int, name: str) -> None:
        if name in self._skipped:
            return
        for mark in self._marks:
            mark.dirty = True
        if mask & (_APPEARED | _VANISHED) and name in parent.directories:
            self._drop(parent.directories.pop(name))
        if mask & _APPEARED:
            self._events += FOLDER_EVENTS
            self._enter(parent, name)

    def _enter(self, parent: Directory, name: str) -> None:
        """Watch a new directory. It may have files already."""
        listing = Listing(self._watches.kernel, self._skipped, QUICK_FILES, QUICK_FOLDERS, times=False)
        try:
            parent.directories[name] = listing.enter(open_below(self.root, parent.path + name), f"{parent.path}{name}/")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # gone again, replaced by a link, or closed to the host
        except (TooLarge, OSError):
            parent.directories.pop(name, None)
            self.lose()
            for each in listing.directories:
                self._watches.remove(each.watch, self)
            return
        for each in listing.directories:
            self._watches.add(each.watch, self)
            self._directories[each.watch] = each
        for path in listing.files:
            self._appear(path)
        if len(self._directories) > MAX_FOLDERS or not self._watches.left:
            self.lose()

    def _drop(self, directory: Directory) -> None:
        for name in directory.files:
            self._vanish(directory.path + name)
        self._directories.pop(directory.watch, None)
        self._watches.remove(directory.watch, self)
        for below in directory.directories.values():
            self._drop(below)

    def _appear(self, path: str) -> None:
        for mark in self._marks:
            mark.appear(path)

    def _vanish(self, path: str) -> None:
        for mark in self._marks:
            mark.vanish(path)


class FolderWatches:
    """All watched folders of a server."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._folders: dict[str, FolderWatch] = {}
        self._watches: Watches | None = None
        self._pause: asyncio.TimerHandle | None = None
        try:
            kernel = Inotify()
        except OSError as error:
            logger.warning("results name no changed files, because inotify is not available: %s", error.strerror)
            return
        self._watches = Watches(kernel, _user_watches() // USER_SHARE)
        self._loop.add_reader(kernel.fd, self._on_events)

    def watch(self, root: str, *, project: bool) -> FolderWatch | None:
        """Return the watch of a folder, which the caller releases. Directories of a `project` may be skipped."""
        if self._watches is None:
            return None
        folder = self._folders.get(root)
        if folder is None:
            skipped = SKIPPED if project else frozenset[str]()
            folder = self._folders[root] = FolderWatch(self._watches, root, skipped)
        folder.holders += 1
        return folder

    def release(self, folder: FolderWatch) -> None:
        folder.holders -= 1
        if not folder.holders:
            folder.close()
            self._folders.pop(folder.root, None)
            # The kernel reports the end of each watch. Left unread, that would wake the event loop.
            self.read()

    def read(self) -> None:
        """Hand all events so far to their folders. Needed where events of this turn of the event loop matter."""
        watches = self._watches
        if watches is None:
            return
        while watches.kernel.waiting:
            for event in watches.kernel.read():
                if event.mask & inotify.IGNORED:
                    continue
                if event.mask & inotify.OVERFLOW:
                    for folder in self._folders.values():
                        folder.lose()
                for folder in tuple(watches.folders.get(event.watch, ())):
                    folder.handle(event)
                for folder in watches.listing:
                    folder.keep(event)

    def _on_events(self) -> None:
        assert self._watches is not None
        self._loop.remove_reader(self._watches.kernel.fd)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
        self.read()

    def _resume(self) -> None:
        self._pause = None
        if self._watches is not None:
            self._loop.add_reader(self._watches.kernel.fd, self._on_events)

    def close(self) -> None:
        watches, self._watches = self._watches, None
        if self._pause is not None:
            self._pause.cancel()
        if watches is not None:
            self._loop.remove_reader(watches.kernel.fd)
            watches.kernel.close()


def _user_watches() -> int:
    """Return how many watches the user may have."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/fs/inotify/max_user_watches") as file:
        return int(file.read())
    return DEFAULT_USER_WATCHES
