"""The table of real cells in `tests/sessions/rich/real_cells/*.txt`: how it is read, run, and written anew.

A case is a title and one or more steps. A step is a cell, or the answer to the question of the one before it, and what
a model reads then, whole:

    === a figure and a value
    --- cell
    plt.plot([1, 2])
    2
    --- reads · result text/plain · display image/png text/plain · 1 image
    2
    [cell 1 · ok · 1 figure]

The mime types are those of the result and of each display; images are counted as the model gets them. Every case has a
session of its own. `python tests/support/real_cells.py` writes into the files what cells read like now: the difference
is to be read, not to be believed.
"""

import asyncio
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ingle.events import Result
from ingle.render.model import Hints, Image, text, view
from ingle.service import Service
from ingle.settings import Settings

FOLDER = Path(__file__).parents[1] / "sessions" / "rich" / "real_cells"

OPTIONS: dict[str, Any] = {
    "preload": [
        *("numpy", "pandas", "polars", "pyarrow", "matplotlib.pyplot", "seaborn", "plotly.express", "altair"),
        *("PIL.Image", "sympy", "networkx", "tqdm.auto", "rich.table", "rich.progress", "rich.logging"),
    ],
    "pool": 1,
    "start_patience": 120.0,
}
SESSION = "main"


@dataclass(frozen=True)
class Step:
    kind: str
    """`cell` or `input`."""
    code: str
    reads: str = ""
    shows: str = ""
    """Mime types and images, as they stand in the file."""


@dataclass(frozen=True)
class Case:
    group: str
    title: str
    steps: tuple[Step, ...]


def load(file: Path) -> list[Case]:
    cases = []
    for part in re.split(r"^=== ", file.read_text("utf-8"), flags=re.M)[1:]:
        title, _, rest = part.partition("\n")
        steps: list[Step] = []
        for kind, shows, body in re.findall(r"^--- (cell|input|reads)(.*)\n((?:(?!--- ).*\n)*)", rest, flags=re.M):
            body = body.removesuffix("\n").removesuffix("\n") if body.endswith("\n\n") else body.removesuffix("\n")
            if kind == "reads":
                steps[-1] = replace(steps[-1], reads=body, shows=shows.removeprefix(" · "))
            else:
                steps.append(Step(kind, body))
        cases.append(Case(file.stem, title, tuple(steps)))
    return cases


def load_all() -> list[Case]:
    return [case for file in sorted(FOLDER.glob("*.txt")) for case in load(file)]


def written(cases: list[Case]) -> str:
    blocks = []
    for case in cases:
        lines = [f"=== {case.title}"]
        for step in case.steps:
            lines += [f"--- {step.kind}", step.code, " · ".join(["--- reads", *filter(None, [step.shows])]), step.reads]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def steady(shown: str) -> str:
    """Without what differs from run to run. Nothing else of a text is left out of the comparison."""
    shown = re.sub(r"\b0x[0-9a-f]{6,}", "0x…", shown)
    # What magics and progress bars measure; bars keep their length.
    shown = re.sub(r"\b[\d.]+(?:e\+03)? (?:ns|[µm]s|s)\b", "… s", shown)
    shown = re.sub(r"\[\d\d:\d\d<\d\d:\d\d, +(?:[\d.]+|\?)(?:it/s|s/it)\]", "[00:00<00:00, 999999.99it/s]", shown)
    return re.sub(r"\b\d:\d\d:\d\d$", "0:00:00", shown, flags=re.M)


def seen(result: Result) -> tuple[str, str]:
    """What a model reads of a result, and which mime types and images there are."""
    # Whether a cell took longer than a second is the machine's affair, not the cell's.
    parts = view(msgspec.structs.replace(result, execution_time=0.0), Hints(default_session=SESSION))
    images = sum(isinstance(part, Image) for part in parts)
    shows = [] if result.result is None else [f"result {' '.join(sorted(result.result))}"]
    shows += [f"display {' '.join(sorted(each))}" for each in result.displays]
    shows += [f"{images} image{'s' * (images > 1)}"] if images else []
    return steady(text(parts)), " · ".join(shows)


async def run(service: Service, case: Case, folder: Path) -> Case:
    """The same case with what its cells read like now."""
    await service.create_session(SESSION, cwd=str(folder), env={"COLUMNS": "80"})
    steps = []
    try:
        for step in case.steps:
            if step.kind == "cell":
                result = await service.execute(SESSION, step.code)
            else:
                result = await service.input(SESSION, step.code)
            reads, shows = seen(result)
            steps.append(replace(step, reads=reads, shows=shows))
    finally:
        await service.end_session(SESSION)
    return replace(case, steps=tuple(steps))


async def _write(files: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as home:
        async with Service.local(Settings(isolation="none", **OPTIONS), Path(home) / "home") as service:
            for file in files:
                cases = []
                for case in load(file):
                    with tempfile.TemporaryDirectory() as folder:
                        cases.append(await run(service, case, Path(folder)))
                file.write_text(written(cases), "utf-8")


if __name__ == "__main__":
    asyncio.run(_write([FOLDER / f"{name}.txt" for name in sys.argv[1:]] or sorted(FOLDER.glob("*.txt"))))
