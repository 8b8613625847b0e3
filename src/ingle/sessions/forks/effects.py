"""Effect of a trial: the difference between a session and a copy of it in which a cell has run."""

import asyncio

from ingle.events import VariableInfo, Variables
from ingle.files import VariableDiff, VariableState
from ingle.isolation.egress.host_log import HostLog
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.process.calls import WorkerCalls
from ingle.support import processes
from ingle.trees.store import KeptTree, NotKept
from ingle.trials import Effect, HostAsked
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

COMPARE_SECONDS = 0.05
"""Time for comparing variables, before the cell and after it."""

ASK_SECONDS = 5.0
MAX_NAMED = 20


async def note_variables(calls: WorkerCalls, worker: Worker) -> None:
    """Have a copy note its variables, before its cell begins."""
    await _compare(calls, worker, begin=True)


async def find_effect(
    before: Variables | None,
    tree: KeptTree | NotKept,
    calls: WorkerCalls,
    worker: Worker,
    files: KeptFiles,
    hosts: HostLog | None,
    ends: list[str],
) -> Effect:
    """Return what differs in a copy from the session, whose variables and files were these."""
    notices: list[str] = []
    compared = await _compare(calls, worker, begin=False)
    after = await calls.list(worker)
    variables: list[VariableDiff] = []
    unknown: list[str] = []
    if before is None or after is None or compared is None:
        notices.append("the variables could not be compared")
    else:
        variables = _changes(before, after, set(compared.changed))
        unknown = sorted(compared.unknown)
    differing, more = None, 0
    try:
        now = await files.take(worker)
        try:
            differing, more, told = await files.differences(tree, now)
            notices += told
        finally:
            files.release(now)
    except NotKept as why:
        notices.append(f"the files cannot be compared: {why}")
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


async def _compare(calls: WorkerCalls, worker: Worker, *, begin: bool) -> messages.NamesCompared | None:
    answer = await calls.ask(
        worker,
        lambda ticket, until: messages.CompareNames(ticket, until, COMPARE_SECONDS, begin),
        messages.NamesCompared,
        ASK_SECONDS,
    )
    return None if answer is None or answer.interrupted or answer.error else answer


def _changes(before: Variables, after: Variables, changed: set[str]) -> list[VariableDiff]:
    was = {each.name: each for each in before.variables}
    now = {each.name: each for each in after.variables}
    found = []
    for name in sorted(was.keys() | now.keys()):
        old, new = was.get(name), now.get(name)
        if old is None:
            found.append(VariableDiff(name, "created", None, _state(new)))
        elif new is None:
            found.append(VariableDiff(name, "deleted", _state(old), None))
        elif name in changed or _state(old) != _state(new):
            found.append(VariableDiff(name, "changed", _state(old), _state(new)))
    return found


def _state(info: VariableInfo | None) -> VariableState | None:
    return None if info is None else VariableState(info.type or "unknown", info.shape, info.length, info.size)


def _still_running(pid: int | None) -> tuple[list[str], int]:
    """Return the programs below a process, and how many threads it has beside its first."""
    if pid is None:
        return [], 0
    names = sorted(processes.command_of(each) for each in processes.below(pid))
    return names[:MAX_NAMED], max(0, len(processes.threads(pid)) - 1)
