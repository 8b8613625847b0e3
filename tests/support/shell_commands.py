"""Commands of shell tasks: what runs, what has been printed, and crowds of them."""

import asyncio
import contextlib
from pathlib import Path

from ingle.service import Service
from support.processes import marked_processes
from support.waiting import until

WAIT = "until [ -e {gate} ]; do sleep 0.01; done"
"""Command that waits for a file, `gate`."""


def names(mark: str) -> list[str]:
    """What runs that was started during the test, without ingle's own processes."""
    found = []
    for pid, state in marked_processes(mark):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if state != "Z" and not name.startswith("ingle-"):
                found.append(name)
    return sorted(found)


async def until_text(service: Service, task_id: str, text: str) -> bool:
    for _ in range(500):
        if (await service.shell_status(task_id, wait=0)).stdout == text:
            return True
        await asyncio.sleep(0.02)
    return False


async def run_crowd(service: Service, folder: Path, count: int) -> None:
    """Run commands that all wait for each other, and check that each has its own output and exit code."""
    counter, gate = folder / "counter", folder / "gate"
    starts = [
        service.shell(
            f"echo {n} >> {counter}; echo out {n}; until [ -e {gate} ]; do sleep 0.5; done; "
            f"echo err {n} >&2; exit {n % 100}",
            wait=0,
        )
        for n in range(count)
    ]
    tasks = await asyncio.gather(*starts)
    # All of them are there at once before the first may end.
    assert await until(lambda: counter.exists() and len(counter.read_text().split()) == count, 120)
    assert {(await service.shell_status(task.task_id, wait=0)).status for task in tasks} == {"running"}
    gate.touch()
    ended = await asyncio.gather(*(service.shell_status(task.task_id, wait=120) for task in tasks))
    assert [(task.status, task.stdout, task.stderr, task.exit_code) for task in ended] == [
        ("done", f"out {n}\n", f"err {n}\n", n % 100) for n in range(count)
    ]
    assert sorted(map(int, counter.read_text().split())) == list(range(count))
