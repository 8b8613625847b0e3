"""Saving and loading beside `dill.dump_module` and Kishu: how long the session is held up, what is written and kept.

Turn by turn on the same notebooks, so that a noisy machine is noisy for all of them. Libraries are imported before the
clock starts, for all of them. `restore` is the way from nothing to a session with everything in it: a new session
here, a new process there. `load` is that without starting the process and importing libraries.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median
from ingle.service import Service
from ingle.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "bench" / "saving.json"
LIBRARIES = "import numpy as np, pandas as pd"
PEERS = ("dill", "kishu")
TRIES = 3


@dataclass(frozen=True)
class Notebook:
    name: str
    cells: list[str]
    change: str


def frame(megabytes: int) -> list[str]:
    return [LIBRARIES, f"df = pd.DataFrame(np.random.rand({megabytes} * 12_500, 10))\nsmall = 0"]


NOTEBOOKS = [
    Notebook("frame of 10 MB", frame(10), "small = 1"),
    Notebook("frame of 100 MB", frame(100), "small = 1"),
    Notebook("frame of 1 GB", frame(1000), "small = 1"),
    Notebook(
        "model fit",
        [
            LIBRARIES + "\nfrom sklearn.ensemble import RandomForestRegressor",
            "X = np.random.rand(4000, 20)\ny = X.sum(axis=1)\nmodel = RandomForestRegressor(30, n_jobs=1).fit(X, y)",
        ],
        "note = 'fitted'",
    ),
    Notebook(
        "300,000 small objects", [LIBRARIES, "rows = [{'n': n, 's': str(n)} for n in range(300_000)]"], "note = 'read'"
    ),
    Notebook(
        "one of 200 arrays changed",
        [LIBRARIES, "for n in range(200): globals()[f'a{n}'] = np.random.rand(62_500)"],
        "a7[0] = 5",
    ),
]


async def ours(notebook: Notebook) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(pool=1, isolation="none")
        async with Service.local(settings, Path(folder) / "home") as service:
            await service.warm()
            await service.create_session("main")
            for cell in notebook.cells:
                result = await service.execute("main", cell, wait=300)
                assert result.success, result.error
            first = await service.save_session("main", "bench")
            await service.execute("main", notebook.change)
            second = await service.save_session("main", "bench")
            # As there, the old session is gone: memory that was used before is quicker to get than new.
            await service.end_session("main")
            restored = await service.load_session("bench", "again")
            return {
                "pause": first.paused,
                "total": first.execution_time,
                "bytes": first.new_bytes,
                "pause again": second.paused,
                "total again": second.execution_time,
                "bytes again": second.new_bytes,
                "load": restored.execution_time,
                "restore": restored.execution_time,
            }


def peer(name: str, *args: str, given: Any = None) -> Any:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "peers.py"), *args[:1], name, *args[1:]],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if ended.returncode:
        return None
    return json.loads(ended.stdout.strip().splitlines()[-1])


def theirs(name: str, notebook: Notebook) -> dict[str, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        given = {"cells": notebook.cells, "change": notebook.change}
        figures: dict[str, float] | None = peer(name, "save", folder, given=given)
        if figures is None:
            return None
        figures["total again"] = figures["pause again"]
        began = time.perf_counter()
        figures["load"] = peer(name, "restore", folder) or float("nan")
        figures["restore"] = time.perf_counter() - began
        return figures


async def kept() -> dict[str, list[str]]:
    sys.path.insert(1, str(ROOT / "tests"))
    from support import kinds

    async with kinds.a_service() as service:
        chosen = kinds.present()
        answers = await kinds.look(service, chosen)
    # As Kishu does by itself, the cells are run again that made what cannot be saved; without that:
    found = {
        "ingle": [kind.name for kind, answer in zip(chosen, answers, strict=True) if answer[2]],
        "ingle, without running anything again": [
            kind.name for kind, answer in zip(chosen, answers, strict=True) if answer[0] and answer[1]
        ],
    }
    for name in PEERS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = peer(name, "kinds", folder) or []
    return found


def measure(tries: int, only: str) -> dict[str, dict[str, dict[str, float]]]:
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for notebook in NOTEBOOKS:
        if only not in notebook.name:
            continue
        got: dict[str, list[dict[str, float]]] = {"ingle": [], **{name: [] for name in PEERS}}
        for _ in range(tries):
            got["ingle"].append(asyncio.run(ours(notebook)))
            for name in PEERS:
                answer = theirs(name, notebook)
                if answer is not None:
                    got[name].append(answer)
        figures[notebook.name] = {
            name: {key: median([each[key] for each in rounds]) for key in rounds[0]}
            for name, rounds in got.items()
            if rounds
        }
        show(notebook.name, figures[notebook.name])
    return figures


def show(name: str, figures: dict[str, dict[str, float]]) -> None:
    print(f"\n{name}")
    heads = f"{'held up':>10} {'total':>9} {'written':>10}"
    print(f"  {'':8} {heads} {heads} {'load':>9} {'restore':>9}")
    for tool, each in figures.items():
        print(
            f"  {tool:8} {each['pause'] * 1000:8.1f}ms {each['total']:8.2f}s {each['bytes'] / 1e6:8.2f}MB "
            f"{each['pause again'] * 1000:8.1f}ms {each['total again']:8.2f}s {each['bytes again'] / 1e6:8.3f}MB "
            f"{each['load']:8.3f}s {each['restore']:8.2f}s",
            flush=True,
        )


def judge(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    """The targets, and whether they are met."""
    for name, most in (("frame of 100 MB", 0.010), ("frame of 1 GB", 0.040)):
        if name in figures:
            held_up = figures[name]["ingle"]["pause again"]
            met = "met" if held_up <= most else "MISSED"
            print(f"held up, {name}: {held_up * 1000:.1f} ms, ≤ {most * 1000:.0f} {met}")
    for name, each in figures.items():
        share = each["ingle"]["bytes again"] / each["ingle"]["bytes"]
        print(f"second save, {name}: {share:.4%} of the first, ≤ 2 % {'met' if share <= 0.02 else 'MISSED'}")
        if "dill" in each:
            for what in ("restore", "load"):
                ours, dill = each["ingle"][what], each["dill"][what]
                print(f"{what}, {name}: {ours:.3f} s, dill {dill:.3f} s {'met' if ours <= dill else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of each, without the largest; nothing written")
    parser.add_argument("--only", default="", help="notebooks with this in their name; nothing written")
    parser.add_argument("--no-kinds", action="store_true", help="leave out which kinds of objects are kept")
    args = parser.parse_args()
    if args.quick:
        NOTEBOOKS[:] = [each for each in NOTEBOOKS if "1 GB" not in each.name]
    figures = measure(1 if args.quick else TRIES, args.only)
    print()
    judge(figures)
    objects: dict[str, list[str]] = {}
    if not args.no_kinds:
        objects = asyncio.run(kept())
        for name in PEERS:
            more = sorted(set(objects[name]) - set(objects["ingle"]))
            fewer = len(set(objects["ingle"]) - set(objects[name]))
            counts = f"ingle {len(objects['ingle'])}, {name} {len(objects[name])}"
            print(f"kinds kept: {counts}; {fewer} only by ingle, only by {name}: {more}")
    if not (args.quick or args.only):
        OUT.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "figures": figures,
            "kept": objects,
        }
        OUT.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
