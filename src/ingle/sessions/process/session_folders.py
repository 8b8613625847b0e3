"""Where a session's files are, and how long: forks share folders with the session they come from.

A fork goes on in the folder of its original, and may have files open, or know paths, in the folder for temporary files
of that time. So what a session's code sees of the disk stays until the last session that has come from it is gone, and
lies in one place, below the folder of the first of them: they may all live in one sandbox, which knows no other.
"""

import asyncio
from pathlib import Path

from ingle.isolation.levels import TMP
from ingle.support import remove_tree
from ingle_worker.wire import messages

OUTPUTS = ("timeline.ndjson", "figures")
"""What a session's folder holds for the host alone: gone with the session, whoever shares the rest."""

FORKS = "forks"

ROOM_FOLDERS = ("workspace", "packages", FORKS)
"""What of the first one's folder is laid into the room of a sandbox."""

SHELL = "shell"
"""What the host makes for shell tasks there: seen in the room, and not to be changed."""


class Home:
    def __init__(self, folder: Path, parent: "Home | None" = None) -> None:
        self.folder = folder
        """Whatever the session's code may write is below this, but for what it shares."""
        self.root: Path = folder if parent is None else parent.root
        self.workspace: str = f"{folder}/workspace" if parent is None else parent.workspace
        self.name: str = self.root.name
        """Of the first one's folder, in which all is."""
        self.is_first = parent is None
        self._parent = parent
        self._holders = 1
        self._user = 0

    def fork(self, name: str) -> "Home":
        """For a session that comes from this one."""
        self._holders += 1
        return Home(self.root / FORKS / name, self)

    @property
    def user(self) -> int:
        """Whose these files are and have to stay, since others work on them; 0 when that may change."""
        if self._parent is not None:
            return self._parent.user
        return self._user if self.shared else 0

    @user.setter
    def user(self, uid: int) -> None:
        if self._parent is not None:
            self._parent.user = uid
        else:
            self._user = uid

    @property
    def shared(self) -> bool:
        """Others need it, too."""
        return self._holders > 1

    @property
    def folders(self) -> list[str]:
        """To be made, in this order."""
        parents = [] if self._parent is None else [self.root / FORKS]
        return [str(each) for each in (*parents, self.folder)]

    async def leave(self) -> None:
        """Its session has ended; the last one removes it."""
        self._holders -= 1
        if self._holders == 0:
            await asyncio.to_thread(remove_tree.remove, self.folder)
            if self._parent is not None:
                await self._parent.leave()

    async def end(self, outputs: Path) -> None:
        """The session has ended, whose outputs lie in this folder."""
        if outputs != self.folder:
            await asyncio.to_thread(remove_tree.remove, outputs)
        elif self.shared:
            await asyncio.to_thread(_remove_outputs, outputs)
        await self.leave()


def start_of(home: Home, tmp: str, *, room: bool, cwd: str | None, env: dict[str, str]) -> messages.Start:
    """What a worker is told to be the session that has this home."""
    if room:
        # It has those of the first session laid in, and made.
        folders = [*home.folders[1:], tmp]
    else:
        # That of forks, too: walls are drawn around a worker once, and then around the copies of it as well.
        own = [] if home.is_first else [str(home.folder)]
        folders = [str(home.root), f"{home.root}/{FORKS}", *own, home.workspace, tmp]
    return messages.Start(cwd or home.workspace, tmp, folders, env, f"{home.folder}/packages")


def own_folders(home: Home, tmp: str, *, room: bool) -> list[str]:
    """What its code may write: where it has a room, that is laid in."""
    if room:
        return [f"{home.root}/{name}" for name in ROOM_FOLDERS]
    return [home.workspace, tmp, f"{home.folder}/packages", f"{home.root}/{FORKS}"]


def tmp_of(home: Home, number: int, *, room: bool) -> str:
    """Where the worker of that number has its temporary files, as it is told. A room has a file system for them."""
    if room:
        return TMP if home.is_first else f"{TMP}/fork-{home.folder.name}"
    return f"{home.folder}/tmp-{number}"


def _remove_outputs(folder: Path) -> None:
    for name in OUTPUTS:
        path = folder / name
        if path.is_dir():
            remove_tree.remove(path)
        else:
            path.unlink(missing_ok=True)


def remove_below(folder: Path, path: str) -> None:
    """Remove a folder that lies inside of this one, and never anything else, whatever it is called by mistake."""
    if path and Path(path).parent == folder:
        remove_tree.remove(path)
