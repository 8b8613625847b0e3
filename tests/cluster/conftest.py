"""Clusters of the tests: one of Ray for all that are marked `ray`, and agents without Ray for each module."""

from collections.abc import AsyncIterator

import pytest

from ingle.cluster.ray.directory import RayDirectory
from ingle.service import Service
from ingle.settings import Settings
from support.cluster import Cluster, cluster
from support.ray_cluster import RayCluster
from support.service import make_settings


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


@pytest.fixture(scope="module")
def cluster_settings() -> Settings:
    return make_settings(preload=[], pool=1)


@pytest.fixture(scope="module")
async def three(cluster_settings: Settings) -> AsyncIterator[Cluster]:
    """A cluster of three agents. Its tests leave all three alive."""
    async with cluster(cluster_settings, 3) as made:
        yield made


@pytest.fixture
async def own_cluster(cluster_settings: Settings) -> AsyncIterator[Cluster]:
    """A cluster without agents, for a test that ends some."""
    async with cluster(cluster_settings, 0) as made:
        yield made


@pytest.fixture
async def gateway(three: Cluster) -> Service:
    return await three.gateway()
