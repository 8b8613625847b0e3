"""Self-test of the confinement: a child is confined like a session and then tries attacks that must fail."""

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

TIMEOUT_SECONDS = 10
"""A child that hangs counts as one that cannot be confined."""

MAX_REPLY_BYTES = 1 << 16


def prove(confinement: Confinement, order: messages.Prove) -> messages.Proof:
    """Run the self-test in the zygote, before it loads libraries that would slow down the fork."""
    reading, writing = os.pipe()
    child = confinement.fork()
    if child == 0:
        os.close(reading)
        _reply_and_exit(writing, lambda: _be_init(confinement, order))
    os.close(writing)
    # An alarm would not end the child: the first process of a pid namespace ignores signals without a handler.
    reply = os.read(reading, MAX_REPLY_BYTES) if select.select([reading], [], [], TIMEOUT_SECONDS)[0] else b""
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(reply) if reply else {"refused": "the confined process exited without a result"}
    return messages.Proof(found.get("succeeded", []), found.get("refused", ""))


def _reply_and_exit(fd: int, find: Callable[[], dict[str, Any]]) -> None:
    """Write the result of `find` to `fd` as JSON, and exit."""
    try:
        try:
            found = find()
        except OSError as error:
            found = {"refused": str(error)}
        os.write(fd, json.dumps(found).encode())
    finally:
        os._exit(0)


def _be_init(confinement: Confinement, order: messages.Prove) -> dict[str, Any]:
    """Act as a session's init, which gives up its rights while its worker attacks."""
    # An allow-list of hosts is the same sandbox with a proxy listener.
    confinement.prepare("full" if confinement.plan.network == "full" else "none")
    confinement.set_identity(order.uid, [*os.pipe(), *os.pipe()])
    attacks = Attacks(confinement.plan, order.secret, order.port, order.server)
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        _reply_and_exit(writing, lambda: _be_worker(confinement, attacks))
    os.close(writing)
    confinement.enter(messages.Enter([]))
    reply = os.read(reading, MAX_REPLY_BYTES)
    os.waitpid(worker, 0)
    found: dict[str, Any] = json.loads(reply) if reply else {"refused": "the confined process exited without a result"}
    return found


def _be_worker(confinement: Confinement, attacks: "Attacks") -> dict[str, Any]:
    linux.die_with_parent()
    confinement.confine()
    confinement.start(messages.Start("/", "/tmp", [attacks.folder, attacks.own]))
    return {"succeeded": attacks.run()}


class Attacks:
    """Attacks on the confinement, each with the name under which its success is reported."""

    def __init__(self, plan: Any, secret: str, port: int, server: int) -> None:
        self._plan, self._secret, self._port, self._server = plan, secret, port, server
        self.folder = os.path.dirname(secret)
        self.own = self.folder + "/own"

    def run(self) -> list[str]:
        """Return the names of the attacks that succeeded. Attacks that this level does not prevent are left out."""
        tries: list[tuple[str, Callable[[], object]]] = [("gain rights over a set-user-id program", self._privileges)]
        if self._plan.level in ("restricted", "sandbox"):
            tries += [
                ("read a file of the server", lambda: open(self._secret).close()),
                ("write to the folder of system programs", self._write_system),
                ("signal the server", self._signal),
                ("make a user namespace", lambda: kernel_calls.unshare(kernel_calls.CLONE_NEWUSER, "user")),
                ("open a socket past the network namespace", lambda: socket.socket(AF_VSOCK, socket.SOCK_STREAM)),
            ]
        if self._plan.level == "sandbox":
            tries += [
                ("change the interpreter's own file", lambda: os.utime("/proc/self/exe")),
                ("see processes of the host", self._see_processes),
                ("mount something", lambda: kernel_calls.mount("x", "/tmp", "tmpfs")),
                ("reach the staging folder", lambda: os.stat("/.ingle/data")),
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
        """Raise `Refused` if the confinement takes away a file that every session needs."""
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
            # In a container the server may have such a number. Here it names the sandbox's own processes.
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
