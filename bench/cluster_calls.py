"""`python bench/cluster_calls.py`: what a gateway and an agent add to a call, on this machine, in one run.

A service on this machine and a gateway with agents of their own processes take turns, so that whatever else the
machine does hits both alike. All agents are on one host, so no figure contains a real network.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench.measure import median
from ingle.service import Service
from ingle.settings import Settings
from support.cluster import cluster

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "cluster_calls.json"

CLIENTS = 16
AGENTS = 2


async def executes(service: Service, names: list[str], seconds: float) -> float:
    """Executes per second, one client for each session."""
    count = 0
    deadline = time.perf_counter() + seconds

    async def work(name: str) -> None:
        nonlocal count
        while time.perf_counter() < deadline:
            await service.execute(name, "1 + 1")
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(name) for name in names))
    return count / (time.perf_counter() - began)


async def creates(service: Service, count: int) -> float:
    """Sessions per second, as many at a time as there are clients."""
    left = iter(range(count))
    made: list[str] = []

    async def work() -> None:
        for _ in left:
            info = await service.create_session()
            made.append(info.session_id)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    took = time.perf_counter() - began
    await asyncio.gather(*(service.end_session(name) for name in made))
    return count / took


async def latency(service: Service, name: str) -> float:
    began = time.perf_counter()
    await service.execute(name, "1 + 1")
    return time.perf_counter() - began


async def measure(quick: bool) -> list[dict[str, object]]:
    settings = Settings(isolation="none", preload=[])
    rounds, seconds, count = (200, 1.0, 100) if quick else (2000, 5.0, 600)
    with tempfile.TemporaryDirectory() as folder:
        async with Service.local(settings, Path(folder) / "home") as local, cluster(settings, AGENTS) as many:
            gateway = await many.gateway()
            services = {"local": local, "gateway": gateway}
            times: dict[str, list[float]] = {name: [] for name in services}
            names: dict[str, list[str]] = {}
            for name, service in services.items():
                names[name] = [(await service.create_session()).session_id for _ in range(CLIENTS)]
                await executes(service, names[name], 0.5)
            for _ in range(rounds):
                for name, service in services.items():
                    times[name].append(await latency(service, names[name][0]))
            rates = {name: await executes(service, names[name], seconds) for name, service in services.items()}
            starts = {name: await creates(service, count) for name, service in services.items()}
    one, other = median(times["local"]) * 1000, median(times["gateway"]) * 1000
    rows = [
        ("execute, p50, local", one, "ms", ""),
        ("execute, p50, added by gateway and agent", other - one, "ms", "<= 0.5"),
        (f"executes/s, {CLIENTS} clients, local", rates["local"], "/s", ""),
        (f"executes/s, {CLIENTS} clients, gateway", rates["gateway"], "/s", ">= 3000"),
        ("creates/s, local", starts["local"], "/s", ""),
        ("creates/s, gateway", starts["gateway"], "/s", ">= 300"),
    ]
    return [dict(zip(("name", "value", "unit", "target"), row, strict=True)) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A look: smaller, and nothing is written.")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.quick))
    for row in rows:
        print(f"{row['name']}: {row['value']:.3g} {row['unit']}   {row['target']}")
    if not options.quick:
        OUT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
