"""State that is not lost: what forks, checkpoints and rolling back cost, in time and in memory.

Each subject is a function that measures and gives back its rows; `SUBJECTS` lists them, in the order they are run. A
row has what was measured, and where there is one the target that it is held to.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import files, ours
from bench.measure import median, p95, tree_pss
from bench.rows import Row, Subject, timed
from ingle.nodes.local import LocalNode
from ingle.service import Service

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "state.json"

GIGABYTE = "import numpy as np\na = np.ones(125_000_000)\nb = a[::1000].sum()"
PANDAS = (
    "import pandas as pd, numpy as np\n"
    "df = pd.DataFrame({'x': np.arange(100_000), 'y': np.random.rand(100_000)})\n"
    "df['s'] = [f's{i}' for i in df.x]\n"
    "m = df.groupby(df.x % 7).y.mean()"
)


def init_of(service: Service, session_id: str) -> int:
    assert isinstance(service._node, LocalNode)
    worker = service._node.manager.get(session_id).worker
    assert worker is not None
    assert worker.init_pid is not None
    return worker.init_pid


async def forks_of_a_gigabyte(service: Service, rounds: int) -> list[Row]:
    await service.create_session("big")
    await service.execute("big", GIGABYTE)
    init = init_of(service, "big")
    times: list[float] = []
    more: list[float] = []
    cells: list[float] = []
    for _ in range(rounds):
        before = tree_pss(init)
        await timed(times, service.fork_session("big", "copy"))
        await timed(cells, service.execute("copy", "b"))
        more.append(tree_pss(init) - before)
        await service.end_session("copy")
    await service.end_session("big")
    return [
        Row("fork of a session that holds 1 GB", times, "ms", 40.0),
        Row("the same: memory that it adds, after one cell", more, "MB", 10.0),
        Row("the same: its first cell", cells, "ms"),
    ]


async def forks_beside_threads(service: Service, rounds: int) -> list[Row]:
    """As after a large product: then libc has to fork."""
    times: list[float] = []
    paused: list[float] = []
    await service.create_session("threads")
    await service.execute("threads", GIGABYTE + "\nimport threading\nstop = threading.Event()")
    await service.execute("threads", "threading.Thread(target=stop.wait).start()")
    for _ in range(rounds):
        await timed(times, service.fork_session("threads", "copy"))
        await service.end_session("copy")
        began = time.perf_counter()
        await service.checkpoint("threads", "base")
        await service.execute("threads", "b")
        paused.append((time.perf_counter() - began) * 1000)
    await service.end_session("threads")
    return [
        Row("fork of 1 GB and a thread", times, "ms"),
        Row("checkpoint of it, and the next cell", paused, "ms"),
    ]


async def many_forks(service: Service, rounds: int) -> list[Row]:
    await service.create_session("pandas")
    await service.execute("pandas", PANDAS)
    init = init_of(service, "pandas")
    hundred: list[float] = []
    one: list[float] = []
    more: list[float] = []
    for _ in range(rounds):
        await timed(one, service.fork_session("pandas", "one"))
        await service.end_session("one")
        before = tree_pss(init)
        await timed(hundred, service.fork_session("pandas", "many", count=100), 1.0)
        more.append((tree_pss(init) - before) / 100)
        for number in range(1, 101):
            await service.end_session(f"many-{number}")
    await service.end_session("pandas")
    return [
        Row("fork of a pandas session", one, "ms"),
        Row("100 forks of it at once", hundred, "s", 1.0),
        Row("the same: memory that each adds", more, "MB"),
    ]


async def checkpoints(service: Service, rounds: int) -> list[Row]:
    parked: list[float] = []
    back: list[float] = []
    plain: list[float] = []
    auto: list[float] = []
    await service.create_session("kept")
    await service.create_session("auto", checkpoints="auto")
    for name in ("kept", "auto"):
        await service.execute(name, PANDAS)
    for _ in range(rounds * 5):
        await timed(parked, service.checkpoint("kept", "base"))
        await timed(back, service.rollback("kept", "base"))
        await timed(plain, service.execute("kept", "m.sum()"))
        await timed(auto, service.execute("auto", "m.sum()"))
    for name in ("kept", "auto"):
        await service.end_session(name)
    return [
        Row("checkpoint of a pandas session", parked, "ms"),
        Row("rolling back to it", back, "ms"),
        Row("a cell", plain, "ms"),
        Row("a cell with an automatic checkpoint before it", auto, "ms"),
    ]


SUBJECTS: tuple[Subject, ...] = (
    forks_of_a_gigabyte,
    forks_beside_threads,
    many_forks,
    checkpoints,
    files.cells_beside_files,
    files.checkpoints_of_files,
    files.saves_of_files,
    files.trials_of_a_cell,
    files.variants_of_a_gigabyte,
)


async def measure(rounds: int, subjects: Sequence[Subject]) -> list[Row]:
    async with ours.engine(["numpy", "pandas"], 2) as service:
        return [row for subject in subjects for row in await subject(service, rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds, nothing written")
    parser.add_argument("--files", action="store_true", help="only what files cost, nothing written")
    args = parser.parse_args()
    import uvloop

    subjects = SUBJECTS if not args.files else [each for each in SUBJECTS if each.__module__ == files.__name__]
    rows = uvloop.run(measure(3 if args.quick else 15, subjects))
    for row in rows:
        target = "" if row.most is None else f"  ≤ {row.most:g} {row.unit} {'met' if row.met else 'MISSED'}"
        print(f"{row.what:48} median {median(row.values):8.2f}  p95 {p95(row.values):8.2f} {row.unit:3}{target}")
    if not (args.quick or args.files):
        OUT.parent.mkdir(parents=True, exist_ok=True)
        figures = {row.what: {"median": median(row.values), "p95": p95(row.values), "unit": row.unit} for row in rows}
        about = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        OUT.write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
