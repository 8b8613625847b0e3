"""Whether this machine can hold a session at a level, found out by doing it: `probe PLAN ...`.

A child is locked down exactly as a session is, and then tries, as hostile code would, what must not succeed. What it
found is one JSON object on standard output, for the host that started this.
"""

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from ingle_worker.lockdown import calls
from ingle_worker.lockdown.confinement import Confinement, read_plan
from ingle_worker.wire import messages

PATIENCE = 10


def main(args: list[str]) -> None:
    """`probe PLAN UID SECRET PORT SERVER`: who to be, a file that must stay secret, where and who the server is."""
    plan_fd, uid, secret, port, server = int(args[1]), int(args[2]), args[3], int(args[4]), int(args[5])
    confinement = Confinement(read_plan(plan_fd))
    os.close(plan_fd)
    reading, writing = os.pipe()
    # A probe that hangs is as good as one that fails.
    signal.alarm(PATIENCE)
    child = confinement.fork()
    if child == 0:
        os.close(reading)
        found: dict[str, Any]
        try:
            confinement.prepare(confinement.plan.network)
            confinement.introduce(uid, [])
            found = _attempt(confinement, Canaries(confinement.plan, secret, port, server))
        except OSError as error:
            found = {"refused": str(error)}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    os.write(1, said)
    os._exit(0)


def _attempt(confinement: Confinement, canaries: "Canaries") -> dict[str, Any]:
    """As the worker of a session, in a fork of its own, whose init gives up its rights at the same time."""
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            confinement.confine()
            confinement.start(messages.Start("probe", "/", "/tmp", [canaries.folder, canaries.own]))
            found: dict[str, Any] = {"succeeded": canaries.fly()}
        except OSError as error:
            found = {"refused": str(error)}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    confinement.enter(messages.Enter([]))
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(worker, 0)
    found = json.loads(said) if said else {"refused": "the confined process ended without a word"}
    return found


class Canaries:
    """Attacks, each of which says why it is one if it succeeds."""

    def __init__(self, plan: Any, secret: str, port: int, server: int) -> None:
        self._plan, self._secret, self._port, self._server = plan, secret, port, server
        self.folder = os.path.dirname(secret)
        self.own = self.folder + "/own"

    def fly(self) -> list[str]:
        """Those that succeeded. Not named: those that cannot be kept from at this level."""
        tries: list[tuple[str, Callable[[], object]]] = [("gain rights over a set-user-id program", self._privileges)]
        if self._plan.level in ("restricted", "sandbox"):
            tries += [
                ("read a file of the server's", lambda: open(self._secret).close()),
                ("write where the system's programs are", lambda: open("/usr/lib/ingle-probe", "w").close()),
                ("signal the server", lambda: os.kill(self._server, 0)),
                ("make a user namespace", lambda: calls.unshare(calls.CLONE_NEWUSER, "user")),
                ("open a socket past the network namespace", lambda: socket.socket(AF_VSOCK, socket.SOCK_STREAM)),
            ]
        if self._plan.level == "sandbox":
            tries += [
                ("change the interpreter's own file", lambda: os.utime("/proc/self/exe")),
                ("see processes of the host", self._see_processes),
                ("mount something", lambda: calls.mount("x", "/tmp", "tmpfs")),
                ("find the way by which folders come in", lambda: os.stat("/.ingle/data")),
            ]
            if self._plan.network != "full":
                tries.append(("reach the host's loopback", self._reach))
        succeeded = []
        for name, attack in tries:
            try:
                attack()
            except (OSError, _Blocked):
                continue
            succeeded.append(name)
        self._check_needs()
        return succeeded

    def _check_needs(self) -> None:
        """What a session cannot do without must still be there for it."""
        step = f"reading the interpreter's own files in {sys.prefix} as another user"
        try:
            open(os.__file__).close()
            if self._plan.level == "restricted":
                step = "reaching the session's own folder as another user"
                os.listdir(self.own)
        except OSError as error:
            raise calls.Refused(step, error.errno or errno.EACCES) from None

    def _privileges(self) -> None:
        with open("/proc/self/status") as status:
            if "NoNewPrivs:\t1" in status.read():
                raise _Blocked

    def _see_processes(self) -> None:
        if len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2:
            raise _Blocked

    def _reach(self) -> None:
        socket.create_connection(("127.0.0.1", self._port), 1).close()


AF_VSOCK = 40


class _Blocked(Exception):
    pass
