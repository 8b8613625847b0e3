"""How far this machine can confine sessions, found out by doing it: a child is locked down as a session is, and then
tries what must not succeed. A version is never read, and a promise never made, on the word of a configuration.

Blocking, for a thread: a tenth of a second for a level.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ingle.errors import IsolationUnavailable
from ingle.isolation.levels import CANNOT_CONFINE, GUEST, Confinement, environment, next_user

STRONGEST_FIRST = ("sandbox", "restricted", "limits")

PATIENCE = 20.0
"""For one level. A probe that takes longer has failed."""

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


def settle(asked: str, python: str, home: Path) -> Verdict:
    """The level that `asked` means here. A level asked for by name is had, or refused with its cause."""
    if asked == "none":
        return Verdict("none", asked)
    missing: dict[str, str] = {}
    for level in STRONGEST_FIRST if asked == "auto" else (asked,):
        why = try_level(level, python, home)
        if why is None:
            return Verdict(level, asked, missing)
        missing[level] = why
    if asked != "auto":
        choices = "--isolation auto takes the strongest that can be had, --isolation none confines nothing"
        raise IsolationUnavailable(f"isolation {asked} cannot be had here: {missing[asked]}. {choices}")
    return Verdict("none", asked, missing)


def try_level(level: str, python: str, home: Path) -> str | None:
    """Why sessions cannot be held at this level; None when they can."""
    if sys.platform != "linux":
        return f"only Linux can confine processes in this way, and this is {sys.platform}"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = home / f".probe-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    secret = folder / "secret"
    secret.touch(0o600)
    confinement = Confinement(level, "none", str(home))
    plan = confinement.open_plan()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            args = ["probe", *map(str, (plan, next_user(), secret, port, os.getpid()))]
            if confinement.has_rooms:
                args = ["boot", str(plan), *args]
            done = subprocess.run(
                [python, str(GUEST), *args],
                pass_fds=[plan],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment(confinement),
                cwd="/",
                timeout=PATIENCE,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"trying it took longer than {PATIENCE:g} s"
    except OSError as error:
        return f"{python} could not be started: {error.strerror}"
    finally:
        os.close(plan)
        shutil.rmtree(folder, ignore_errors=True)
    return _read(done)


def _read(done: "subprocess.CompletedProcess[bytes]") -> str | None:
    said = done.stderr.decode("utf-8", "replace").strip()[-500:]
    found: dict[str, object] = {}
    with contextlib.suppress(ValueError):
        found = json.loads(done.stdout)
    if done.returncode == CANNOT_CONFINE or "refused" in found:
        return with_remedy(str(found.get("refused") or said))
    succeeded = found.get("succeeded")
    if not isinstance(succeeded, list):
        return f"trying it ended with code {done.returncode}: {said or 'it said nothing'}"
    if succeeded:
        return f"code held in it could still {', '.join(map(str, succeeded))}"
    return None


def with_remedy(refusal: str) -> str:
    for sign, remedy in REMEDIES:
        if sign in refusal:
            return f"{refusal}: {remedy}"
    return refusal
