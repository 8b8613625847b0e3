"""The levels of isolation, and what of one is told to the guest, which carries it out on itself."""

import itertools
import os
import secrets
from pathlib import Path

import msgspec

import ingle_worker.wire
from ingle_worker.wire.constants import PROXY_PORT

GUEST = Path(ingle_worker.wire.__file__).resolve().parent.parent / "__main__.py"
"""The guest's first file: it is run by path, in whatever interpreter."""

CANNOT_CONFINE = 42
"""Exit code by which the guest says that it cannot be confined as it should, for the reason on its stderr."""


FIRST_USER = 2_000_000_000
USERS = 100_000_000
"""Where a server that is root takes the users of its sessions from: numbers that nobody else has, each used once."""

KEPT_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "SOURCE_DATE_EPOCH")
"""What a confined session sees of the server's environment, beside those of LC_*."""

HOME = "/home/session"
TMP = "/tmp"
"""Where a sandboxed session has its home and its temporary files; see `ingle_worker.lockdown.root_fs`."""


class Confinement(msgspec.Struct, frozen=True):
    """What the guest is told. A zygote is started for each of them that differs."""

    level: str
    network: str
    data_folder: str
    granted: tuple[tuple[str, bool], ...] = ()
    """Folders of the host's that sessions see at their own paths, and whether they may write there."""
    tmp_size: int = 512 * 1024**2
    processes: int = 256
    files: int = 1024
    file_size: int = 1024**3
    data: int = 0
    nice: int = 5
    memfd: bool = True
    kept: tuple[str, ...] = ()
    """Variables of the server's environment that sessions see."""

    @property
    def has_rooms(self) -> bool:
        """Sessions have a root of their own, into which their folders are laid when they begin."""
        return self.level == "sandbox"

    def open_plan(self) -> int:
        """A descriptor from which the guest reads this."""
        fd = os.memfd_create("plan", os.MFD_CLOEXEC)
        os.write(fd, msgspec.json.encode({**msgspec.structs.asdict(self), "environment": self._kept_values()}))
        return fd

    def _kept_values(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self.kept if name in os.environ}


def environment(confinement: Confinement | None) -> dict[str, str]:
    """What workers see of the server's environment: without confinement all but the server's own settings and secrets,
    else next to nothing. Where there are rooms, what the operator keeps is set in there: it may lead an interpreter to
    modules and libraries that sessions write, and the first one runs outside."""
    if confinement is None:
        return {name: value for name, value in os.environ.items() if not name.startswith("INGLE_")}
    kept = () if confinement.has_rooms else confinement.kept
    seen = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith("LC_") or name in kept
    }
    if confinement.has_rooms:
        seen |= {"HOME": HOME, "USER": "session", "LOGNAME": "session", "SHELL": "/bin/sh", "TMPDIR": TMP}
        if confinement.network == "allowlist":
            seen |= proxy_variables()
    return seen


def proxy_variables() -> dict[str, str]:
    """For programs in a session whose only way out is the host's proxy."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    own = "localhost,127.0.0.1,::1"
    return {
        **{each: proxy for name in names for each in (name, name.lower())},
        "NO_PROXY": own,
        "no_proxy": own,
        "PIP_PROXY": proxy,
    }


_users = itertools.count(secrets.randbelow(USERS))


def next_user() -> int:
    """The number of a user that only one sandbox ever has; 0 where the server may not choose one."""
    if os.geteuid() != 0:
        return 0
    return FIRST_USER + next(_users) % USERS
