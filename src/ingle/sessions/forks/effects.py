"""Effect of a trial: the difference between a session and a copy of it in which a cell has run."""

import asyncio

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


async def find_effect(
    before: VariablesBefore,
    tree: KeptTree | NotKept,
    calls: WorkerCalls,
    worker: Worker,
    files: KeptFiles,
    hosts: HostLog | None,
    ends: list[str],
) -> Effect:
    """Return what differs in a copy from the session, whose variables and files were these."""
    compared, (differing, more, notices) = await asyncio.gather(
        before.compare(calls, worker), _file_differences(files, tree, worker)
    )
    if compared is None:
        notices = ["the variables could not be compared", *notices]
    variables, unknown = compared or ([], [])
    # After that: for a moment, a process that hashes variables may be below the worker.
    left, threads = await asyncio.to_thread(_still_running, worker.pid)
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
        notices,
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


def _still_running(pid: int | None) -> tuple[list[str], int]:
    """Return the programs below a process, and how many threads it has beside its first."""
    if pid is None:
        return [], 0
    names = sorted(processes.command_of(each) for each in processes.below(pid))
    return names[:MAX_NAMED], max(0, len(processes.threads(pid)) - 1)
