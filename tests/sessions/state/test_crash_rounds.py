"""Kill -9 at any moment: what comes back is the state after some completed cell, and it is said which."""

import random
from collections.abc import Callable

import pytest

from support.crash_rounds import Rounds
from support.rollback_rounds import RollbackRounds
from support.server import Server

ROUNDS = ["server", "worker", "server", "copy", "server", "zygote", "server", "worker"]
"""Each kind of death, and the server's between them. `make soak` runs many more."""


@pytest.mark.req("state.restart")
@pytest.mark.timeout(240)
def test_rounds_of_kill_9(start: Callable[..., Server]) -> None:
    rounds = Rounds(start, random.Random(20))
    for what in ROUNDS:
        rounds.run(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


@pytest.mark.req("files.state")
@pytest.mark.timeout(240)
def test_rollbacks_are_wholly_done_or_not_at_all(start: Callable[..., Server]) -> None:
    """The files and the variables are of one moment, whatever is killed while a rollback goes on."""
    rounds = RollbackRounds(start, random.Random(7))
    for what in ("server", "init", "server", "worker"):
        rounds.run(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")
