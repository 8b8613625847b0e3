"""Shell tasks beside `subprocess.run`, and a persistent shell beside SWE-ReX's local bash session.

Turn by turn, so that a noisy machine is noisy for all of them.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import ours
from bench.measure import median, p95

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "shell.json"
TASK_TARGET = 3.0
"""A task may take so many times `subprocess.run` at most."""

SHELL_LIMIT = 2.0
"""Milliseconds for a command in a persistent shell."""

SHELL_TARGET = 5.0
"""How many times quicker than SWE-ReX it means to be."""


async def timed(times: list[float], call: Callable[[], Awaitable[object]]) -> None:
    began = time.perf_counter()
    await call()
    times.append((time.perf_counter() - began) * 1000)


async def bash() -> None:
    subprocess.run(["bash", "-c", "true"], check=True)


async def measure(count: int) -> dict[str, list[float]]:
    from swerex.exceptions import CommandTimeoutError
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    got: dict[str, list[float]] = {"subprocess.run": [], "task": [], "persistent": [], "swe-rex": []}
    true = BashAction(command="true")
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    async with ours.engine([], 2) as service:
        for _ in range(10):
            await service.shell("true")
            await service.shell("true", shell_session="bench")
        for number in range(count):
            await timed(got["subprocess.run"], bash)
            await timed(got["task"], lambda: service.shell("true"))
            await timed(got["persistent"], lambda: service.shell("true", shell_session="bench"))
            if number % 10 == 0:
                try:
                    await timed(got["swe-rex"], partial(runtime.run_in_session, true))
                except CommandTimeoutError:
                    # It waits 0.1 s for the prompt after a command, which a busy machine may not make in time.
                    runtime = LocalRuntime()
                    await runtime.create_session(CreateBashSessionRequest())
    await runtime.close()
    return got


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, nothing written")
    args = parser.parse_args()
    import uvloop

    got = uvloop.run(measure(60 if args.quick else 300))
    for name, times in got.items():
        print(f"true, {name:16} median {median(times):8.2f} ms   p95 {p95(times):8.2f} ms   ({len(times)} rounds)")
    task = median(got["task"]) / median(got["subprocess.run"])
    shell = median(got["swe-rex"]) / median(got["persistent"])
    rows = [
        ("a task, times subprocess.run", task, f"≤ {TASK_TARGET:g}", task <= TASK_TARGET),
        ("a persistent shell, ms", median(got["persistent"]), f"≤ {SHELL_LIMIT:g}", median(got["persistent"]) <= 2),
        ("a persistent shell, times quicker than SWE-ReX", shell, f"≥ {SHELL_TARGET:g}", shell >= SHELL_TARGET),
    ]
    for text, value, target, met in rows:
        print(f"{text:48} {value:8.2f}  {target} {'met' if met else 'MISSED'}")
    if not args.quick:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        figures = {name: {"median_ms": median(times), "p95_ms": p95(times)} for name, times in got.items()}
        about = {"python": platform.python_version(), "machine": platform.machine(), "figures": figures}
        OUT.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
