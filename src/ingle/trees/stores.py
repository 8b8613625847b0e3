"""Stores of all tenants of one server, and the threads that work on them."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from ingle.settings import Settings
from ingle.support import remove_tree
from ingle.trees.folder_changes import FolderChanges
from ingle.trees.snapshot import Bounds
from ingle.trees.store import KeptTree, TreeStore
from ingle.trees.undo_log import Saves, UndoLogs

THREADS = 8
"""Trees that are taken or brought back at the same time."""

P = ParamSpec("P")
T = TypeVar("T")


def shut_down(connection: socket.socket) -> None:
    """End a connection, so that a thread that uses it sees the end at once."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class DataFolder(Protocol):
    """Data folder of a server, as far as trees need it."""

    @property
    def server(self) -> str:
        """Name of the server."""
        ...

    @property
    def undo(self) -> Path:
        """Folder of undo logs, which outlives the server."""
        ...

    def folder(self, name: str) -> Path:
        """Return a folder that ends with the server."""
        ...

    def is_dead(self, server: str) -> bool:
        """Return whether the server of that name has ended."""
        ...


class TreeStores:
    def __init__(self, data: DataFolder, settings: Settings, saves: Saves) -> None:
        self._folder = data.folder
        self.undo_logs = UndoLogs(data.undo, data.server, data.is_dead, saves)
        self._quota = settings.keep_disk
        self.bounds = Bounds(settings.keep_files, settings.keep_bytes)
        self._stores: dict[str, TreeStore] = {}
        self.changes = FolderChanges()
        """Of tracked folders, by all sessions."""
        self._executor = ThreadPoolExecutor(THREADS, "ingle-trees")

    def of(self, tenant: str) -> TreeStore:
        if tenant not in self._stores:
            self._stores[tenant] = TreeStore(self._folder(f"trees.{tenant}"), self._quota)
        return self._stores[tenant]

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    async def with_connections(self, work: Callable[[], T], *connections: socket.socket) -> T:
        """Run blocking work that uses these connections. The caller closes them afterwards.

        A cancelled call ends the connections and waits for the thread. If the thread still used them when they are
        closed, it could wait on another connection, whose descriptor has the same number.
        """
        running = asyncio.wrap_future(self._executor.submit(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            for each in connections:
                shut_down(each)
            await asyncio.wait({running})
            raise

    def release(self, store: TreeStore, kept: KeptTree) -> None:
        """Release a kept tree without waiting for it."""
        self._executor.submit(store.release, kept)

    async def close(self) -> None:
        """Wait for the threads, and remove everything."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
        for tenant in self._stores:
            await asyncio.to_thread(remove_tree.remove, self._folder(f"trees.{tenant}"))
