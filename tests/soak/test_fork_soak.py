"""Forks against interrupts, kills, ends and cancelled requests, two hundred times: nothing is left of any."""

from pathlib import Path

import pytest

from ingle.service import Service
from sessions.state.test_forks import race
from support.seeds import new_chance

pytestmark = pytest.mark.soak


@pytest.mark.req("state.fork", "exit.tree")
async def test_two_hundred_races_leave_nothing_behind(service: Service, mark: str, home: Path) -> None:
    await race(service, new_chance(), 200, mark, home)
