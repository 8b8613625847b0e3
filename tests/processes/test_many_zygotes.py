"""Several zygotes of one interpreter: started while many sessions start, and ended when they have nothing to do."""

import asyncio
import os
import signal

import pytest

from ingle.service import Service
from ingle.settings import Settings
from ingle.workers.launch import zygote_supervisor
from ingle.workers.launch.zygote_supervisor import ZygoteSupervisor
from support.cells import value
from support.internals import launchers_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.fresh_service]

SESSIONS = 12


@pytest.fixture
def settings() -> Settings:
    return make_settings(pool=0, preload=[])


@pytest.fixture
async def zygotes(service: Service, monkeypatch: pytest.MonkeyPatch) -> ZygoteSupervisor:
    """The zygotes of a service that starts more of them as soon as one order waits."""
    monkeypatch.setattr(zygote_supervisor, "ORDERS_PER_ZYGOTE", 1)
    monkeypatch.setattr(zygote_supervisor, "PRESSURE_SECONDS", 0.0)
    await service.create_session("first")
    (launcher,) = launchers_of(service)
    launcher._zygotes._max = 3
    return launcher._zygotes


async def start_many(service: Service, prefix: str) -> list[str]:
    names = [f"{prefix}{number}" for number in range(SESSIONS)]
    await asyncio.gather(*(service.create_session(name) for name in names))
    return names


async def test_sessions_that_start_together_get_more_zygotes(service: Service, zygotes: ZygoteSupervisor) -> None:
    names = await start_many(service, "a")
    assert await until(lambda: len(zygotes.all_living) == 2)
    names += await start_many(service, "b")
    assert await until(lambda: len(zygotes.all_living) == 3)
    # No more than the most.
    names += await start_many(service, "c")
    assert len(zygotes.all_living) == 3
    assert [await value(service, name, "1 + 1") for name in names] == ["2"] * len(names)


async def test_an_idle_zygote_ends_and_its_sessions_live_on(
    service: Service, zygotes: ZygoteSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_supervisor, "IDLE_SECONDS", 0.5)
    names = await start_many(service, "a")
    assert await until(lambda: len(zygotes.all_living) == 2)
    first, second = zygotes.all_living
    names += await start_many(service, "b")
    assert await until(lambda: zygotes.all_living == [first])
    assert second.pid is not None
    assert await until(lambda: not os.path.exists(f"/proc/{second.pid}"))
    assert [await value(service, name, "1 + 1") for name in names] == ["2"] * len(names)
    # The next start has a zygote at once.
    await service.create_session("next")
    assert await value(service, "next", "1 + 1") == "2"


async def test_the_death_of_one_zygote_leaves_the_others(service: Service, zygotes: ZygoteSupervisor) -> None:
    names = await start_many(service, "a")
    assert await until(lambda: len(zygotes.all_living) == 2)
    first, second = zygotes.all_living
    names += await start_many(service, "b")
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    assert await until(lambda: first.dead)
    names += await start_many(service, "c")
    assert second in zygotes.all_living
    assert [await value(service, name, "1 + 1") for name in names] == ["2"] * len(names)
