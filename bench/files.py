"""Files that belong to the state, and trials: what they cost, beside `git stash` on the same files and dill.

`python bench/state.py --files` runs these subjects alone.
"""

import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from bench.measure import median
from bench.rows import Row, timed
from ingle.nodes.local import LocalNode
from ingle.service import Service

MANY = """
import os
for d in range(100):
    os.mkdir(str(d))
    for f in range(100):
        with open(f'{d}/{f}', 'w') as file:
            _ = file.write(f'{d} {f}')
"""
LARGE = """
import os
for each in range(100):
    with open(f'file{each}', 'wb') as file:
        _ = file.write(os.urandom(1_000_000))
"""
CHANGE = "import os\nwith open('file7', 'wb') as file: _ = file.write(os.urandom(1_000_000))"
GIGABYTE = "import numpy as np\na = np.ones(125_000_000); n = 0"
DILL = "import dill; n = len(dill.dumps(a, protocol=5))"
FRAME = "import pandas as pd\ndf = pd.DataFrame({'a': range(10_000)})"
VARIANTS = 20
TRIALS_PER_ROUND = 4
"""Few: each commit nests namespaces one level deeper."""

SETTLE_SECONDS = 0.2
"""Files that were written in the last moment are read again. Those of users mostly were not."""


def folder_of(service: Service, session_id: str) -> Path:
    assert isinstance(service._node, LocalNode)
    return Path(service._node.manager.get(session_id).folders.place)


async def cells_beside_files(service: Service, rounds: int) -> list[Row]:
    """A cell that touches no file, in turn in an empty folder and beside 10,000 files."""
    empty: list[float] = []
    many: list[float] = []
    for name in ("empty", "many"):
        await service.create_session(name)
    await service.execute("many", MANY)
    for _ in range(rounds * 100):
        await timed(empty, service.execute("empty", "1 + 1"))
        await timed(many, service.execute("many", "1 + 1"))
    for name in ("empty", "many"):
        await service.end_session(name)
    more = 100 * (median(many) / median(empty) - 1)
    return [
        Row("a cell that touches no file, in an empty folder", empty, "ms"),
        Row("the same beside 10,000 files", many, "ms"),
        Row("the same: how much more", [more], "%", 3.0),
    ]


async def checkpoints_of_files(service: Service, rounds: int) -> list[Row]:
    unchanged: list[float] = []
    plain: list[float] = []
    changed: list[float] = []
    stash: list[float] = []
    await service.create_session("many")
    await service.execute("many", MANY)
    await service.create_session("plain")
    await service.create_session("large")
    await service.execute("large", LARGE)
    time.sleep(SETTLE_SECONDS)
    for name in ("many", "plain", "large"):
        await service.checkpoint(name, "base")
    for _ in range(rounds):
        await timed(unchanged, service.checkpoint("many", "base"))
        await service.execute("large", CHANGE)
        time.sleep(SETTLE_SECONDS)
        await timed(plain, service.checkpoint("plain", "base"))
        await timed(changed, service.checkpoint("large", "base"))
    folder = folder_of(service, "large")
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-qm", "base")
    for _ in range(rounds):
        await service.execute("large", CHANGE)
        began = time.perf_counter()
        _git(folder, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "stash", "-q")
        stash.append((time.perf_counter() - began) * 1000)
    for name in ("many", "plain", "large"):
        await service.end_session(name)
    return [
        Row("checkpoint of a folder with 10,000 unchanged files", unchanged, "ms", 60.0),
        Row("checkpoint with an empty folder", plain, "ms"),
        Row("checkpoint of 100 MB with a changed file of 1 MB", changed, "ms"),
        Row("the same: more than with an empty folder", [median(changed) - median(plain)], "ms", 20.0),
        Row("git stash of the same change", stash, "ms"),
    ]


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "safe.directory=*", *words], check=True)


async def saves_of_files(service: Service, rounds: int) -> list[Row]:
    """A save with 100 MB of files, of which one has changed, and a diff of the same."""
    first: list[float] = []
    again: list[float] = []
    diffs: list[float] = []
    await service.create_session("large")
    await service.execute("large", LARGE)
    time.sleep(SETTLE_SECONDS)
    await timed(first, service.save_session("large", "bench"))
    await service.checkpoint("large", "base")
    for _ in range(rounds):
        await service.execute("large", CHANGE)
        time.sleep(SETTLE_SECONDS)
        await timed(again, service.save_session("large", "bench"))
        await timed(diffs, service.diff("large", "base"))
    await service.delete_snapshot("bench")
    await service.end_session("large")
    return [
        Row("first save with 100 MB of files", first, "ms"),
        Row("save with 100 MB of files, 1 MB changed", again, "ms"),
        Row("diff of it with a checkpoint", diffs, "ms"),
    ]


async def trials_of_a_cell(service: Service, rounds: int) -> list[Row]:
    """A trial of `x = 1`, its commit and a discard, in turn with the plain cell, with an empty folder.

    Then the same trial in a session with a data frame: further copies hash it before the cell and after it.
    """
    plain: list[float] = []
    trial: list[float] = []
    commit: list[float] = []
    discard: list[float] = []
    framed: list[float] = []
    network = await _network(service)
    for _ in range(rounds):
        await service.create_session("trial")
        for _ in range(TRIALS_PER_ROUND):
            await timed(plain, service.execute("trial", "x = 1"))
            began = time.perf_counter()
            result = await service.trial("trial", "x = 1", network=network)
            trial.append((time.perf_counter() - began) * 1000)
            assert result.trial is not None
            await timed(commit, service.commit("trial", result.trial.name))
            result = await service.trial("trial", "x = 1", network=network)
            assert result.trial is not None
            await timed(discard, service.discard("trial", result.trial.name))
        await service.end_session("trial")
    await service.create_session("frame")
    await service.execute("frame", FRAME)
    for _ in range(rounds * TRIALS_PER_ROUND):
        began = time.perf_counter()
        result = await service.trial("frame", "x = 1", network=network)
        framed.append((time.perf_counter() - began) * 1000)
        assert result.trial is not None
        await service.discard("frame", result.trial.name)
    await service.end_session("frame")
    return [
        Row("a plain cell `x = 1`", plain, "ms"),
        Row("a trial of it, with an empty folder", trial, "ms"),
        Row("the same: more than the plain cell", [median(trial) - median(plain)], "ms", 15.0),
        Row("its commit", commit, "ms", 15.0),
        Row("its discard", discard, "ms"),
        Row("a trial of it in a session with a data frame", framed, "ms"),
    ]


async def variants_of_a_gigabyte(service: Service, rounds: int) -> list[Row]:
    """Twenty trivial variants on a session that holds 1 GB, and dill for the same state, if it is installed."""
    tried: list[float] = []
    dilled: list[float] = []
    network = await _network(service)
    await service.create_session("big")
    await service.execute("big", GIGABYTE)
    codes = [f"n = {number}" for number in range(VARIANTS)]
    for _ in range(rounds):
        await timed(tried, service.try_cells("big", codes, score="n", keep="none", network=network))
        if find_spec("dill") is not None:
            await timed(dilled, service.execute("big", DILL))
    await service.end_session("big")
    rows = [Row(f"try_cells of {VARIANTS} variants on a session that holds 1 GB", tried, "ms", 1000.0)]
    return [*rows, Row("dill of the same state, once, to memory", dilled, "ms")] if dilled else rows


async def _network(service: Service) -> str:
    """Connections are held where that is possible."""
    await service.create_session("level")
    level = (await service.get_session("level")).isolation
    await service.end_session("level")
    return "held" if level == "sandbox" else "allowed"
