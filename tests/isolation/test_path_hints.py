"""A path outside of the grants, or a host that no session reaches: the result says so, and how to get it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ingle.callers import Caller
from ingle.service import Service
from ingle.sessions.hints import network_hints, path_hints
from ingle.settings import Settings
from support.internals import worker_pid
from support.service import make_settings

pytestmark = pytest.mark.req("env.hint")


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="sandbox", network="none", mount=[])


@pytest.fixture
def data(apart: Path) -> Path:
    folder = apart / "my data"
    folder.mkdir()
    (folder / "table.csv").write_text("a,b\n")
    (folder / ".hidden").write_text("")
    return folder


async def notices(service: Service, code: str, name: str = "s") -> list[str]:
    result = await service.execute(name, code)
    assert result.error is not None
    return result.notices


async def test_a_file_that_exists_outside_of_the_grants_is_told_with_the_way_to_grant_it(
    service: Service, data: Path
) -> None:
    await service.create_session("s")
    told = await notices(service, f"open({str(data / 'table.csv')!r})")
    assert told == [
        f"'{data}/table.csv' exists on this machine, but it is in no folder that this session may use; in a terminal, "
        f"`ingle grant '{data}'` grants its folder, `ingle grant '{data}':ro` for reading only (at the start: --folder "
        f"'{data}', or Client(folder='{data}') in Python); "
        "new sessions have it at once, this one from its next process on"
    ]
    created = await notices(service, f"open({str(data / 'new')!r}, 'w')")
    assert f"`ingle grant '{data}'`" in created[0], "its folder exists"
    refused = f"raise PermissionError(13, 'Permission denied', {str(data / 'table.csv')!r})"
    assert await notices(service, refused) == told, "which other levels raise"
    assert (await service.execute("s", "1")).notices == []


async def test_nothing_is_told_of_what_is_not_there_hidden_or_of_the_system(service: Service, data: Path) -> None:
    await service.create_session("s")
    for path in (f"{data}/no/such", f"{data}/.hidden", "/etc/shadow", str(data.parent.parent / "none"), "none", ""):
        assert await notices(service, f"open({path!r})") == [], path
    for text in ("no path", "'", "'\\x00'", "'" * 5000):
        assert await notices(service, f"raise FileNotFoundError({text!r})") == [], text


async def test_another_tenant_is_told_nothing_of_files(service: Service, data: Path) -> None:
    other = service.acting_for(Caller("other", "other"))
    await other.create_session("s")
    assert await notices(other, f"open({str(data / 'table.csv')!r})") == []


async def test_a_relative_path_of_the_folder_in_which_the_server_was_started_is_told(
    mark: str, home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    for level in ("none", "sandbox"):
        async with Service.local(make_settings(preload=[], pool=0, isolation=level, mount=[]), home) as service:
            await service.create_session("s")
            (told,) = await notices(service, "open('table.csv')")
            assert str(data) in told
            assert "--folder" in told


async def test_a_slow_disk_holds_no_result_up_for_long(
    mark: str, home: Path, data: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a worker that ends meanwhile is not what ended the cell."""
    loop = asyncio.get_running_loop()
    asked, go_on = asyncio.Event(), asyncio.Event()

    def hang(text: str) -> str | None:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)
        return None

    monkeypatch.setattr(path_hints, "named_path", hang)
    async with Service.local(settings, home) as service:
        await service.create_session("s")
        assert await notices(service, "open('/no/such/file')") == []
        asked.clear()
        cell = await service.begin("s", "open('/no/such/file')")
        await asked.wait()
        os.kill(worker_pid(service, "s"), signal.SIGKILL)
        result = await service.wait("s", cell, wait=30)
        assert (result.status, result.exit) == ("error", None)
        go_on.set()


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request; urllib.request.urlopen('http://example.com')",
        "import socket; socket.create_connection(('1.1.1.1', 80))",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
    ],
    ids=["name", "address", "loopback"],
)
async def test_a_session_without_network_is_told_so_where_a_host_is_not_reached(service: Service, code: str) -> None:
    await service.create_session("s")
    assert await notices(service, code) == [network_hints.NO_NETWORK]
    assert await notices(service, "raise OSError('Disk quota exceeded')") == []
