"""What is saved with `dill` and with Kishu, for `bench/saving.py`: run as a program, it is the notebook that they save.

    python bench/peers.py save dill FOLDER < {"cells": […], "changes": […]}     times and bytes, as JSON
    python bench/peers.py restore dill FOLDER                                   the time that took
    python bench/peers.py kinds dill FOLDER                                     which kinds of objects are kept

Kishu saves after each cell, in the session itself; it is driven without a notebook, in the mode of its own tests.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 30
"""Seconds for one kind of object."""


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Dill:
    """The namespace is that of `__main__`, which `dump_module` writes as one file, each time anew."""

    def __init__(self, folder: Path) -> None:
        import dill

        self._dill = dill
        self._file = folder / "session.dill"
        self.space: dict[str, Any] = vars(sys.modules["__main__"])

    def run(self, code: str) -> float:
        exec(compile(code, "<cell>", "exec"), self.space)
        return 0.0

    def save(self) -> tuple[float, int]:
        began = time.perf_counter()
        self._dill.dump_module(self._file)
        return time.perf_counter() - began, self._file.stat().st_size

    def restore(self) -> None:
        self._dill.load_module(self._file)


class Kishu:
    def __init__(self, folder: Path) -> None:
        os.environ["ENV_KISHU_TEST_MODE"] = "1"
        os.environ["HOME"] = str(folder)
        from IPython.core.interactiveshell import InteractiveShell
        from kishu.jupyterint import KishuForJupyter
        from kishu.notebook_id import NotebookId

        notebook = folder / "notebook.ipynb"
        if not notebook.exists():
            notebook.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        self._folder = folder
        self._shell = InteractiveShell()
        self._kishu = KishuForJupyter(NotebookId("key", notebook, "kernel"), self._shell)
        self._kishu.install_kishu_hooks()
        self.space: dict[str, Any] = self._shell.user_ns
        self._held_up = 0.0
        self._before = 0

    def run(self, code: str) -> float:
        self._before = size_of(self._folder)
        began = time.perf_counter()
        ended: list[float] = []
        self._shell.events.register("post_run_cell", lambda result: None)
        # Its own hook runs after the cell, and holds the session up until everything is written.
        timed = f"{code}\nimport time as _time; _ended = _time.perf_counter()"
        self._shell.run_cell(timed).raise_error()
        ended.append(self.space["_ended"])
        self._held_up = time.perf_counter() - ended[0]
        (self._folder / "head").write_text(str(self._kishu._kishu_branch.get_head().commit_id))
        return time.perf_counter() - began

    def save(self) -> tuple[float, int]:
        return self._held_up, size_of(self._folder) - self._before

    def restore(self) -> None:
        self._kishu.checkout((self._folder / "head").read_text(), skip_notebook=True)


PEERS = {"dill": Dill, "kishu": Kishu}


def save(peer: "Dill | Kishu") -> dict[str, Any]:
    given = json.load(sys.stdin)
    held_up, written = 0.0, 0
    for cell in given["cells"]:
        peer.run(cell)
        if isinstance(peer, Kishu):
            seconds, size = peer.save()
            held_up, written = held_up + seconds, written + size
    if isinstance(peer, Dill):
        held_up, written = peer.save()
    peer.run(given["change"])
    again, more = peer.save()
    return {"pause": held_up, "total": held_up, "bytes": written, "pause again": again, "bytes again": more}


def kinds(name: str, folder: Path) -> list[str]:
    """The kinds of objects that come back as they were, each saved by itself."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from support import kinds as table

    kept = []
    for number, kind in enumerate(table.present()):
        place = folder / str(number)
        place.mkdir()

        def make(kind: Any = kind, place: Path = place) -> bool:
            peer = PEERS[name](place)
            peer.run(kind.make)
            peer.run("w = [v]")
            peer.save()
            return True

        def look(kind: Any = kind, place: Path = place) -> bool:
            peer = PEERS[name](place)
            peer.restore()
            return bool(eval(kind.same, peer.space)) and bool(
                eval("w[0] is v or type(v) in (int, float, str, bytes, complex)", peer.space)
            )

        if apart(make, place) and apart(look, place):
            kept.append(kind.name)
    return kept


def apart(work: Any, place: Path) -> bool:
    """Whether this goes well in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)
            os.chdir(place)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            code = 0 if work() else 1
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def main() -> None:
    verb, name, place = sys.argv[1:]
    folder = Path(place)
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.ensemble  # noqa: F401

    if verb == "kinds":
        answer: Any = kinds(name, folder)
    elif verb == "save":
        answer = save(PEERS[name](folder))
    else:
        peer = PEERS[name](folder)
        began = time.perf_counter()
        peer.restore()
        answer = time.perf_counter() - began
    # What a restored session has put in place of anything here does not matter.
    os.write(1, ("\n" + json.dumps(answer) + "\n").encode())
    os._exit(0)


if __name__ == "__main__":
    main()
