"""The same rounds as in test_crash_rounds, two hundred of them, with sessions of several sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.crash_rounds import Rounds
from support.rollback_rounds import ChangeRounds, Changing, GrantRounds
from support.seeds import new_chance
from support.server import Server

pytestmark = pytest.mark.soak

KILLED = ["server", "middle", "process", "process", "init"]
"""`process`: the worker, a copy or a file agent."""


@pytest.mark.parametrize("size", [1_000, 5_000_000])
def test_a_hundred_rounds_of_kill_9(start: Callable[..., Server], size: int) -> None:
    chance = new_chance()
    rounds = Rounds(start, chance, size)
    for _ in range(100):
        rounds.run(chance.choice(["server", "server", "worker", "copy", "zygote"]))
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


def test_a_hundred_rollbacks_with_kill_9(start: Callable[..., Server]) -> None:
    chance = new_chance()
    rounds = ChangeRounds(start, chance)
    for _ in range(100):
        rounds.run(chance.choice(["server", "log", "worker", "init"]))
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


def test_a_hundred_commits_with_kill_9(start: Callable[..., Server]) -> None:
    chance = new_chance()
    rounds = ChangeRounds(start, chance, Changing.commit)
    for _ in range(100):
        rounds.run(chance.choice(["server", "log", "worker", "worker", "init"]))
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


def test_a_hundred_rollbacks_of_a_tracked_folder_with_kill_9(start: Callable[..., Server], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    chance = new_chance()
    rounds = GrantRounds(start, chance, tmp_path, "--mount", f"{tmp_path}:tracked", "--pool", "0")
    for _ in range(100):
        rounds.roll_back(chance.choice(KILLED))
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


def test_a_hundred_commits_to_a_granted_folder_with_kill_9(start: Callable[..., Server], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    chance = new_chance()
    flags = ("--mount", f"{tmp_path}:tracked", "--pool", "0", "--isolation", "sandbox")
    rounds = GrantRounds(start, chance, tmp_path, *flags)
    for _ in range(100):
        rounds.commit(chance.choice(KILLED))
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")
