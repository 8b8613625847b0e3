"""Services for tests: their settings, the shared ones, and the proof that nothing is left behind."""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from ingle.service import Service
from ingle.settings import Settings
from support.internals import end_everything, files_left, idle_processes, own_commands
from support.processes import MARK, command_line, marked_processes
from support.waiting import until, wait_until


def make_settings(**given: Any) -> Settings:
    """Return settings at the level of this test run (`--isolation`), with the mark passed on to sessions."""
    mounts = os.environ.get("INGLE_MOUNT")
    common: dict[str, Any] = {"isolation": os.environ.get("INGLE_ISOLATION", "none"), "keep_env": [MARK]}
    if mounts:
        common["mount"] = [mounts]
    return Settings(**{**common, **given})


def assert_empty(folder: Path) -> None:
    """Check that servers left nothing in a data folder but the durable sessions that the registry knows."""
    known: set[str] = set()
    if (folder / "registry.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "registry.db")) as db:
            known = {f"sessions/durable.{uid}" for (uid,) in db.execute("SELECT uid FROM sessions")}
    left = [str(path.relative_to(folder)) for sub in ("sessions", "run") for path in (folder / sub).glob("*")]
    assert set(left) <= known, f"left behind in the data folder: {set(left) - known}"


LASTING = {
    *("run", "sessions", "shell", "workspace", "token", "signing.key"),
    *("registry.db", "registry.db-wal", "registry.db-shm"),
}
"""What a data folder may hold between two tests that share it."""


def is_changed(home: Path) -> bool:
    """Return whether a data folder holds something that the next test could meet.

    Chunks that no snapshot names any more stay until the store is swept, and mean nothing.
    """
    files = [*(home / "shell").glob("*"), *(home / "workspace").glob("*")]
    saved = [path for path in (home / "snapshots").glob("*/*/*") if path.parent.name != "chunks"]
    return bool(files or saved or {path.name for path in home.iterdir()} - LASTING - {"snapshots"})


class SharedService:
    """A running service that many tests use, one after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._parent = tempfile.TemporaryDirectory(prefix="ingle-home-")
        self.home = Path(self._parent.name) / "home"
        self.service = Service.local(settings, self.home)

    async def stop(self) -> None:
        await self.service.stop()
        try:
            assert_empty(self.home)
        finally:
            self._parent.cleanup()


class SharedServices:
    """The shared services of one test process: one with the usual settings, and one with others while they are used."""

    def __init__(self, usual: Settings) -> None:
        self._usual = usual
        self._mark = os.environ[MARK]
        self._running: list[SharedService] = []

    async def get(self, settings: Settings) -> SharedService:
        for each in self._running:
            if each.settings == settings:
                return each
        for each in [each for each in self._running if each.settings != self._usual]:
            await self._drop(each)
        made = SharedService(settings)
        await made.service.start()
        self._running.append(made)
        return made

    async def clean(self, shared: SharedService) -> None:
        """End what a test has left running, and check that no process and no folder remains of it."""
        try:
            await asyncio.wait_for(end_everything(shared.service), 60)
            assert await until(lambda: not self._strays(), 10), f"left behind: {self._strays()}"
            left = partial(files_left, shared.service, shared.home)
            assert await until(lambda: not left(), 10), f"left behind: {left()}"
        except BaseException:
            await self._drop(shared)
            raise
        if is_changed(shared.home):
            await self._drop(shared)

    def _strays(self) -> list[tuple[int, str]]:
        """Return marked processes that are not a shared service's own; when there are too many, all of them."""
        found = [(pid, command_line(pid)) for pid, _ in marked_processes(self._mark)]
        commands: set[str] = set().union(*(own_commands(each.service) for each in self._running))
        strays = [each for each in found if each[1] not in commands]
        return strays or (found if len(found) > sum(idle_processes(each.service) for each in self._running) else [])

    async def _drop(self, shared: SharedService) -> None:
        self._running.remove(shared)
        await shared.stop()

    async def stop(self) -> None:
        """Stop all of them, and check that no process is left. They start again when they are asked for."""
        if not self._running:
            return
        for each in list(self._running):
            await self._drop(each)
        found = partial(marked_processes, self._mark)
        assert wait_until(lambda: not found(), 5), f"left behind: {found()}"
