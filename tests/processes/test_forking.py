"""A session's process is forked without Python's own work after a fork. What that would have done must be seen to."""

from pathlib import Path

import pytest

from ingle.service import Service
from support.cells import value
from support.service import make_settings

pytestmark = pytest.mark.both_levels

LIBRARY = """
import os
told = []
os.register_at_fork(
    before=lambda: told.append("before"),
    after_in_parent=lambda: told.append("parent"),
    after_in_child=lambda: told.append(f"child {os.getpid()}"),
)
"""

THREADED = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def keep_library(apart: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `ahead` where it can be loaded beforehand: not in a folder that sessions write."""
    folder = apart / "library"
    folder.mkdir()
    (folder / "ahead.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize("library", ["", LIBRARY, THREADED], ids=["nothing", "hooks", "threads"])
async def test_a_session_is_as_after_a_fork_of_pythons_own(home: Path, apart: Path, library: str, monkeypatch) -> None:
    keep_library(apart, library, monkeypatch)
    async with Service.local(make_settings(preload=["ahead"], pool=0, keep_env=["PYTHONPATH"]), home) as service:
        for name in ("main", "other"):
            await service.create_session(name)
            await service.execute(name, "import ahead, os, random, threading")
        threads = (
            "threading.main_thread() is threading.current_thread(), threading.main_thread().native_id == os.getpid()"
        )
        assert await value(service, "main", threads) == "(True, True)"
        assert await value(service, "main", "threading.active_count()") == "1"
        assert await value(service, "main", "random.random()") != await value(service, "other", "random.random()")
        if library == LIBRARY:
            for name in ("main", "other"):
                assert (
                    await value(service, name, "ahead.told == ['before', f'child {os.getpid()}'] or ahead.told")
                    == "True"
                )


async def test_numpys_numbers_are_the_sessions_own(home: Path) -> None:
    """Also where two come from the same pool, and what is left of a number drawn before them is gone."""
    drawn = set()
    async with Service.local(make_settings(preload=["numpy.random"], pool=1), home) as service:
        for name in ("one", "two", "three"):
            await service.create_session(name)
            await service.execute(name, "import numpy")
            drawn.add(await value(service, name, "numpy.random.normal()"))
            drawn.add(await value(service, name, "numpy.random.randint(1 << 60)"))
            assert (
                await value(service, name, "numpy.random.seed(7); numpy.random.randint(1 << 60)")
                == "254718014332789956"
            )
    assert len(drawn) == 6


STRANGE = """
import sys, types
seeds = []
sys.modules["numpy.random"] = types.SimpleNamespace(seed=lambda: seeds.append(1))
"""


async def test_another_numpy_is_seeded_by_its_own_means(home: Path, apart: Path, monkeypatch) -> None:
    keep_library(apart, STRANGE, monkeypatch)
    async with Service.local(make_settings(preload=["ahead"], pool=0, keep_env=["PYTHONPATH"]), home) as service:
        await service.create_session("main")
        await service.execute("main", "import ahead")
        assert await value(service, "main", "ahead.seeds") == "[1]"
