"""Servers with one object store: a hundred rounds of kill -9, and a hundred races for one session."""

import random
from pathlib import Path
from uuid import uuid4

import pytest

from support.object_store import bucket, environment, s3_server
from support.store_rounds import StoreRounds

pytestmark = pytest.mark.soak

ROUNDS = 100


def run_rounds(folder: Path, url: str, variables: dict[str, str]) -> None:
    rounds = StoreRounds(folder, url, variables, random.Random(25))
    for _ in range(ROUNDS):
        rounds.run()
        print(rounds.told[-1])
    rounds.close()


def test_a_hundred_rounds_of_kill_9_with_a_folder(apart: Path, mark: str, tmp_path: Path) -> None:
    """The killed server and another one race for the session in each round, and exactly one gets it."""
    run_rounds(apart, str(tmp_path / "store"), {})


def test_a_hundred_rounds_of_kill_9_with_a_bucket(apart: Path, mark: str) -> None:
    with s3_server() as server, bucket(server, f"b-{uuid4().hex}") as url:
        run_rounds(apart, url, environment(server))
