"""Layers of a session's copies over granted folders: kept, compared, written to the folders, and undone.

The file agents are outside of all views, so that they see the folders as they are, and the layers beside them.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TypeVar

from ingle.files import FileDiff
from ingle.sessions.persistence.kept_files import agent_connection, with_another_agent
from ingle.trees import layer as layers
from ingle.trees.agent import TreeAgent
from ingle.trees.differences import differences
from ingle.trees.restore import Restored
from ingle.trees.store import KeptLayer, NotKept
from ingle.trees.stores import TreeStores
from ingle.trees.undo_log import Change, LeftChange
from ingle.workers.views import LayeredFolders
from ingle.workers.worker import Worker

T = TypeVar("T")


class Layers:
    def __init__(self, stores: TreeStores, tenant: str) -> None:
        self._stores = stores
        self._tenant = tenant
        self._store = stores.of(tenant)

    async def take(self, worker: Worker, protected: LayeredFolders) -> dict[str, KeptLayer]:
        """Keep what was written to each folder. The caller releases what this returns. Raise NotKept."""
        taken: dict[str, KeptLayer] = {}
        try:
            for folder, upper in protected.layers.items():
                taken[folder] = await self._take(worker, folder, upper, protected.since)
        except BaseException:
            self.release(taken)
            raise
        return taken

    async def _take(self, worker: Worker, folder: str, upper: str, since: int) -> KeptLayer:
        async with AsyncExitStack() as stack:
            own = await stack.enter_async_context(agent_connection(worker, outside=True))
            granted = await stack.enter_async_context(agent_connection(worker, outside=True))
            store, bounds = self._store, self._stores.bounds
            try:
                return await self._stores.with_connections(
                    lambda: layers.take(TreeAgent(own, upper), TreeAgent(granted, folder), store, bounds, since),
                    own,
                    granted,
                )
            except NotKept as why:
                raise NotKept(f"{folder}: {why}") from None
            except OSError as error:
                raise NotKept(f"{folder}: they could not be stored: {error.strerror}") from None

    async def apply(self, worker: Worker, folder: str, layer: KeptLayer, draft: str) -> Restored:
        """Write a layer to its folder. Raise NotKept if that is not possible. `draft`: the name of incomplete files."""
        return await self._with_agent(worker, folder, draft, lambda agent: layers.apply(agent, self._store, layer))

    async def undo(self, worker: Worker, left: LeftChange) -> tuple[Restored, list[str]]:
        """Undo the writing of a layer. Return what that did, and the files that others have changed since.

        Raise NotKept if it is not possible.
        """
        bounds = self._stores.bounds
        return await self._with_agent(
            worker, left.change.place, left.log.draft, lambda agent: layers.undo(agent, self._store, bounds, left)
        )

    async def differences(self, layer: KeptLayer) -> tuple[list[FileDiff], int]:
        """Return what differs, sorted by path, and how much more does."""
        return await self._stores.in_thread(differences, self._store, layer.before, layer.after)

    def change(self, folder: str, layer: KeptLayer) -> Change:
        """Return the change of a folder that writing a layer makes."""
        before, after = layer.before.tree, layer.after.tree
        return Change.between(self._tenant, folder, before, after, tracked=True, layered=True)

    def share(self, taken: Mapping[str, KeptLayer]) -> None:
        """Hold layers once more. The caller releases them."""
        for layer in taken.values():
            self._store.share(layer.before)
            self._store.share(layer.after)

    def release(self, taken: Mapping[str, KeptLayer]) -> None:
        for layer in taken.values():
            self._stores.release(self._store, layer.before)
            self._stores.release(self._store, layer.after)

    async def _with_agent(self, worker: Worker, folder: str, draft: str, work: Callable[[TreeAgent], T]) -> T:
        async def attempt() -> T:
            async with agent_connection(worker, outside=True) as connection:
                return await self._stores.with_connections(
                    lambda: work(TreeAgent(connection, folder, draft=draft)), connection
                )

        try:
            return await with_another_agent(attempt)
        except OSError as error:
            raise NotKept(f"they could not be read or stored: {error.strerror}") from None
