"""Effect of a trial: the difference between a session and a copy of it in which a cell has run."""

import asyncio
import copy
import itertools
import os

from ingle.files import FileDiff
from ingle.isolation.egress.host_log import HostLog
from ingle.sessions.forks.variable_changes import VariablesBefore
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.process.calls import WorkerCalls
from ingle.support import processes
from ingle.trees.store import KeptTree, NotKept
from ingle.trials import Effect, HostAsked
from ingle.workers.worker import Worker

MAX_NAMED = 20

NOT_COPIED = "not copied: "
"""Beginning of a notice about a part of the session that a copy lacks."""

IN_COMMON = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders of a sandbox that its copies share with the session."""

MADE_BY_INGLE = (".home", ".other", "fork-")
"""Beginnings of the names of other folders there: shown at other places, or for temporary files of one copy."""

MAX_MOUNTS_BYTES = 1 << 20
MAX_COUNTERS_BYTES = 1 << 16
MAX_LOOKED_AT = 100
"""Names in a folder."""

Scheduling = tuple[int, int, frozenset[int]]
"""Priority, policy and cores of a process."""


class Reach:
    """What the code of a copy could reach of the session, or outside of it."""

    def __init__(self, session: Worker, level: str, *, own_root: bool, own_network: bool) -> None:
        """`level` is that of the session. In a sandbox it has a root folder of its own, and each copy a network.

        Blocks for short reads.
        """
        self._session = session.pid
        self._before = _scheduling(session.pid)
        self._common = _folders_in_common(session.pid) if own_root else []
        self._own_root = own_root
        self._own_network = own_network
        self._level = level
        self.notices: list[str] = []
        """What is known of one copy when it begins."""

    def of(self, notices: list[str]) -> "Reach":
        """Return this with the notices about one copy. Its effect tells elsewhere what it lacks."""
        found = copy.copy(self)
        found.notices = [each for each in notices if not each.startswith(NOT_COPIED)]
        return found

    def told(self, pid: int | None) -> list[str]:
        """Return sentences about it, once the code has run in this process. Blocks for short reads."""
        told = list(self.notices)
        common = sorted({*self._common, *(_folders_in_common(pid) if self._own_root else [])})
        if common:
            told.append(f"shared with the session, so that what was done there stays: {' and '.join(common)}")
        if self._before is not None and _scheduling(self._session) not in (self._before, None):
            told.append("the priority, the policy or the cores of the session's process have changed")
        unsent = _unsent_packets(pid) if self._own_network else 0
        if unsent:
            told.append(f"packets past ingle's proxy, such as DNS, were not sent: {unsent}; their hosts are not known")
        if not self._own_root:
            told.append(
                f"at the level {self._level!r} the code has the rights of the session: what it did to other files, "
                "to processes and over the network is done, and not listed"
            )
        return told


def _folders_in_common(pid: int | None) -> list[str]:
    """Return those folders of a process's sandbox in which the session or the copy has files."""
    found = [(folder, f"{folder}/{name}/") for folder in IN_COMMON for name in _names_in(f"/proc/{pid}/root{folder}")]
    if not found:
        return []
    # A mount below such a folder has its path there.
    lines = processes.read_whole(f"/proc/{pid}/mountinfo", MAX_MOUNTS_BYTES).splitlines()
    mounts = [os.fsdecode(line.split()[4]) + "/" for line in lines]
    return [folder for folder, path in found if not any(each.startswith(path) for each in mounts)]


def _names_in(folder: str) -> list[str]:
    """Return some names in a folder, without those that ingle has made."""
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in itertools.islice(entries, MAX_LOOKED_AT)]
    except OSError:
        return []
    return [name for name in names if not name.startswith(MADE_BY_INGLE)]


def _unsent_packets(pid: int | None) -> int:
    """Return how many packets found no way out of a process's network. A connection begins with one."""
    found = 0
    lines = [line.split() for line in processes.read_whole(f"/proc/{pid}/net/snmp", MAX_COUNTERS_BYTES).splitlines()]
    for names, values in itertools.pairwise(lines):
        if names[0] == values[0] == b"Ip:":
            found += int(dict(zip(names, values, strict=True)).get(b"OutNoRoutes", b"0"))
    for line in processes.read_whole(f"/proc/{pid}/net/snmp6", MAX_COUNTERS_BYTES).splitlines():
        if line.startswith(b"Ip6OutNoRoutes"):
            found += int(line.split()[1])
    return found


def _scheduling(pid: int | None) -> Scheduling | None:
    """Return how a process is scheduled, which each process of its user may change."""
    if pid is None:
        return None
    try:
        return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), frozenset(os.sched_getaffinity(pid))
    except (OSError, AttributeError):  # it has ended, or this is not Linux
        return None


async def find_effect(
    before: VariablesBefore,
    tree: KeptTree | NotKept,
    calls: WorkerCalls,
    worker: Worker,
    files: KeptFiles,
    hosts: HostLog | None,
    ends: list[str],
    reach: Reach,
) -> Effect:
    """Return what differs in a copy from the session, whose variables and files were these."""
    compared, (differing, more, notices) = await asyncio.gather(
        before.compare(calls, worker), _file_differences(files, tree, worker)
    )
    if compared is None:
        notices = ["the variables could not be compared", *notices]
    variables, unknown = compared or ([], [])
    # After that: for a moment, a process that hashes variables may be below the worker.
    left, threads, reached = await asyncio.to_thread(_still_running, worker.pid, reach)
    return Effect(
        variables,
        unknown,
        differing,
        more,
        None if hosts is None else [HostAsked(use.host, use.reached, use.refused) for use in hosts.read()],
        left,
        threads,
        worker.usage()[0],
        ends,
        [*reached, *notices],
    )


async def _file_differences(
    files: KeptFiles, before: KeptTree | NotKept, worker: Worker
) -> tuple[list[FileDiff] | None, int, list[str]]:
    """Return the files that differ now, how many more do, and notices."""
    try:
        now = await files.take(worker)
        try:
            return await files.differences(before, now)
        finally:
            files.release(now)
    except NotKept as why:
        return None, 0, [f"the files cannot be compared: {why}"]


def _still_running(pid: int | None, reach: Reach) -> tuple[list[str], int, list[str]]:
    """Return the programs below a process, how many threads it has beside its first, and what it could reach."""
    if pid is None:
        return [], 0, reach.notices
    names = sorted(processes.command_of(each) for each in processes.below(pid))
    return names[:MAX_NAMED], max(0, len(processes.threads(pid)) - 1), reach.told(pid)
