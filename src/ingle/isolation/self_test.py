"""How far this machine can confine sessions, found out by doing it. A version is never read, and a promise never made,
on the word of a configuration.

Every zygote whose sessions are confined is put to the proof before it forks the first of them: a child of it is locked
down as a session is, and then tries what must not succeed. So which level `auto` means is known by starting zygotes,
the strongest first, and what was true for one start is not taken for true at the next.
"""

import contextlib
import os
import secrets
import shutil
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from ingle.isolation.levels import next_user
from ingle_worker.wire import messages

STRONGEST_FIRST = ("sandbox", "restricted", "limits")

PATIENCE = 20.0
"""For one level. A proof that takes longer has failed."""

BAIT = ".probe-"
STALE = 3 * PATIENCE
"""Seconds after which nobody needs his bait any more."""

TOO_LONG = f"trying it took longer than {PATIENCE:g} s"

REMEDIES = (
    (
        "user namespace",
        "this user may not make user namespaces; allow them (sysctl kernel.apparmor_restrict_unprivileged_userns=0 on "
        "Ubuntu, user.max_user_namespaces elsewhere; in a container --security-opt seccomp=unconfined), or run as root",
    ),
    ("namespace", "the server may not make namespaces; a container needs --cap-add SYS_ADMIN, or run outside of it"),
    ("mounting proc", "a container hides parts of /proc; start it with --security-opt systempaths=unconfined"),
    ("mounting", "the server may not mount; a container needs --cap-add SYS_ADMIN and no profile that forbids it"),
    ("pivot_root", "the root cannot be replaced here (a ramdisk, or a profile that forbids it)"),
    ("mount_setattr", "the kernel is older than 5.12, or a container's profile hides it"),
    ("Landlock", "the kernel has no Landlock; it needs 5.13 or later with `landlock` among its lsm= modules"),
    ("seccomp", "the kernel or a container's profile forbids system call filters"),
    (
        "user of its own",
        "root has no other users here, as in a rootless container; run as an ordinary user in it, or start it with all "
        "users mapped",
    ),
    ("session's own folder", "set INGLE_HOME to a folder that every user can pass through, /var/lib/ingle for one"),
    ("interpreter's own files", "install the interpreter where every user can read it, or run as an ordinary user"),
)


@dataclass(frozen=True)
class Verdict:
    """The level in force, and why not a stronger one."""

    level: str
    asked: str
    missing: dict[str, str] = field(default_factory=dict)
    """By level that was tried and cannot be had: the cause and the remedy."""


def candidates(asked: str) -> tuple[str, ...]:
    """The levels that `asked` may mean, in the order in which they are tried."""
    return (*STRONGEST_FIRST, "none") if asked == "auto" else (asked,)


class Bait:
    """What the one that attacks must not get at: a file of the server's, a port that it listens on, the server itself.

    Making it and removing it block, for a moment.
    """

    def __init__(self, home: str) -> None:
        Path(home).mkdir(parents=True, exist_ok=True, mode=0o700)
        _clear_stale(Path(home))
        self._folder = Path(home) / f"{BAIT}{secrets.token_hex(8)}"
        self._folder.mkdir(mode=0o700)
        secret = self._folder / "secret"
        secret.touch(0o600)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.order = messages.Prove(next_user(), str(secret), self._listening.getsockname()[1], os.getpid())

    def remove(self) -> None:
        self._listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _clear_stale(home: Path) -> None:
    """What servers left that were killed while they put themselves to the proof."""
    for folder in home.glob(f"{BAIT}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE:
                shutil.rmtree(folder, ignore_errors=True)


def read(proof: messages.Proof) -> str | None:
    """Why sessions cannot be held; None when they can."""
    if proof.refused:
        return with_remedy(proof.refused[-500:])
    if proof.succeeded:
        return f"code held in it could still {', '.join(proof.succeeded)}"
    return None


def with_remedy(refusal: str) -> str:
    for sign, remedy in REMEDIES:
        if sign in refusal:
            return f"{refusal}: {remedy}"
    return refusal
