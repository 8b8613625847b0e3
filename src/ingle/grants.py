"""Grants: the folders and hosts that sessions may use, what a change of them did, and the words about them."""

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct, field

Kind = Literal["folder", "host"]
Tenants = Literal["owner", "all"]
Source = Literal["settings", "owner"]
When = Literal["now", "next_process", "never"]

FOLDER: Final = "folder"
HOST: Final = "host"

OPEN_LEVELS = ("none", "limits")
"""Levels at which code has the rights of the server."""

NOW: Final = "now"
NEXT: Final = "next_process"
NEVER: Final = "never"

ID_BYTES = 4
"""Length of an id. There are few grants, and the owner types the id."""


class GrantInfo(Struct, frozen=True):
    """A folder or host that sessions may use."""

    id: str
    kind: Kind
    name: str
    """The folder with every link resolved, or HOST or HOST:PORT."""
    read_only: bool = False
    tenants: Tenants = "all"
    """Whose sessions have it."""
    source: Source = "settings"
    """`settings`: since the start of the server. `owner`: added since then."""
    start: bool = False
    """Whether the owner's sessions start in this folder."""
    tracked: bool = False
    """Whether checkpoints keep the files of this folder, and rollbacks bring them back."""


class GrantList(Struct):
    grants: list[GrantInfo]


class GrantEffect(Struct):
    """When a change of the grants concerns one live session."""

    session_id: str
    tenant: str
    when: When
    """`next_process`: the process that it has now goes on with the grants that it was started with."""


class GrantChange(Struct):
    """A grant that was added or removed. New sessions are made by the new grants at once."""

    grant: GrantInfo
    sessions: list[GrantEffect]
    """Live sessions of all tenants that the grant is for."""


class NewGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """Request to grant a folder or a host. Exactly one of them is given."""

    folder: str | None = None
    """Absolute path of a folder of the server's machine."""
    host: str | None = None
    """HOST or HOST:PORT."""
    read_only: bool = False
    """Grant a folder for reading only."""
    tracked: bool = False
    """Have checkpoints keep the files of the folder, and rollbacks bring them back. For sessions made from now on."""
    tenants: Tenants = "owner"
    """Whose sessions may use the folder. A host is for all sessions."""


class Isolation(Struct):
    """Default isolation of a node, and why it is not stronger."""

    level: str
    network: str
    missing: dict[str, str] = field(default_factory=dict)
    """By level that is not available: the cause and the remedy."""

    @property
    def summary(self) -> str:
        """Return one line about the level and the network."""
        text = f"isolation {self.level}, network {self.network}"
        if self.level in ("none", "limits"):
            text += " (code in sessions has your files and your network)"
        elif self.network == "full":
            text += " (services on this machine's loopback can be reached)"
        return text

    @property
    def sentence(self) -> str:
        """Return the summary and every missing level, for a banner."""
        return "; ".join([self.summary, *(f"not {level}: {why}" for level, why in self.missing.items())])


class Reach(Struct):
    """What sessions of one caller may use."""

    level: str
    network: str
    folders: list[GrantInfo] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    start: str | None = None
    """Folder in which sessions start; null: each in its own."""

    @property
    def files(self) -> str:
        """Return one line about the files that sessions may use."""
        begins = f"they start in {self.start}" if self.start else "each starts in a folder of its own"
        if self.level in OPEN_LEVELS:
            return f"sessions read and write all your files; {begins}"
        if not self.folders:
            return "sessions see no folder of yours; share one with --folder DIR, or later with `ingle grant DIR`"
        written = [each.name for each in self.folders if not each.read_only]
        read = [each.name for each in self.folders if each.read_only]
        parts = [f"read and write {listed(written)}"] if written else []
        parts += [f"only read {listed(read)}"] if read else []
        return f"of your folders, sessions {' and '.join(parts)}; {begins}"


def listed(names: Iterable[str]) -> str:
    """Return names as they stand in a sentence."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def grant_id(kind: str, name: str, tenants: str = "all") -> str:
    """Return the id of a grant, which is the same at every start of a server."""
    return hashlib.blake2s(
        f"{kind}:{tenants}:{name}".encode(errors="surrogateescape"), digest_size=ID_BYTES
    ).hexdigest()


class ApprovalInfo(Struct, frozen=True, gc=False):
    """A call that waits until a person allows it."""

    id: str
    server: str
    tool: str
    arguments: str
    """JSON."""
    cell: int | None = None
    """The cell that waits with it; null for a thread of an earlier one."""
    read_only: bool = False
    """The server says that the tool changes nothing."""
    destructive: bool = False
    """The server says that the tool may destroy something."""
