"""The watchdog above an agent: it stops and kills what is below once the lease has run out, and nothing before."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingle.cluster.fence.takeover import TAKEOVER_SECONDS
from ingle.cluster.fence.watchdog import END_SECONDS, FENCED, FREEZE_SECONDS, Lease, Tree, now
from support.waiting import wait_until

AGENT = """
import os, subprocess, sys, time
# A session in a process group and session of its own, as real ones are.
session = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
print(os.getpid(), session.pid, flush=True)
store = int(os.environ['INGLE_WATCHDOG_FD'])
for line in open(sys.argv[1]):
    if line == 'exit\\n':
        sys.exit(7)
    os.write(store, line.encode())
time.sleep(600)
"""
"""Agent that passes what is written to a named pipe on to the watchdog."""


class Watched:
    """A watchdog with an agent and one session."""

    def __init__(self, folder: Path) -> None:
        self._orders = folder / "orders"
        os.mkfifo(self._orders)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingle.cluster.fence.watchdog", sys.executable, "-c", AGENT, str(self._orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.agent, self.session = map(int, self.process.stdout.readline().split())
        self._store = open(self._orders, "w", buffering=1)  # noqa: SIM115

    def renew_at_head(self, at: float | None = None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"%.3f\n" % (at or now()))
        self.process.stdin.flush()

    def renew_at_store(self, at: float | None = None) -> None:
        self._store.write(f"{at or now():.3f}\n")

    def end_agent(self) -> None:
        self._store.write("exit\n")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._store.close()
        self.process.wait(10)


@pytest.fixture
def watched(tmp_path: Path, mark: str) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.close()


def state(pid: int) -> str:
    """The state of a process as a letter; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    return state(pid) in ("", "Z")


def test_a_takeover_comes_after_the_end() -> None:
    assert FREEZE_SECONDS < END_SECONDS < TAKEOVER_SECONDS


def test_a_lease_that_was_never_taken_never_runs_out() -> None:
    lease = Lease()
    assert (lease.frozen(1e9), lease.over(1e9), lease.due(1e9)) == (False, False, None)


def test_an_old_renewal_that_arrives_late_shortens_nothing() -> None:
    lease = Lease()
    lease.renew(10.0)
    lease.renew(8.0)
    assert [lease.frozen(12.9), lease.frozen(13.0), lease.over(13.4), lease.over(13.5)] == [False, True, False, True]


@pytest.mark.parametrize("renew", [Watched.renew_at_head, Watched.renew_at_store], ids=["head", "store"])
def test_without_a_renewal_sessions_are_stopped_and_then_killed(watched: Watched, renew: Callable[..., None]) -> None:
    renew(watched)
    assert wait_until(lambda: state(watched.session) == "T", FREEZE_SECONDS + 5)
    assert not gone(watched.agent)
    assert watched.process.wait(10) == FENCED
    assert gone(watched.agent)
    assert gone(watched.session)


def test_a_renewal_in_time_lets_stopped_sessions_continue(watched: Watched) -> None:
    # The renewal began some time ago: the lease is nearly over.
    watched.renew_at_head(now() - FREEZE_SECONDS)
    assert wait_until(lambda: state(watched.session) == "T", 5)
    watched.renew_at_store()
    assert wait_until(lambda: state(watched.session) == "S", 5)
    watched.renew_at_head(now() - 1.0)
    assert not gone(watched.session)


def test_a_process_that_somebody_else_has_stopped_stays_stopped(watched: Watched) -> None:
    os.kill(watched.session, signal.SIGSTOP)
    assert wait_until(lambda: state(watched.session) == "T", 5)
    # The watchdog stops and continues the agent with all that is below it.
    tree = Tree(watched.process.pid)
    tree.freeze()
    assert wait_until(lambda: state(watched.agent) == "T", 5)
    tree.thaw()
    assert wait_until(lambda: state(watched.agent) == "S", 5)
    assert state(watched.session) == "T"
    os.kill(watched.session, signal.SIGCONT)


def test_the_end_of_an_agent_ends_its_sessions_and_gives_its_status(watched: Watched) -> None:
    watched.renew_at_head()
    watched.end_agent()
    assert watched.process.wait(10) == 7
    assert gone(watched.session)


def test_the_end_of_the_head_s_pipe_ends_the_agent(watched: Watched) -> None:
    watched.renew_at_head()
    assert watched.process.stdin is not None
    watched.process.stdin.close()
    watched.process.wait(10)
    assert gone(watched.agent)
    assert gone(watched.session)


def test_a_killed_watchdog_takes_the_agent_with_it(watched: Watched) -> None:
    watched.process.kill()
    assert wait_until(lambda: gone(watched.agent), 5)
    os.kill(watched.session, signal.SIGKILL)
