"""Whole lives of short sessions beside other ways to run a line of code once: `python bench/churn.py`.

A one-off is `POST /process/interpreter/execute` of `print(1)`: a new session, one cell, and its end. Peers run the
same line in a new interpreter (`subprocess`), in a new kernel (ipykernel), and in SWE-ReX's local runtime. CPU is that
of the whole machine without the clients, so nothing else should run. The server's share is that of its own process.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.http_api import TICKS, Client, Server, clients, ingle_server
from bench.measure import median, p95, tree

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "churn.json"

LIBRARIES = "numpy,pandas"
CLIENTS = (1, 2, 8, 32)
CODE = "print(1)"

TARGETS = {
    ("sandbox", LIBRARIES): (110.0, 15.0),
    ("none", ""): (300.0, None),
    ("none", LIBRARIES): (180.0, None),
}
"""On two cores: one-offs a second, and milliseconds of CPU for each."""

SERVER_TARGET = 1.5
"""Milliseconds of the server's own CPU for each one-off."""

PEER_TARGET = 75.0
"""How many times the rate of `subprocess` with pandas."""


@dataclass
class Row:
    """One way to run a line of code once, with so many clients at once."""

    name: str
    libraries: str
    clients: int
    rate: float
    cpu_ms: float
    server_ms: float | None
    median_ms: float
    p95_ms: float


def machine_cpu() -> float:
    """Return seconds of CPU that all processes and the kernel have used."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


async def one_offs(server: Server, name: str, libraries: str, count: int, at_once: int) -> Row:
    request = server.request("POST", "/process/interpreter/execute", {"code": CODE, "timeout": 60})
    times: list[float] = []

    async def work(client: Client, each: int) -> None:
        for _ in range(each):
            began = time.perf_counter()
            answer = await client.ask(request)
            times.append(time.perf_counter() - began)
            assert b'"status":"ok"' in answer, answer

    connections = await clients(server, at_once)
    await asyncio.gather(*(work(client, 5) for client in connections))
    times.clear()
    own, mine, all_of_it = server.cpu(), time.process_time(), machine_cpu()
    began = time.perf_counter()
    await asyncio.gather(*(work(client, count // at_once) for client in connections))
    took = time.perf_counter() - began
    done = len(times)
    used = machine_cpu() - all_of_it - (time.process_time() - mine)
    return Row(
        name,
        libraries,
        at_once,
        done / took,
        used / done * 1000,
        (server.cpu() - own) / done * 1000,
        median(times) * 1000,
        p95(times) * 1000,
    )


def repeat(name: str, libraries: str, count: int, run: Callable[[], None]) -> Row:
    """Measure a peer, one run after another."""
    times: list[float] = []
    all_of_it = machine_cpu()
    began = time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    took = time.perf_counter() - began
    used = (machine_cpu() - all_of_it) / count * 1000
    return Row(name, libraries, 1, count / took, used, None, median(times) * 1000, p95(times) * 1000)


def code_with(libraries: str) -> str:
    return f"import {libraries}\n{CODE}" if libraries else CODE


def subprocess_run(libraries: str) -> None:
    done = subprocess.run([sys.executable, "-c", code_with(libraries)], capture_output=True, check=True)
    assert done.stdout == b"1\n"


def ipykernel_run(libraries: str) -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        said: list[str] = []
        client.execute_interactive(
            code_with(libraries), output_hook=lambda message: said.append(message["content"].get("text", ""))
        )
        assert "1\n" in said
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def swe_rex_run(libraries: str) -> None:
    from swerex.runtime.abstract import Command
    from swerex.runtime.local import LocalRuntime

    async def run() -> None:
        runtime = LocalRuntime()
        answer = await runtime.execute(Command(command=[sys.executable, "-c", code_with(libraries)]))
        assert answer.stdout == "1\n"
        await runtime.close()

    asyncio.run(run())


PEERS: dict[str, Callable[[str], None]] = {
    "subprocess": subprocess_run,
    "ipykernel": ipykernel_run,
    "SWE-ReX": swe_rex_run,
}


def show(row: Row) -> None:
    server = "" if row.server_ms is None else f"{row.server_ms:7.2f}"
    print(
        f"{row.name:12} {row.libraries or '-':14} {row.clients:7} {row.rate:9.1f} {row.cpu_ms:9.1f} {server:>9}"
        f" {row.median_ms:9.1f} {row.p95_ms:9.1f}",
        flush=True,
    )


def measure(count: int, levels: list[str], at_once: list[int], *, peers: bool) -> list[Row]:
    rows: list[Row] = []
    print(f"{'':12} {'libraries':14} {'clients':>7} {'per s':>9} {'CPU ms':>9} {'server':>9} {'median':>9} {'p95':>9}")
    for level in levels:
        for libraries in ("", LIBRARIES):
            with ingle_server("--isolation", level, "--preload", libraries) as server:
                for number in at_once:
                    rows.append(asyncio.run(one_offs(server, level, libraries, count, number)))
                    show(rows[-1])
                left = len(tree(server.pid))
            assert left < 200, f"{left} processes are left"
    for name, run in PEERS.items() if peers else ():
        for libraries in ("", LIBRARIES):
            with contextlib.suppress(ImportError):
                rows.append(repeat(name, libraries, max(3, count // 100), lambda run=run, it=libraries: run(it)))  # type: ignore[misc]
                show(rows[-1])
    return rows


def judge(rows: list[Row]) -> None:
    """Print the targets, and how far each was met."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        held = best.get((row.name, row.libraries))
        if held is None or row.rate > held.rate:
            best[row.name, row.libraries] = row
    for (level, libraries), (rate, cpu) in TARGETS.items():
        if (row := best.get((level, libraries))) is None:
            continue
        wanted = f">= {rate:g}/s" + (f", <= {cpu:g} ms" if cpu else "")
        met = row.rate >= rate and (cpu is None or row.cpu_ms <= cpu)
        print(f"{level} {libraries or 'bare'}: {row.rate:.0f}/s, {row.cpu_ms:.1f} ms (target {wanted}) {mark(met)}")
    shares = [row.server_ms for row in rows if row.server_ms is not None]
    print(
        f"server's share: {max(shares):.2f} ms at most (target <= {SERVER_TARGET}) {mark(max(shares) <= SERVER_TARGET)}"
    )
    peer = best.get(("subprocess", LIBRARIES))
    if peer is not None:
        for level in ("none", "sandbox"):
            if (row := best.get((level, LIBRARIES))) is not None:
                ratio = row.rate / peer.rate
                print(
                    f"{level} beside subprocess with pandas: {ratio:.0f} times (target {PEER_TARGET:g}) "
                    f"{mark(ratio >= PEER_TARGET)}"
                )


def mark(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer one-offs, and nothing is written")
    parser.add_argument("--count", type=int, default=800, help="one-offs for each row (default 800)")
    parser.add_argument("--levels", default="none,sandbox")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    count = 160 if given.quick else given.count
    at_once = [int(each) for each in given.clients.split(",")]
    rows = measure(count, given.levels.split(","), at_once, peers=not given.no_peers)
    judge(rows)
    if not given.quick:
        cores = len(os.sched_getaffinity(0))
        machine = {"cores": cores, "kernel": platform.release(), "python": platform.python_version()}
        OUT.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
