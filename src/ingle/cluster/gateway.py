"""The gateway's side of a cluster, from the settings of `ingle serve --cluster`."""

import asyncio
from pathlib import Path

from ingle.cluster.directory import Directory, StaticDirectory
from ingle.cluster.node import ClusterNode
from ingle.cluster.ray.directory import RayDirectory, read_address
from ingle.cluster.token import ClusterToken, token_file
from ingle.errors import InvalidRequest
from ingle.settings import Settings
from ingle.store.store import open_store

STATIC = "static:"


def directory_of(settings: Settings, home: Path) -> Directory:
    """Return the directory that the setting `cluster` names. Blocks."""
    if settings.cluster.startswith(STATIC):
        return StaticDirectory.read(settings.cluster.removeprefix(STATIC))
    return RayDirectory(*read_address(settings.cluster, home))


async def cluster_node(settings: Settings, home: Path) -> ClusterNode:
    """Return the node of a gateway, which is not connected yet."""
    directory = await asyncio.to_thread(directory_of, settings, home)
    if not settings.store:
        raise InvalidRequest("a cluster needs a store for the names of its sessions; give --store URL, the agents' one")
    token = await asyncio.to_thread(ClusterToken.read, token_file(home))
    store = await asyncio.to_thread(open_store, settings.store)
    return ClusterNode(settings, home, directory, token, store, directory.silence)
