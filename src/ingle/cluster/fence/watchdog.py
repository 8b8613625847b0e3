"""Watchdog of an agent. `python -m ingle.cluster.fence.watchdog COMMAND...` runs the agent and holds its lease.

A renewal is a line with the time at which the renewal began, in seconds of CLOCK_BOOTTIME. Renewals at the head arrive
on standard input, those at the store on the descriptor that the agent finds in `INGLE_WATCHDOG_FD`. One of the two is
enough. `FREEZE_SECONDS` after the last renewal the watchdog stops all processes of the sessions, and `END_SECONDS`
after it kills the agent and everything below. The lease begins with the first renewal.

The watchdog is a process of its own, so that a busy or hanging agent cannot delay it. It imports the standard library
only. The agent is killed with the watchdog. It is stopped gracefully after SIGTERM, and when standard input is closed.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

FREEZE_SECONDS = 3.0
"""Silence after which sessions are stopped."""

END_SECONDS = 3.5
"""Silence after which sessions are killed. Another node may take them over after `takeover.TAKEOVER_SECONDS`."""

ENDING_SECONDS = 5.0
"""Time limit for killed processes to disappear."""

STOP_SECONDS = 5.0
"""Time limit for the agent after SIGTERM."""

FENCED = 75
"""Exit status after the lease has run out."""

VARIABLE = "INGLE_WATCHDOG_FD"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def now() -> float:
    """Return the time that also passes while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Time of the last renewal, and what it allows. Pure."""

    def __init__(self) -> None:
        self.last: float | None = None

    def renew(self, at: float) -> None:
        self.last = at if self.last is None else max(at, self.last)

    def frozen(self, at: float) -> bool:
        return self.last is not None and at - self.last >= FREEZE_SECONDS

    def over(self, at: float) -> bool:
        return self.last is not None and at - self.last >= END_SECONDS

    def due(self, at: float) -> float | None:
        """Return the seconds until `frozen` or `over` changes; None before the first renewal."""
        if self.last is None:
            return None
        return max(0.0, self.last + (END_SECONDS if self.frozen(at) else FREEZE_SECONDS) - at)


class Lines:
    """Times of renewals on one pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""
        os.set_blocking(descriptor, False)

    def read(self) -> list[float] | None:
        """Return the times that have arrived, or None at the end of the pipe."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        times = []
        for line in lines:
            with contextlib.suppress(ValueError):
                times.append(float(line))
        return times


class Tree:
    """Processes below one process."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._stopped: set[int] = set()

    def freeze(self) -> None:
        """Stop all processes below the root. Those that were stopped before are left to their owners."""
        while found := {pid for pid, state in descendants(self._root) if state != "T"} - self._stopped:
            send(signal.SIGSTOP, found)
            self._stopped |= found

    def thaw(self) -> None:
        send(signal.SIGCONT, self._stopped)
        self._stopped.clear()


def descendants(root: int) -> list[tuple[int, str]]:
    """Return the processes below `root`, each with its state. Zombies are left out."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name of a program may hold spaces and brackets.
            state, parent = file.read().rpartition(b")")[2].decode().split()[:2]
            children.setdefault(int(parent), []).append((int(name), state))
    found: list[tuple[int, str]] = []
    below = [root]
    while below:
        for pid, state in children.get(below.pop(), ()):
            below.append(pid)
            if state != "Z":
                found.append((pid, state))
    return found


def send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(agent: int) -> None:
    """Kill the agent first, so that it starts nothing more, then all that is below this process."""
    send(signal.SIGKILL, [agent])
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid, _ in descendants(os.getpid())]
        if not left:
            return
        send(signal.SIGKILL, left)
        time.sleep(0.005)


def reap(agent: int) -> None:
    """Collect ended processes that were left to this one. The agent's own status is not taken."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != agent:
            os.waitpid(ended.si_pid, 0)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _enter_agent() -> None:
    # Threads of Ray block SIGINT, and children inherit that: interrupts of cells would do nothing.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe()
    agent = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(writing,),
        env={**os.environ, VARIABLE: str(writing)},
        preexec_fn=_enter_agent,
    )
    os.close(writing)
    return watch(agent, Lines(0), Lines(reading))


def watch(agent: "subprocess.Popen[bytes]", head: Lines, store: Lines) -> int:
    """Hold the lease until the agent has ended. Return the exit status for this process."""
    lease, tree = Lease(), Tree(agent.pid)
    stop_reading, stop_writing = os.pipe()
    os.set_blocking(stop_writing, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop_writing, b"x"))
    ended = os.pidfd_open(agent.pid)
    frozen = stopping = False
    kill_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for descriptor in (head.descriptor, store.descriptor, stop_reading, ended):
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(_patience(lease, kill_at))}
            if ended in ready:
                status = agent.wait()
                kill_all(agent.pid)
                return status
            reap(agent.pid)
            for lines in (head, store):
                if lines.descriptor not in ready:
                    continue
                times = lines.read()
                if times is None:
                    selector.unregister(lines.descriptor)
                    if lines is head:
                        stopping = True
                for at in times or ():
                    lease.renew(at)
            if stop_reading in ready:
                os.read(stop_reading, 4096)
                stopping = True
            if stopping and kill_at is None:
                agent.terminate()
                kill_at = now() + STOP_SECONDS
            if lease.over(now()) or (kill_at is not None and now() >= kill_at):
                kill_all(agent.pid)
                if kill_at is not None:
                    return 0
                print("ingle: neither the head nor the store was reached in time; sessions were ended", file=sys.stderr)
                return FENCED
            if lease.frozen(now()) != frozen:
                frozen = not frozen
                (tree.freeze if frozen else tree.thaw)()


def _patience(lease: Lease, kill_at: float | None) -> float | None:
    waits = [lease.due(now()), None if kill_at is None else max(0.0, kill_at - now())]
    return min((wait for wait in waits if wait is not None), default=None)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
