"""A Ray cluster of three nodes: a hundred rounds of kill -9 with each store, and a hundred races of two gateways."""

from uuid import uuid4

import pytest

from support.cluster_rounds import ClusterRounds, cluster_with, race_to_restore
from support.object_store import bucket, environment, s3_server
from support.ray_cluster import RayCluster
from support.seeds import new_chance

pytestmark = [pytest.mark.soak, pytest.mark.ray]

ROUNDS = 100


def run_rounds(cluster: RayCluster, *flags: str) -> None:
    rounds = ClusterRounds(cluster, new_chance(), *flags)
    try:
        for number in range(ROUNDS):
            rounds.run()
            print(number, rounds.told[-1], flush=True)
    finally:
        rounds.close()


def test_a_hundred_kills_of_agents_and_gateways_with_a_folder() -> None:
    with cluster_with() as cluster:
        run_rounds(cluster)


def test_a_hundred_kills_of_agents_and_gateways_with_a_bucket() -> None:
    with (
        s3_server() as server,
        bucket(server, f"b-{uuid4().hex}") as url,
        cluster_with(url, **environment(server)) as cluster,
    ):
        run_rounds(cluster, "--store", url)


def test_a_hundred_races_of_two_gateways_for_one_session() -> None:
    with cluster_with() as cluster:
        gateways = tuple(cluster.gateway(home=cluster.home.parent / name) for name in ("first", "second"))
        try:
            race_to_restore(cluster, (gateways[0], gateways[1]), "s", ROUNDS)
        finally:
            for each in gateways:
                each.stop()
