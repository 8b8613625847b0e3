"""`make bench`: one run, one machine, ingle beside ipykernel and the floor. A table, JSON and a chart.

Absolute times mean little on a noisy machine; the ratios, taken in the same minutes, are what to look at.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import chart, floor, jupyter, ours, plots
from bench.measure import median, p95

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench"
DATA = ["numpy", "pandas"]
LINES = "for i in range({0}): print('x' * 99)"
BLOB = "import os\ndata = b'x' * {0}\nsent = 0\nwhile sent < len(data): sent += os.write(1, data[sent:])"
USE_PANDAS = "import pandas as pd\ndf = pd.DataFrame({'a': range(1000), 'b': 1.5})\ns = str(df.describe())"


@dataclass
class Row:
    name: str
    unit: str
    ours: float | None
    peer: float | None
    floor: float | None = None
    target: float | None = None
    """How many times better than ipykernel ingle means to be, or with `limit` the figure itself at most."""
    limit: bool = False
    more_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        if not self.ours or not self.peer:
            return None
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        if self.limit:
            return self.ours is not None and self.ours <= self.target
        return self.ratio is not None and self.ratio >= self.target


class Bench:
    def __init__(self, quick: bool) -> None:
        self.scale = 0.2 if quick else 1.0
        self.rows: list[Row] = []
        self._began = time.monotonic()

    def count(self, full: int) -> int:
        return max(2, int(full * self.scale))

    def say(self, text: str) -> None:
        print(f"  [{time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def add(self, name: str, unit: str, **figures: Any) -> None:
        self.rows.append(Row(name, unit, **figures))

    async def run_ours(self) -> dict[str, Any]:
        """Everything of ingle's, on its own loop."""
        n = self.count
        got: dict[str, Any] = {}
        self.say("ingle: starts by fork")
        async with ours.engine([], 0) as service:
            got["fork"] = await ours.starts(service, n(40), 0.0)
        async with ours.engine(DATA, 0) as service:
            got["fork data"] = await ours.starts(service, n(40), 0.0)
        self.say("ingle: starts from the pool")
        async with ours.engine([], 2) as service:
            got["pool"] = await ours.starts(service, n(40), 0.05)
        async with ours.engine(DATA, 2) as service:
            got["pool data"] = await ours.starts(service, n(40), 0.05)
            self.say("ingle: memory with numpy and pandas")
            got["memory data"] = await ours.memory(service, ["1 + 1", USE_PANDAS], 100)
        got["added"] = ours.added_by_display()
        async with ours.engine([], 2) as service:
            for code in ("1+1", "x = 1"):
                self.say(f"ingle: round trips of {code}")
                got[code] = await ours.round_trips(service, code, n(3000), 0)
            self.say("ingle: sparse round trips")
            got["sparse"] = await ours.round_trips(service, "1+1", n(40), 0.25)
            self.say("ingle: 16 sessions")
            got["16"] = await ours.cells_per_second(service, 16, n(1000))
            self.say("ingle: output")
            got["lines"] = [await ours.pour(service, LINES.format(100_000), 10_000_000) for _ in range(3)]
            got["blob"] = [await ours.pour(service, BLOB.format(100_000_000), 100_000_000) for _ in range(2)]
            got["print"] = await ours.print_to_client(service, n(20))
            self.say("ingle: interrupts, deaths, memory")
            got["interrupt"] = await ours.interrupts(service, n(30))
            got["death"] = await ours.deaths(service, n(20))
            got["memory"] = await ours.memory(service, ["1 + 1"], 100)
        return got

    async def run_peer(self) -> dict[str, Any]:
        n = self.count
        got: dict[str, Any] = {}
        self.say("ipykernel: starts")
        got["fork"] = await jupyter.starts(max(3, n(8)), "")
        got["fork data"] = await jupyter.starts(max(3, n(6)), "import numpy, pandas")
        async with jupyter.kernel() as each:
            for code in ("1+1", "x = 1"):
                self.say(f"ipykernel: round trips of {code}")
                got[code] = await jupyter.round_trips(each, code, n(400), 0)
            self.say("ipykernel: sparse round trips")
            got["sparse"] = await jupyter.round_trips(each, "1+1", n(40), 0.25)
            self.say("ipykernel: output")
            got["lines"] = [await jupyter.pour(each, LINES.format(100_000), 10_000_000) for _ in range(3)]
            got["print"] = await jupyter.print_to_client(each, n(10))
            self.say("ipykernel: interrupts")
            got["interrupt"] = await jupyter.interrupts(each, n(15))
        async with jupyter.kernel() as each:
            got["blob"] = [await jupyter.pour(each, BLOB.format(100_000_000), 100_000_000)]
        self.say("line plots in both, in turns")
        got["plots"] = await plots.in_turns([*DATA, "matplotlib"], n(60))
        self.say("ipykernel: deaths")
        got["death"] = await jupyter.deaths(3)
        self.say("ipykernel: 16 kernels")
        got["16"] = await jupyter.cells_per_second(16, n(50))
        self.say("ipykernel: memory")
        got["memory"] = await jupyter.memory(["1 + 1"], 8)
        got["memory data"] = await jupyter.memory(["import numpy, pandas", USE_PANDAS], 8)
        return got

    def run_floor(self) -> dict[str, Any]:
        n = self.count
        self.say("the floor")
        return {
            "start": floor.starts(n(200)),
            "x = 1": floor.round_trips("x = 1", n(3000), 0),
            "sparse": floor.round_trips("x = 1", n(40), 0.25),
            "lines": [floor.pour(10_000_000, 100)],
            "blob": [floor.pour(100_000_000, 1 << 20)],
        }

    def compare(self, low: dict[str, Any], us: dict[str, Any], peer: dict[str, Any]) -> None:
        ms = 1000.0

        def both(name: str, key: str, theirs: str, pick: int, target: float | None = None, base: float | None = None):
            figures = {"ours": median(us[key][pick]) * ms, "peer": median(peer[theirs][pick]) * ms}
            self.add(name, "ms", **figures, target=target, floor=base)

        fork = median(low["start"]) * ms
        both("start from the pool", "pool", "fork", 0, 300)
        both("start by fork", "fork", "fork", 0, 60, fork)
        both("start from the pool, numpy and pandas loaded", "pool data", "fork data", 0, 100)
        both("start by fork, numpy and pandas loaded", "fork data", "fork data", 0, 100, fork)
        figures = {"ours": median(us["pool"][1]) * ms, "peer": median(peer["fork"][1]) * ms}
        self.add("first result, from the pool", "ms", **figures, target=1.5, limit=True)
        both("first result, by fork", "fork", "fork", 1)
        for code in ("1+1", "x = 1"):
            base = median(low["x = 1"]) * ms
            figures = {"ours": median(us[code]) * ms, "peer": median(peer[code]) * ms}
            self.add(f"round trip of {code}, median", "ms", **figures, target=25, floor=base)
            self.add(f"round trip of {code}, p95", "ms", ours=p95(us[code]) * ms, peer=p95(peer[code]) * ms)
        for name, pick, target in (("median", median, 8), ("p95", p95, None)):
            figures = {"ours": pick(us["sparse"]) * ms, "peer": pick(peer["sparse"]) * ms}
            self.add(f"sparse round trip, {name}", "ms", **figures, target=target, floor=pick(low["sparse"]) * ms)
        self.add("added to 1+1 by showing values", "us", ours=us["added"] * 1e6, peer=None, target=20, limit=True)
        if "plots" in peer:
            figures = {"ours": median(peer["plots"][0]) * ms, "peer": median(peer["plots"][1]) * ms}
            self.add("a line plot, data stack loaded", "ms", **figures, target=1)
        for place, name, target in ((0, "16 sessions at once", 50), (1, "16 sessions, until the last is done", None)):
            figures = {"ours": us["16"][place], "peer": peer["16"][place]}
            self.add(name, "cells/s", **figures, target=target, more_is_better=True)
        for key, name, target in (("lines", "10 MB as lines", 4.5), ("blob", "100 MB in one write", None)):
            figures = {"ours": median(us[key]) * ms, "peer": median(peer[key]) * ms}
            self.add(name, "ms", **figures, target=target, floor=median(low[key]) * ms)
        figures = {"ours": median(us["print"]) * ms, "peer": median(peer["print"]) * ms}
        self.add("unflushed print at the client", "ms", **figures, target=10, limit=True)
        figures = {"ours": median(us["interrupt"]) * ms, "peer": median(peer["interrupt"]) * ms}
        self.add("interrupt to ready", "ms", **figures, target=10)
        figures = {"ours": median(us["death"][0]) * ms, "peer": median(peer["death"][0]) * ms}
        self.add("worker's death told", "ms", **figures, target=50, limit=True)
        both("result after a death", "death", "death", 1)
        # Of 100 sessions and of 8 kernels at once: each is charged its share of what it has in common with the others.
        self.add("memory (PSS), fresh", "MB", ours=us["memory"][0], peer=peer["memory"][0], target=12)
        self.add("memory (PSS), after a cell", "MB", ours=us["memory"][1], peer=peer["memory"][1])
        self.add("memory (PSS), numpy and pandas loaded", "MB", target=15,
                 ours=us["memory data"][0], peer=peer["memory data"][1])  # fmt: skip
        self.add("memory (PSS), pandas used", "MB", ours=us["memory data"][2], peer=peer["memory data"][2])

    def table(self) -> str:
        lines = [f"{'':46} {'ingle':>10} {'ipykernel':>10} {'floor':>9} {'ratio':>8}  target"]
        for row in self.rows:
            target = "" if row.target is None else (f"≤ {row.target:g}" if row.limit else f"≥ {row.target:g}x")
            mark = {True: "met", False: "MISSED", None: ""}[row.met]
            ratio = f"{row.ratio:7.1f}x" if row.ratio else ""
            lines.append(
                f"{row.name + ', ' + row.unit:46} {number(row.ours):>10} {number(row.peer):>10} "
                f"{number(row.floor):>9} {ratio:>8}  {target} {mark}".rstrip()
            )
        return "\n".join(lines)


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, nothing written")
    parser.add_argument("--ours", action="store_true", help="ingle and the floor only, nothing written")
    args = parser.parse_args()
    bench = Bench(args.quick)
    import uvloop

    low = bench.run_floor()
    us = uvloop.run(bench.run_ours())
    if args.ours:
        nothing: dict[str, Any] = {key: us[key] for key in us}
        bench.compare(low, us, nothing)
        print(bench.table())
        return
    peer = asyncio.run(bench.run_peer())
    bench.compare(low, us, peer)
    print(bench.table())
    if args.quick:
        return
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in bench.rows]
    about = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
    (OUT / "engine.json").write_text(json.dumps(about, indent=1) + "\n")
    (OUT / "engine.svg").write_text(chart.draw([(row.name, row.ratio) for row in bench.rows if row.ratio]))
    bench.say(f"written: {OUT / 'engine.json'}, {OUT / 'engine.svg'}")


if __name__ == "__main__":
    main()
