"""Sessions in a sandbox beside sessions that nothing holds, and beside a new interpreter in `bwrap`.

Turn by turn, so that a noisy machine is noisy for all of them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median, p95, pss
from ingle.errors import IsolationUnavailable

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "isolation.json"

POOLED_LIMIT = 1.5
"""Milliseconds from the request for a session to its first result, from the pool."""

FORK_TARGET = 2.5
"""Without a pool, a sandbox may take so many times a plain fork."""

MEMORY_LIMIT = 3.0
"""Megabytes that a session in a sandbox may take more than one that nothing holds."""

BWRAP_TARGET = 20.0
"""How many times quicker than `bwrap` with a new interpreter and pandas."""

DEATH_LIMIT = 1000.0
"""Milliseconds after kill -9 of the server until nothing of it is left."""

DATA = ["numpy", "pandas", "matplotlib"]
FILLED = 0.1
"""For the pool to be filled again, and for the last session to be gone."""


@contextlib.asynccontextmanager
async def engine(level: str, preload: list[str], pool: int) -> AsyncIterator[object]:
    from ingle.service import Service
    from ingle.settings import Settings

    settings = Settings(preload=preload, pool=pool, isolation=level, network="none" if level == "sandbox" else "full")
    with tempfile.TemporaryDirectory() as folder:
        async with Service.local(settings, Path(folder) / "home") as service:
            await service.warm()
            yield service


async def start(service, times: list[float] | None) -> str:  # type: ignore[no-untyped-def]
    """A session, to its first result."""
    await asyncio.sleep(FILLED)
    began = time.perf_counter()
    session = (await service.create_session()).session_id
    result = await service.execute(session, "1 + 1")
    if times is not None:
        times.append((time.perf_counter() - began) * 1000)
    assert result.success
    return session


def memory(service, sessions: list[str]) -> float:  # type: ignore[no-untyped-def]
    """Megabytes of one session: its worker and its init."""
    workers = [service._node.manager.get(session).worker for session in sessions]
    return sum(pss(pid) for worker in workers for pid in (worker.pid, worker.init_pid)) / len(workers)


BWRAP = [
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
]


def bwrap(code: str, caches: str, times: list[float]) -> None:
    """A new interpreter in a sandbox of its own, to its first result."""
    # Bound again behind the private /tmp, should the interpreter lie there.
    prefixes = {path for path in (sys.prefix, sys.base_prefix) if path.startswith("/tmp/")}
    again = [word for path in prefixes for word in ("--ro-bind", path, path)]
    # Matplotlib looks for all fonts again where it cannot write what it found: it has a folder for that.
    again += ["--bind", caches, caches, "--setenv", "MPLCONFIGDIR", caches]
    began = time.perf_counter()
    subprocess.run([*BWRAP, *again, sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    times.append((time.perf_counter() - began) * 1000)


async def measure(count: int) -> dict[str, list[float]]:
    got: dict[str, list[float]] = {}
    for kind, preload in (("light", []), ("with data", DATA)):
        for pool in (2, 0):
            how = "pooled" if pool else "forked"
            async with engine("none", preload, pool) as plain, engine("sandbox", preload, pool) as held:
                for service in (plain, held):
                    for _ in range(3):
                        await service.end_session(await start(service, None))  # type: ignore[attr-defined]
                kept: dict[str, list[str]] = {"none": [], "sandbox": []}
                for number in range(count):
                    for level, service in (("none", plain), ("sandbox", held)):
                        session = await start(service, got.setdefault(f"{level}, {how}, {kind}", []))
                        if number < 10:
                            kept[level].append(session)
                        else:
                            await service.end_session(session)  # type: ignore[attr-defined]
                for level, service in (("none", plain), ("sandbox", held)):
                    got[f"{level}, {how}, {kind}, MB"] = [memory(service, kept[level])]
    if shutil.which("bwrap"):
        with tempfile.TemporaryDirectory() as caches:
            for kind, code in (("light", "print(1 + 1)"), ("with data", f"import {', '.join(DATA)}; print(1 + 1)")):
                bwrap(code, caches, [])
                for _ in range(max(3, count // 10)):
                    bwrap(code, caches, got.setdefault(f"bwrap, {kind}", []))
    return got


SERVER = """
import asyncio, sys
from pathlib import Path
from ingle.errors import IsolationUnavailable
from ingle.service import Service
from ingle.settings import Settings
async def main():
    settings = Settings(preload=[], pool=2, isolation="sandbox", network="none")
    async with Service.local(settings, Path(sys.argv[1])) as service:
        for _ in range(10):
            session = (await service.create_session()).session_id
            await service.execute(session, "import subprocess; p = subprocess.Popen(['setsid', 'sleep', '600'])")
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def die() -> float:
    """Milliseconds from kill -9 of a server with ten sessions and their daemons until all are gone."""
    # A variable of this kind is kept at every level, by what runs outside of a sandbox too.
    mark = f"LC_INGLE_BENCH={os.getpid()}"
    environment = {**os.environ, "LC_INGLE_BENCH": str(os.getpid())}
    with tempfile.TemporaryDirectory() as folder:
        args = [sys.executable, "-c", SERVER, folder]
        server = subprocess.Popen(args, stdout=subprocess.PIPE, env=environment)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        assert len(_marked(mark)) > 20
        server.send_signal(signal.SIGKILL)
        began = time.perf_counter()
        server.wait()
        while _marked(mark):
            time.sleep(0.002)
        return (time.perf_counter() - began) * 1000


