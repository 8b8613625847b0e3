"""Test of the isolation levels on this machine, by attacking them from inside.

Every zygote of confined sessions is tested before its first fork: it confines a child, which then tries what must fail.
No version number or configuration is trusted. `auto` starts zygotes from the strongest level on, at each start anew.
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

TIMEOUT_SECONDS = 20.0
"""Time for the test of one level. A test that takes longer has failed."""

TARGET_PREFIX = ".probe-"
STALE_AFTER_SECONDS = 3 * TIMEOUT_SECONDS
"""Age at which the target of another server can be removed."""

TOO_LONG = f"the test took longer than {TIMEOUT_SECONDS:g} s"

REMEDIES = (
    (
        "user namespace",
        "this user may not create user namespaces; allow them (sysctl kernel.apparmor_restrict_unprivileged_userns=0 "
        "on Ubuntu, user.max_user_namespaces elsewhere; --security-opt seccomp=unconfined in a container), or run as "
        "root",
    ),
    ("namespace", "the server may not create namespaces; start the container with --cap-add SYS_ADMIN, or run outside"),
    ("mounting proc", "a container hides parts of /proc; start it with --security-opt systempaths=unconfined"),
    ("mounting", "the server may not mount; start the container with --cap-add SYS_ADMIN and no profile against it"),
    ("pivot_root", "the root cannot be replaced here (a ramdisk, or a profile that forbids it)"),
    ("mount_setattr", "the kernel is older than 5.12, or a container's profile hides it"),
    ("Landlock", "the kernel has no Landlock; it needs 5.13 or later with `landlock` among its lsm= modules"),
    ("seccomp", "the kernel or a container's profile forbids system call filters"),
    (
        "user of its own",
        "root has no other users here, as in a rootless container; run as an ordinary user in it, or start it with all "
        "users mapped",
    ),
    ("session's own folder", "set INGLE_HOME to a folder that every user can enter, such as /var/lib/ingle"),
    ("interpreter's own files", "install the interpreter where every user can read it, or run as an ordinary user"),
)


@dataclass(frozen=True)
class Verdict:
    """The level in force, and why it is not stronger."""

    level: str
    asked: str
    missing: dict[str, str] = field(default_factory=dict)
    """By level that was tried and is not available: the cause and the remedy."""


def candidates(asked: str) -> tuple[str, ...]:
    """Return the levels that `asked` may mean, in the order in which they are tried."""
    return (*STRONGEST_FIRST, "none") if asked == "auto" else (asked,)


class AttackTargets:
    """The targets of the attack: a file of the server, a port it listens on, and the server process.

    Creating and removing them blocks for a moment.
    """

    def __init__(self, home: str) -> None:
        Path(home).mkdir(parents=True, exist_ok=True, mode=0o700)
        _clear_stale(Path(home))
        self._folder = Path(home) / f"{TARGET_PREFIX}{secrets.token_hex(8)}"
        self._folder.mkdir(mode=0o700)
        secret = self._folder / "secret"
        secret.touch(0o600)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.order = messages.Prove(next_user(), str(secret), self._listening.getsockname()[1], os.getpid())

    def remove(self) -> None:
        self._listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _clear_stale(home: Path) -> None:
    """Remove the targets of servers that were killed during their test."""
    for folder in home.glob(f"{TARGET_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE_AFTER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def read(proof: messages.Proof) -> str | None:
    """Return why sessions cannot be confined, or None if they can."""
    if proof.refused:
        return with_remedy(proof.refused[-500:])
    if proof.succeeded:
        return f"code confined by it could still {', '.join(proof.succeeded)}"
    return None


def with_remedy(refusal: str) -> str:
    for sign, remedy in REMEDIES:
        if sign in refusal:
            return f"{refusal}: {remedy}"
    return refusal
