"""Access to private parts of a local service. Tests reach them through this module alone."""

import os
from pathlib import Path
from typing import Any

import pytest

from ingle.cluster.node import ClusterNode
from ingle.nodes.local import LocalNode
from ingle.service import Service
from ingle.sessions.manager import Manager
from ingle.sessions.session import Session
from ingle.shell.tasks import Tasks
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker
from support.processes import command_line
from support.waiting import until


def node_of(service: Service) -> LocalNode:
    if isinstance(service._node, ClusterNode):
        pytest.skip("looks into the process of one machine")
    assert isinstance(service._node, LocalNode)
    return service._node


def manager_of(service: Service) -> Manager:
    return node_of(service).manager


def session_of(service: Service, session_id: str) -> Session:
    """Return the session object behind an id. The session of a tenant has the id `tenant/name`."""
    return manager_of(service).get(session_id)


def worker_of(service: Service, session_id: str) -> Worker:
    worker = session_of(service, session_id).worker
    assert worker is not None
    return worker


def worker_pid(service: Service, session_id: str) -> int:
    """Return the pid of a session's worker process, as the host counts."""
    pid = worker_of(service, session_id).pid
    assert pid is not None
    return pid


def launchers_of(service: Service) -> list[Launcher]:
    return manager_of(service)._launchers.all


def tasks_of(service: Service) -> Tasks:
    return node_of(service).tasks.shell


def persistent_shells(service: Service) -> list[Any]:
    return list(tasks_of(service)._shells.values())


async def until_prepared(service: Service) -> None:
    """Wait until the pools are full, so that later counts change only by what the test does."""
    running = [launcher for launcher in launchers_of(service) if launcher.zygote_pid is not None]
    assert await until(lambda: all(launcher.prepared == service.settings.pool for launcher in running), 30)


def idle_inits(service: Service) -> int:
    """Return how many inits of ended sessions wait for another one. Each is a process and a socket to it."""
    return sum(len(launcher._idle) for launcher in launchers_of(service))


DESCRIPTORS_PER_ZYGOTE = 4
"""Sockets to the zygote and to its holder, its standard error, and its pidfd."""


def loaded_descriptors(service: Service) -> int:
    """Return how many descriptors a service has open for idle inits and zygotes, whose number follows its load."""
    zygotes = sum(len(launcher._zygotes.all_living) for launcher in launchers_of(service))
    return idle_inits(service) + DESCRIPTORS_PER_ZYGOTE * zygotes


def own_processes(service: Service, workers: int) -> int:
    """Return how many processes run for one interpreter when there are so many workers and none is starting.

    These are the holder (two of them in a sandbox), the zygote, one waiting init, and an init with every worker.
    """
    return (4 if service.settings.isolation == "sandbox" else 3) + 2 * workers


def idle_processes(service: Service) -> int:
    """Return how many processes a service without sessions and tasks may have."""
    pool = service.settings.pool
    sessions = sum(own_processes(service, pool) for each in launchers_of(service) if each.zygote_pid is not None)
    # The tree of shell tasks: a holder, a zygote and the inits that wait for the next task.
    tasks = 2 + pool if tasks_of(service)._launcher.zygote_pid is not None else 0
    return sessions + tasks + idle_inits(service)


def own_commands(service: Service) -> set[str]:
    """Return the command lines of a service's own processes, which all are forks of zygotes and holders."""
    zygotes = [each.zygote_pid for each in [*launchers_of(service), tasks_of(service)._launcher]]
    commands = set()
    for pid in zygotes:
        while pid is not None and pid not in (0, 1, os.getpid()):
            commands.add(command_line(pid))
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                break
    return commands - {""}


def session_folders(service: Service, home: Path) -> list[Path]:
    """Return what sessions have on disk, without the folders of prepared workers."""
    prepared = manager_of(service).prepared.folders
    return [folder for folder in (home / "sessions").iterdir() if folder.name not in prepared]


def files_left(service: Service, home: Path) -> list[Path]:
    """Return what ended sessions and tasks have left on disk. The folder of tasks itself stays."""
    tasks = tasks_of(service)._folder
    folders = [folder for folder in session_folders(service, home) if folder.name != tasks.name]
    return folders + (list(tasks.iterdir()) if tasks.exists() else [])


async def end_everything(service: Service) -> None:
    """End all tasks, persistent shells and sessions of every tenant. Forget the tasks and the idempotency keys."""
    service._shared._keys.clear()
    tasks = tasks_of(service)
    for key in list(tasks._shells):
        await tasks.end_shell(*key)
    for task in list(tasks._running.values()):
        task.end("killed", "killed: the test has ended", now=True)
        await task.wait_over()
    for tenant, task_id in [(tenant, each) for tenant, ended in tasks._ended.items() for each in ended]:
        tasks._forget(tenant, task_id)
    manager = manager_of(service)
    for session in manager.everyone():
        await manager.end_soon(session, "the test has ended")
    for session in await manager.shell_sandboxes.stop():
        await session.end()
    manager.shell_sandboxes._sandboxes.clear()


def on_host(service: Service, session_id: str, *numbers: int) -> list[int]:
    """Return the host's pids of processes that a session knows by these numbers."""
    namespace = os.readlink(f"/proc/{worker_pid(service, session_id)}/ns/pid")
    found: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                own = next(line for line in Path(f"/proc/{name}/status").read_text().splitlines() if "NSpid:" in line)
                found[int(own.split()[-1])] = int(name)
        except OSError:
            continue  # The process has just ended.
    return [found[number] for number in numbers]