def _marked(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and mark.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, nothing written")
    args = parser.parse_args()
    import uvloop

    try:
        got = uvloop.run(measure(20 if args.quick else 100))
    except IsolationUnavailable as error:
        print(f"no sandbox can be had here: {error.message}")
        return
    death = die()
    for name, times in got.items():
        if name.endswith("MB"):
            print(f"{name:36} {times[0]:8.2f}")
        else:
            print(f"{name:36} median {median(times):8.2f} ms   p95 {p95(times):8.2f} ms   ({len(times)} rounds)")
    rows = []
    for kind in ("light", "with data"):
        pooled = median(got[f"sandbox, pooled, {kind}"])
        forked = median(got[f"sandbox, forked, {kind}"]) / median(got[f"none, forked, {kind}"])
        more = got[f"sandbox, pooled, {kind}, MB"][0] - got[f"none, pooled, {kind}, MB"][0]
        rows += [
            (f"from the pool to the first result, {kind}, ms", pooled, f"≤ {POOLED_LIMIT:g}", pooled <= POOLED_LIMIT),
            (f"without a pool, times a plain fork, {kind}", forked, f"≤ {FORK_TARGET:g}", forked <= FORK_TARGET),
            (f"memory above a session that nothing holds, {kind}, MB", more, f"≤ {MEMORY_LIMIT:g}", more <= 3),
        ]
        if f"bwrap, {kind}" in got:
            quicker = median(got[f"bwrap, {kind}"]) / median(got[f"sandbox, forked, {kind}"])
            met = quicker >= BWRAP_TARGET or kind == "light"
            target = f"≥ {BWRAP_TARGET:g}" if kind != "light" else "(no target)"
            rows.append((f"forked, times quicker than bwrap, {kind}", quicker, target, met))
    rows.append(("kill -9 of the server to nothing left, ms", death, f"≤ {DEATH_LIMIT:g}", death <= DEATH_LIMIT))
    for text, value, target, met in rows:
        print(f"{text:56} {value:8.2f}  {target} {'met' if met else 'MISSED'}")
    if not args.quick:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        figures = {name: {"median": median(times), "p95": p95(times)} for name, times in got.items()}
        about = {"python": platform.python_version(), "machine": platform.machine(), "death_ms": death}
        OUT.write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
