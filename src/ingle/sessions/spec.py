"""Resolved description of a session, decided before the session exists; its name and its key."""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ingle import errors
from ingle.isolation.policy import NO_GRANT, Grant
from ingle.requests import NewSession
from ingle.sessions.forks.values import SavedState, way
from ingle.sessions.persistence.checkpoints import Moment
from ingle.sessions.process.session_folders import SessionFolders
from ingle.snapshots.user_library import Library
from ingle.trees.store import KeptTree, NotKept
from ingle.workers.views import View

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class SessionSpec(msgspec.Struct, frozen=True):
    """Everything that is fixed when a session is made."""

    session_id: str
    folder: Path
    """Folder of the session's events and images, for the host alone."""
    key: str
    """Key in the manager: the name, or `tenant/name`."""
    cwd: str | None = None
    env: dict[str, str] = {}
    idle_timeout: float = 300.0
    one_off: bool = False
    library: Library | None = None
    """The user's library as it was when the session was made."""
    grant: Grant = NO_GRANT
    """What the operator's policy grants."""
    folders: SessionFolders | None = None
    """Folders of the session's code, if not below `folder`: a fork shares those of its original."""
    auto_checkpoints: bool = False
    keep_failures: int = 0
    """Failed cells whose moment is kept."""
    trial: bool = False
    """Whether it runs a cell that may be discarded."""
    parent: str = ""
    """Name of the session that it was forked from; empty without one."""
    made: NewSession = NewSession()
    """The request that it was made for. A fork has that of its original."""
    home: str = ""
    """Path at which the session's code sees its workspace too; empty without one."""

    @property
    def tenant(self) -> str:
        return self.key.rpartition("/")[0]


@dataclass(frozen=True)
class ForkedFiles:
    """Files that a fork begins with."""

    tree: KeptTree | NotKept
    """Not kept if it uses those of another fork."""
    source: str
    """The original's workspace, as its code sees it."""
    view: View | None
    """View in which the fork's own workspace appears at the same path, if that is possible."""


@dataclass(frozen=True)
class ForkOrigin:
    """What a fork takes over from its original, beside the process."""

    session_id: str
    moment: Moment
    notices: list[str]
    """What the fork lacks."""
    reseed: bool = False
    files: ForkedFiles | None = None
    """None if the fork shares the files of its original."""
    state: SavedState | None = None
    """What the fork loads, if it is a copy by value."""

    @property
    def notice(self) -> str:
        """Return a sentence about the fork."""
        after = f"after its cell {self.moment.cell}" if self.moment.cell else "before its first cell"
        return f"this session is a fork of {self.session_id!r}, made {after}"

    @property
    def copied(self) -> str:
        """Return how the copy was made."""
        return way(by_value=self.state is not None)


def key_of(tenant: str, name: str) -> str:
    """Return the key of a session: its name, or `tenant/name`."""
    return f"{tenant}/{name}" if tenant else name


def tenant_of(key: str) -> str:
    return key.rpartition("/")[0]


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise errors.InvalidName(
            f"{name[:80]!r} is not a name: 1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
        )
