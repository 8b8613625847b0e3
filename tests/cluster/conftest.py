"""One Ray cluster for all tests that are marked `ray`."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ingle.cluster.ray.directory import RayDirectory
from support.ray_cluster import RayCluster

NODES = 3


@pytest.fixture(scope="session")
def whole_ray_cluster() -> Iterator[RayCluster]:
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        cluster = RayCluster(Path(folder) / "home", NODES)
        try:
            cluster.repair()
            yield cluster
        finally:
            cluster.ingle("cluster", "down")


@pytest.fixture
def ray_cluster(whole_ray_cluster: RayCluster) -> RayCluster:
    """The cluster, with everything running before the test."""
    whole_ray_cluster.repair()
    return whole_ray_cluster


@pytest.fixture
async def directory(ray_cluster: RayCluster) -> AsyncIterator[RayDirectory]:
    made = RayDirectory(ray_cluster.local.address, ray_cluster.local.ray_variables())
    await made.start(lambda: None)
    yield made
    await made.stop()
