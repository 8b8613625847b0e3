"""Folders of a session's code, and how long they exist.

A fork may have files open, or know paths, in its original's folder of temporary files. So these folders exist until the
last session that descends from the original has ended. All of them lie below the folder of the first session, because
forks may share one sandbox, which sees no other folder.
"""

import asyncio
import os
from pathlib import Path

from ingle.isolation.levels import TMP
from ingle.support import remove_tree
from ingle_worker.wire import messages

OUTPUTS = ("timeline.ndjson", "timeline.ndjson.index", "timeline.ndjson.forgotten", "figures")
"""Files for the host alone: removed with the session, even if forks share the rest."""

FORKS = "forks"

MOUNTED = ("workspace", "packages", FORKS)
"""Folders of the first session that a sandbox mounts."""

SHELL = "shell"
"""Folder that the host fills for shell tasks. The session can read it and not write it."""

USUAL = ("tmp-1", *MOUNTED, SHELL)
"""Folders that the folder of a short session holds at its end, most often empty."""


class SessionFolders:
    def __init__(
        self, folder: Path, parent: "SessionFolders | None" = None, *, separate: bool = True, same_path: bool = False
    ) -> None:
        self.folder = folder
        """Everything that the session's code may write lies below this, except what it shares with its original."""
        self.root: Path = folder if parent is None else parent.root
        self.place: str = f"{folder}/workspace" if parent is None or separate else parent.place
        """Path of the workspace for the host."""
        self.workspace: str = self.place if parent is None or not (same_path or not separate) else parent.workspace
        """Path of the workspace for the session's code."""
        self._sharing: list[SessionFolders] = [] if parent is None or separate else parent._sharing
        """Folders of all sessions that use this workspace."""
        self._sharing.append(self)
        self.name: str = self.root.name
        """Name of the first session's folder, which holds all others."""
        self.is_first = parent is None
        self._parent = parent
        self._holders = 1
        self._user = 0

    def fork(self, name: str, *, separate: bool, same_path: bool) -> "SessionFolders":
        """Return the folders of a fork of this session.

        `separate`: it has a workspace of its own. `same_path`: that appears at the path of the original's.
        """
        self._holders += 1
        return SessionFolders(self.fork_folder(name), self, separate=separate, same_path=same_path)

    def fork_folder(self, name: str) -> Path:
        return self.root / FORKS / name

    def share(self, name: str) -> "SessionFolders":
        """Return the folders of another session in the same workspace."""
        return self.fork(name, separate=False, same_path=False)

    def is_fork_of(self, original: "SessionFolders") -> bool:
        return self._parent is original

    @property
    def separate(self) -> bool:
        """Return whether a fork has a workspace of its own."""
        return self._parent is None or self.place != self._parent.place

    @property
    def has_view(self) -> bool:
        """Return whether the workspace of a fork appears at the path of the original's."""
        return self.separate and self.place != self.workspace

    def hold(self) -> None:
        """Count one more holder, who leaves."""
        self._holders += 1

    @property
    def user(self) -> int:
        """User id that owns the files; 0 before the first worker.

        It stays the same for all workers, because forks and checkpoints go on to use the files.
        """
        return self._user if self._parent is None else self._parent.user

    @user.setter
    def user(self, uid: int) -> None:
        if self._parent is not None:
            self._parent.user = uid
        else:
            self._user = uid

    @property
    def fork_shown(self) -> tuple[str, str]:
        """Return folder and workspace of a fork that appears at the path of the first session, or nothing."""
        return ("", "") if self.place == self.workspace else (str(self.folder), self.place)

    @property
    def shared(self) -> bool:
        """Return whether other sessions use these folders too."""
        return self._holders > 1

    @property
    def workspace_shared(self) -> bool:
        """Return whether another session uses the same workspace."""
        return len(self._sharing) > 1

    @property
    def mostly_empty(self) -> list[str]:
        """Folders that most sessions leave empty, innermost first. Init removes those that are, unless they are shared.

        A thread of the server would wait for the interpreter's lock after each of them.
        """
        if self.shared or not self.is_first:
            return []
        return [*(f"{self.folder}/{name}" for name in USUAL), str(self.folder)]

    @property
    def folders(self) -> list[str]:
        """Folders that a worker has to make, in this order."""
        parents = [] if self._parent is None else [self.root / FORKS]
        return [str(each) for each in (*parents, self.folder)]

    @property
    def _exists(self) -> bool:
        """Whether init has left something to remove."""
        return os.path.lexists(self.folder)

    async def leave(self) -> None:
        """Give up these folders after the session has ended. The last holder removes them."""
        self._holders -= 1
        if self._holders == 0:
            if self._exists:
                await asyncio.to_thread(remove_tree.remove, self.folder)
            if self._parent is not None:
                await self._parent.leave()

    async def end(self, outputs: Path) -> None:
        """Remove the outputs of a session that has ended, and give up its folders."""
        self._sharing.remove(self)
        if outputs != self.folder:
            await asyncio.to_thread(remove_tree.remove, outputs)
        elif self.shared:
            await asyncio.to_thread(_remove_outputs, outputs)
        await self.leave()


def sources_of(folders: SessionFolders, data: str) -> dict[str, str]:
    """Return the folders below `data` that a sandbox shows at another path, by that path."""
    if folders.place == folders.workspace:
        return {}
    return {os.path.relpath(folders.workspace, data): os.path.relpath(folders.place, data)}


def start_of(
    folders: SessionFolders, tmp: str, *, confined: bool, own_root: bool, cwd: str | None, env: dict[str, str]
) -> messages.Start:
    """Return the message that makes a worker the one of the session with these folders."""
    packages = f"{folders.folder}/packages"
    if own_root:
        # The sandbox has mounted those of the first session, so they exist.
        made = [*folders.folders[1:], packages, tmp]
    else:
        # A confined worker's access rules are set once, and its copies inherit them: they name the folder of forks.
        forks = [f"{folders.root}/{FORKS}"] if confined or not folders.is_first else []
        own = [] if folders.is_first else [str(folders.folder)]
        made = [str(folders.root), *forks, *own, folders.workspace, packages, tmp]
    return messages.Start(cwd or folders.workspace, tmp, made, env, packages, folders.workspace)


def own_folders(folders: SessionFolders, tmp: str, *, own_root: bool) -> list[str]:
    """Return the folders that the session's code may write."""
    if own_root:
        return [f"{folders.root}/{name}" for name in MOUNTED]
    return [folders.workspace, tmp, f"{folders.folder}/packages", f"{folders.root}/{FORKS}"]


def tmp_of(folders: SessionFolders, number: int, *, own_root: bool) -> str:
    """Return the folder of temporary files of the session's worker with that number, as the worker sees it."""
    if own_root:
        return TMP if folders.is_first else f"{TMP}/fork-{folders.folder.name}"
    return f"{folders.folder}/tmp-{number}"


def _remove_outputs(folder: Path) -> None:
    for name in OUTPUTS:
        path = folder / name
        if path.is_dir():
            remove_tree.remove(path)
        else:
            path.unlink(missing_ok=True)


def remove_below(folder: Path, path: str) -> None:
    """Remove `path` if it lies directly inside of `folder`; do nothing for any other path."""
    if path and Path(path).parent == folder:
        remove_tree.remove(path)
