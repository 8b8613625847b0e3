"""Workers of the pool, which are confined before it is known whose session takes them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle.callers import Caller
from ingle.environments.shapes import NewEnvironment
from ingle.service import Service
from ingle.workers.launch.launcher import Launcher
from support.internals import manager_of
from support.service import make_settings
from support.waiting import until

pytestmark = [
    pytest.mark.req("safe.isolation"),
    pytest.mark.skipif(os.geteuid() != 0, reason="not every user can have a sandbox"),
]


@pytest.fixture
async def service(mark: str, home: Path, tmp_path: Path) -> AsyncIterator[Service]:
    """A sandbox whose owner has a folder that tenants have not, so that their workers come from another launcher."""
    settings = make_settings(preload=[], pool=1, isolation="sandbox", folder=[str(tmp_path)])
    async with Service.local(settings, home) as service:
        yield service


async def test_a_prepared_worker_has_nothing_of_the_tenant_that_was_first(service: Service, tmp_path: Path) -> None:
    first, second = (service.acting_for(Caller(name, name)) for name in ("first", "second"))
    code = "open('secret', 'w').close()\nimport os\nprint(os.getcwd())"
    folder = (await first.interpret(code, timeout=60)).stdout.strip()
    assert folder.endswith("/workspace/first")
    (launcher,) = [each for each in launchers(service) if str(tmp_path) not in granted(each)]
    assert await until(lambda: launcher.prepared == 1)
    (prepared,) = launcher._pool
    await second.create_session("s")
    seen = await second.execute("s", f"import os\nprint(os.path.exists({folder!r}), os.listdir('.'))")
    assert seen.stdout == "False []\n"
    assert manager_of(service).get("second/s").slot.worker is prepared, "it was taken from the pool"


async def test_sessions_of_an_environment_come_from_a_pool_too(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    settings = make_settings(preload=[], pool=1, isolation="sandbox")
    async with Service.local(settings, home) as service:
        await service.build_environment("own", NewEnvironment(), wait=200)
    # Its sessions see the wheels of the environment.
    async with Service.local(settings, home) as service:
        for number in range(2):
            for environment in (None, "own"):
                name = f"{environment}-{number}"
                pools = {each: list(each._pool) for each in launchers(service)}
                await service.create_session(name, environment=environment)
                session = manager_of(service).get(name)
                if number:
                    assert session.slot.worker in pools[session.slot.launcher]
                prefix = (await service.execute(name, "import sys\nprint(sys.prefix)")).stdout
                assert ("/environments/own/" in prefix) == (environment is not None)
                assert await until(lambda launcher=session.slot.launcher: launcher.prepared == 1)


def launchers(service: Service) -> list[Launcher]:
    return manager_of(service)._launchers.all


def granted(launcher: Launcher) -> dict[str, bool]:
    assert launcher.confinement is not None
    return dict(launcher.confinement.granted)
