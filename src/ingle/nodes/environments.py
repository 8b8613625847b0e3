"""Environments of this machine: builds in threads, one at a time for each name, with progress to look at."""

import asyncio

from ingle.environments.build import Build
from ingle.environments.shapes import EnvironmentInfo, NewEnvironment
from ingle.environments.store import Record, check_name
from ingle.errors import EnvironmentFailed, EnvironmentInUse, EnvironmentNotFound, IngleError
from ingle.sessions.manager import Manager

MAX_FAILURES = 100
"""Names whose last build failed that are remembered."""


class _Running:
    """A build under way, and what it has told last."""

    def __init__(self) -> None:
        self.progress = ""
        self.build: Build | None = None
        self.task: asyncio.Task[Record] | None = None


class LocalEnvironments:
    """Environments of the node on this machine."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._store = manager.grants.builds.store
        self._running: dict[str, _Running] = {}
        self._failed: dict[str, str] = {}

    async def build(self, name: str, new: NewEnvironment, seconds: float) -> EnvironmentInfo:
        """Build an environment beside the one of that name. Return it once it is built, or after `seconds`."""
        check_name(name)
        if name in self._running:
            raise EnvironmentInUse(f"the environment {name!r} is being built; wait until that has ended")
        running = self._running[name] = _Running()
        self._failed.pop(name, None)
        running.task = asyncio.get_running_loop().create_task(self._build(name, new, running))
        await asyncio.wait({running.task}, timeout=seconds)
        if running.task.done():
            await running.task
        return await self._info(name)

    async def _build(self, name: str, new: NewEnvironment, running: _Running) -> Record:
        def tell(text: str) -> None:
            running.progress = text

        python = self._manager.settings.python
        build = running.build = Build(self._store, name, new, python=python, tell=tell)
        before = None
        try:
            try:
                before = await asyncio.to_thread(self._store.read, name)
            except EnvironmentNotFound:
                pass
            record = await asyncio.to_thread(build.run)
        except IngleError as error:
            if len(self._failed) < MAX_FAILURES:
                self._failed[name] = error.why if isinstance(error, EnvironmentFailed) else error.message
            raise
        finally:
            del self._running[name]
        if before is not None:
            await self._manager.grants.drop_stale([self._store.build_folder(before)])
        return record

    async def list(self) -> list[EnvironmentInfo]:
        records = {record.name: record for record in await asyncio.to_thread(self._store.all)}
        names = sorted({*records, *self._running, *self._failed})
        return [self._describe(name, records.get(name)) for name in names]

    async def _info(self, name: str) -> EnvironmentInfo:
        try:
            return self._describe(name, await asyncio.to_thread(self._store.read, name))
        except EnvironmentNotFound:
            return self._describe(name, None)

    def _describe(self, name: str, record: Record | None) -> EnvironmentInfo:
        info = describe(record) if record is not None else EnvironmentInfo(name, "failed", False)
        if name in self._running:
            info.state, info.progress = "building", self._running[name].progress
        elif name in self._failed:
            info.state, info.error = "failed", self._failed[name]
        return info

    async def remove(self, name: str) -> None:
        if self._failed.pop(name, None) is not None and name not in await asyncio.to_thread(self._store.names):
            return
        record = await asyncio.to_thread(self._store.read, name)
        await asyncio.to_thread(self._store.remove, name)
        await self._manager.grants.drop_stale([self._store.build_folder(record)])

    async def stop(self) -> None:
        """Stop the builds that run. What was there before stays."""
        running = list(self._running.values())
        for each in running:
            if each.build is not None:
                each.build.cancel()
        await asyncio.gather(*(each.task for each in running if each.task is not None), return_exceptions=True)


def describe(record: Record) -> EnvironmentInfo:
    """Return the description of an environment that is built."""
    made_from = record.made_from
    lines = [line.strip() for line in made_from.requirements.splitlines()]
    return EnvironmentInfo(
        record.name,
        "ready",
        True,
        record.python,
        [*(line for line in lines if line and not line.startswith("#")), *made_from.packages],
        record.packages,
        record.created_at,
    )
