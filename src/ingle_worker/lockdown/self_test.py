"""Whether sessions of this zygote are held as they should be, found out by doing it.

A child is locked down exactly as a session is, and then tries, as hostile code would, what must not succeed.
"""

import errno
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from ingle_worker.lockdown import kernel_calls
from ingle_worker.lockdown.confinement import Confinement
from ingle_worker.processes import linux
from ingle_worker.wire import messages

PATIENCE = 10
"""A child that hangs is as good as one that cannot be held."""

SAID_AT_MOST = 1 << 16


def prove(confinement: Confinement, order: messages.Prove) -> messages.Proof:
    """In the zygote, before it has loaded anything that a child could be slow to copy."""
    reading, writing = os.pipe()
    child = confinement.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, lambda: _be_init(confinement, order))
    os.close(writing)
    # An alarm would not end it: it is the first process of a namespace, which has none but its own handlers.
    said = os.read(reading, SAID_AT_MOST) if select.select([reading], [], [], PATIENCE)[0] else b""
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(said) if said else {"refused": "the confined process ended without a word"}
    return messages.Proof(found.get("succeeded", []), found.get("refused", ""))


def _answer(fd: int, find: Callable[[], dict[str, Any]]) -> None:
    """Say what was found, and end."""
    try:
        try:
            found = find()
        except OSError as error:
            found = {"refused": str(error)}
        os.write(fd, json.dumps(found).encode())
    finally:
        os._exit(0)


def _be_init(confinement: Confinement, order: messages.Prove) -> dict[str, Any]:
    """As the init of a session, which gives up its rights while the worker, a fork of its own, attacks."""
    # A list of hosts is the same room, with a door in it that leads to the host's proxy.
    confinement.prepare("full" if confinement.plan.network == "full" else "none")
    confinement.introduce(order.uid, [*os.pipe(), *os.pipe()])
    canaries = Canaries(confinement.plan, order.secret, order.port, order.server)
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        _answer(writing, lambda: _be_worker(confinement, canaries))
    os.close(writing)
    confinement.enter(messages.Enter([]))
    said = os.read(reading, SAID_AT_MOST)
    os.waitpid(worker, 0)
    found: dict[str, Any] = json.loads(said) if said else {"refused": "the confined process ended without a word"}
    return found


def _be_worker(confinement: Confinement, canaries: "Canaries") -> dict[str, Any]:
    linux.die_with_parent()
    confinement.confine()
    confinement.start(messages.Start("/", "/tmp", [canaries.folder, canaries.own]))
    return {"succeeded": canaries.fly()}


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
                ("write where the system's programs are", self._write_system),
                ("signal the server", self._signal),
                ("make a user namespace", lambda: kernel_calls.unshare(kernel_calls.CLONE_NEWUSER, "user")),
                ("open a socket past the network namespace", lambda: socket.socket(AF_VSOCK, socket.SOCK_STREAM)),
            ]
        if self._plan.level == "sandbox":
            tries += [
                ("change the interpreter's own file", lambda: os.utime("/proc/self/exe")),
                ("see processes of the host", self._see_processes),
                ("mount something", lambda: kernel_calls.mount("x", "/tmp", "tmpfs")),
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
            raise kernel_calls.Refused(step, error.errno or errno.EACCES) from None

    def _privileges(self) -> None:
        with open("/proc/self/status") as status:
            if "NoNewPrivs:\t1" in status.read():
                raise _Blocked

    def _write_system(self) -> None:
        path = "/usr/lib/ingle-probe"
        open(path, "w").close()
        os.unlink(path)

    def _signal(self) -> None:
        if self._plan.level == "sandbox" and self._server in (1, os.getpid()):
            # By such a number the server may be known in a container; in here it is its own init, or itself.
            raise _Blocked
        os.kill(self._server, 0)

    def _see_processes(self) -> None:
        if len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2:
            raise _Blocked

    def _reach(self) -> None:
        socket.create_connection(("127.0.0.1", self._port), 1).close()


AF_VSOCK = 40


class _Blocked(Exception):
    pass
