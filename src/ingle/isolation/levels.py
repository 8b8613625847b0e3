"""The isolation levels, and the plan that tells the guest how to confine itself."""

import itertools
import os
import secrets
from pathlib import Path

import msgspec

import ingle_worker.wire
from ingle_worker.wire.constants import PROXY_PORT

GUEST = Path(ingle_worker.wire.__file__).resolve().parent.parent / "__main__.py"
"""The guest's first file. Any interpreter runs it by path."""

CANNOT_CONFINE = 42
"""Exit code of a guest that cannot confine itself; the reason is on its stderr."""


FIRST_USER = 2_000_000_000
USERS = 100_000_000
"""Range of user ids for sandboxes of a server that is root. No one else has them, and each is used once."""

KEPT_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "SOURCE_DATE_EPOCH")
"""Variables of the server's environment that confined sessions see, in addition to LC_*."""

HOME = "/home/session"
TMP = "/tmp"
"""Home and folder for temporary files in a sandbox; see `ingle_worker.lockdown.root_fs`."""


class Confinement(msgspec.Struct, frozen=True):
    """Plan for the guest. Each different plan has its own zygote."""

    level: str
    network: str
    data_folder: str
    granted: tuple[tuple[str, bool], ...] = ()
    """Folders of the host that sessions see at the same paths, and whether they may write there."""
    tmp_size: int = 512 * 1024**2
    processes: int = 256
    files: int = 1024
    file_size: int = 1024**3
    memory: int = 0
    grouped_memory: bool = False
    """Whether a cgroup limits the memory. Then a process of a session limits its own only outside of a group."""
    devices: tuple[tuple[str, str], ...] = ()
    """Device nodes of the granted GPUs, each with its path in a sandbox."""
    gpu_driver: str = ""
    """Driver whose ioctl requests are allowed."""
    nice: int = 5
    memfd: bool = True
    kept: tuple[str, ...] = ()
    """Names of the server's environment variables that sessions see."""

    @property
    def has_own_root(self) -> bool:
        """Whether each session has its own root file system, into which its folders are mounted."""
        return self.level == "sandbox"

    def open_plan(self) -> int:
        """Return a file descriptor from which the guest reads this plan."""
        fd = os.memfd_create("plan", os.MFD_CLOEXEC)
        os.write(fd, msgspec.json.encode({**msgspec.structs.asdict(self), "environment": self._kept_values()}))
        return fd

    def _kept_values(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self.kept if name in os.environ}


def environment(confinement: Confinement | None) -> dict[str, str]:
    """Return the environment of workers.

    Without confinement it is the server's, without its settings and secrets. Otherwise it is nearly empty. In a
    sandbox the operator's variables are set inside: the zygote runs outside, and they may point to session files.
    """
    if confinement is None:
        return {name: value for name, value in os.environ.items() if not name.startswith("INGLE_")}
    kept = () if confinement.has_own_root else confinement.kept
    seen = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith("LC_") or name in kept
    }
    if confinement.level != "limits":
        # Libraries ask for the user's name, and a `restricted` session cannot read the list of users.
        seen |= {"USER": "session", "LOGNAME": "session"}
    if confinement.has_own_root:
        seen |= {"HOME": HOME, "SHELL": "/bin/sh", "TMPDIR": TMP}
        if confinement.network == "allowlist":
            seen |= proxy_variables()
    return seen


def proxy_variables() -> dict[str, str]:
    """Return variables that send programs in a session through the host's proxy."""
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
    """Return a user id that only one sandbox ever has, or 0 if the server cannot choose users."""
    if os.geteuid() != 0:
        return 0
    return FIRST_USER + next(_users) % USERS
