"""What showing values adds to a bare `1+1`, in the guest itself: a worker as it is beside one that only has `repr`.

Run as a program of its own, since it makes a worker of its process: prints seconds a cell, with and without.
"""

import builtins
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from ingle_worker.session import worker as worker_module
from ingle_worker.wire.messages import Execute

ROUNDS = 60
CELLS = 200


def bare() -> SimpleNamespace:
    """A screen with nothing but text on it."""

    def hook(value: object) -> None:
        if value is None:
            return
        builtins._ = None  # type: ignore[attr-defined]
        screen.value = {"text/plain": repr(value)}
        builtins._ = value  # type: ignore[attr-defined]

    figures = SimpleNamespace(any=False, cell_begins=lambda: None, cell_ends=lambda interrupted: None)
    screen = SimpleNamespace(hook=hook, figures=figures, notices=[], value=None)
    return screen


def measure(worker: Any, screen: Any) -> float:
    worker._display, worker._evaluator.figures = screen, screen.figures
    sys.displayhook = screen.hook
    began = time.perf_counter()
    for cell in range(CELLS):
        worker.execute(Execute(cell + 1, "1+1"))
    return (time.perf_counter() - began) / CELLS


def main() -> None:
    worker = worker_module.Worker()
    worker._pid = worker_module.os.getpid()
    screens = {"with": worker._display, "without": bare()}
    best = dict.fromkeys(screens, 1.0)
    for _ in range(ROUNDS):
        # In turns, so that whatever else the machine does falls on both.
        for name, screen in screens.items():
            best[name] = min(best[name], measure(worker, screen))
    print(best["with"], best["without"])


if __name__ == "__main__":
    main()
