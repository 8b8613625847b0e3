"""Forks against interrupts, kills, ends and cancelled requests, two hundred times: nothing is left of any."""

import os
import random
import secrets
from pathlib import Path

import pytest

from ingle.service import Service
from sessions.state.test_forks import race

pytestmark = pytest.mark.soak


@pytest.mark.req("state.fork", "exit.tree")
async def test_two_hundred_races_leave_nothing_behind(service: Service, mark: str, home: Path) -> None:
    seed = int(os.environ.get("INGLE_TEST_SEED") or secrets.randbelow(1 << 32))
    print(f"INGLE_TEST_SEED={seed}")
    await race(service, random.Random(seed), 200, mark, home)
