"""Servers with one object store: a hundred rounds of kill -9, and a hundred races for one session."""

import contextlib
from pathlib import Path
from uuid import uuid4

import pytest

from ingle.service import Service
from support.object_store import bucket, environment, s3_server
from support.seeds import new_chance
from support.service import make_settings
from support.store_races import race
from support.store_rounds import StoreRounds

pytestmark = pytest.mark.soak

ROUNDS = 100


def run_rounds(folder: Path, url: str, variables: dict[str, str]) -> None:
    rounds = StoreRounds(folder, url, variables, new_chance())
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


async def test_a_hundred_races_for_one_session(apart: Path, mark: str, tmp_path: Path) -> None:
    settings = make_settings(store=str(tmp_path / "store"), preload=[], pool=1, exit_grace=20.0)
    servers = [Service.local(settings, apart / name, "serve") for name in ("one", "two", "three")]
    async with contextlib.AsyncExitStack() as stack:
        await race(ROUNDS, *[await stack.enter_async_context(each) for each in servers])
