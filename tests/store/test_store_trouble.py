"""A store that fails, hangs or is full: sessions go on, saves fail by name, and all is saved once the store is back."""

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ingle import errors
from ingle.service import Service
from ingle.store.leases import Leases
from ingle.store.store import open_store
from support.faulty_store import FaultyStore, Handler, faulty_store, refuse, reset, writes
from support.internals import manager_of, session_of
from support.object_store import bucket, credentials
from support.service import make_settings
from support.store_races import printed, saved
from support.waiting import until

pytestmark = pytest.mark.req("store.remote")

Start = Callable[..., contextlib.AbstractAsyncContextManager[Service]]

TROUBLES = {
    "busy": (refuse(503, "SlowDown"), errors.StoreFailed, "failed .* check the network and the store"),
    "cut": (reset, errors.StoreFailed, "failed .* check the network and the store"),
    "full": (writes(refuse(507, "InsufficientStorage")), errors.StoreFull, "is full .* free space there"),
}


@pytest.fixture
def proxy(s3: str) -> Iterator[FaultyStore]:
    with faulty_store(s3) as made:
        yield made


@pytest.fixture
def start(apart: Path, mark: str, proxy: FaultyStore) -> Iterator[Start]:
    """Start a server with a data folder of its own, all with one bucket behind the proxy."""
    with bucket(proxy.url, f"b-{uuid4().hex}") as url:
        settings = make_settings(store=url, preload=[], pool=1, exit_grace=20.0)

        @contextlib.asynccontextmanager
        async def start(name: str, **changes: Any) -> AsyncIterator[Service]:
            service = Service.local(replace(settings, **changes), apart / name, "serve")
            with credentials(proxy.url):
                await service.start()
            try:
                yield service
            finally:
                await service.stop()

        yield start


def quick_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ingle.sessions.persistence.autosave.RESEND_SECONDS", 0.05)
    patch.setattr("ingle.store.store.PAUSE_SECONDS", 0.01)


async def troubled(service: Service, name: str = "s") -> None:
    """Wait until a save of the session has failed."""
    session = session_of(service, name)
    assert await until(lambda: session.autosave is not None and session.autosave.trouble, 60)


async def saved_again(service: Service, cell: int, name: str = "s") -> None:
    """Wait until the session is saved as it was after that cell, though no other cell follows."""
    autosave = session_of(service, name).autosave
    assert autosave is not None
    assert await until(lambda: autosave.last is not None and autosave.last.cell >= cell, 60), autosave.trouble


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_sessions_go_on_and_are_saved_once_the_store_is_back(
    start: Start, proxy: FaultyStore, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_retries(monkeypatch)
    fault, kind, words = TROUBLES[trouble]
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        with proxy.failing(fault):
            assert await printed(one, "x = 2; print(x)") == "2\n"
            await troubled(one)
            info = await one.get_session("s")
            assert info.saved_cell == 1
            assert any(re.search(f"not saved as it is now: the store .* {words}", each) for each in info.notices)
            assert await printed(one, "x = 3; print(x)") == "3\n"
            with pytest.raises(kind, match=words):
                await one.save_session("s", "snap")
            with pytest.raises(kind, match=words):
                await one.create_session("t", durable=True)
        await saved_again(one, 3)
        assert not (await one.get_session("s")).notices
        # What failed has left nothing.
        await one.create_session("t", durable=True)
        await one.save_session("s", "snap")
    async with start("two") as two:
        assert await printed(two, "print(x)") == "3\n"
        await two.load_session("snap", "u")
        assert await printed(two, "print(x)", "u") == "3\n"


async def test_a_store_that_holds_every_request_holds_up_no_cell(start: Start, proxy: FaultyStore) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        with proxy.held():
            for number in range(2, 6):
                assert await printed(one, f"x = {number}; print(x)") == f"{number}\n"
            assert await until(lambda: proxy.met)
            assert (await one.get_session("s")).saved_cell == 1
            await one.create_session("t")
            assert await printed(one, "print(1)", "t") == "1\n"
        await saved(one, 5)


async def test_an_upload_that_breaks_off_leaves_the_save_before_it(
    start: Start, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_retries(monkeypatch)
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "big = 'first'")
        await saved(one, 1)
        with proxy.failing(writes(reset, "/chunks/")):
            await printed(one, "import random; big = random.randbytes(2_000_000)")
            await troubled(one)
            async with start("two") as two:
                claim = await manager_of(one).takeover.shared.claims.newest("s")
                assert claim is not None
                assert await manager_of(two).takeover.adopt(claim)
                assert await printed(two, "print(big)") == "first\n"


async def test_a_session_that_ends_while_the_store_fails_does_not_come_back(start: Start, proxy: FaultyStore) -> None:
    async with start("one", store_takeover=1.0) as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        with proxy.failing(reset):
            await one.end_session("s")
        store = manager_of(one).takeover.shared.store
        async with asyncio.timeout(30):
            while await store.list("saves/"):
                await asyncio.sleep(0.05)
        await one.create_session("s", durable=True)
        assert await printed(one, "print('x' in globals())") == "False\n"


async def test_a_session_whose_takeover_met_a_failing_store_is_taken_over_later(
    start: Start, proxy: FaultyStore
) -> None:
    """The claim was taken, and the save could not be written. The server gets the session when the store is back."""
    async with start("one") as one, start("two") as two:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        claim = await manager_of(one).takeover.shared.claims.newest("s")
        assert claim is not None
        full = writes(refuse(507, "InsufficientStorage"), "/saves/")
        with proxy.failing(full), pytest.raises(errors.StoreFull):
            await manager_of(two).takeover.adopt(claim)
        async with asyncio.timeout(30):
            while not [each for each in await two.list_sessions() if each.session_id == "s"]:
                await asyncio.sleep(0.05)
        assert await printed(two, "print(x)") == "1\n"


async def test_an_object_is_read_with_one_request(proxy: FaultyStore, tmp_path: Path) -> None:
    with bucket(proxy.url, f"b-{uuid4().hex}") as url:
        store = open_store(url)
        await store.write("folder/object", b"content")
        asked: list[str] = []

        def note(request: Handler) -> bool:
            asked.append(request.command)
            return False

        with proxy.failing(note), (tmp_path / "file").open("w+b") as file:
            assert await store.read("folder/object") == b"content"
            assert await store.download("folder/object", file.fileno())
            assert asked == ["GET", "GET"]
            assert file.read() == b"content"
            assert not await store.download("folder/none", file.fileno())
        store.close()


async def test_a_name_that_holds_a_number_of_the_protocol_is_not_taken_for_an_answer(
    s3: str, proxy: FaultyStore
) -> None:
    """Names of packs are random: some have the status of a full store in them."""
    with bucket(proxy.url, f"b-{uuid4().hex}") as url:
        store = open_store(url)
        with proxy.failing(reset), pytest.raises(errors.StoreFailed) as told:
            await store.read("chunks/507")
        assert told.type is errors.StoreFailed
        store.close()


# --- leases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_the_time_that_a_store_failed_is_no_silence_of_a_server(url: str) -> None:
    reader, other = open_store(url), open_store(url)
    leases, undisturbed = Leases(reader), Leases(other)
    await leases.renew("one")
    assert (await leases.silences())["one"] < 0.5

    def fail(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader.objects, "write", fail)
        with pytest.raises(errors.StoreFull):
            await leases.silences()
        while (await undisturbed.silences())["one"] < 0.5:
            await asyncio.sleep(0.01)
    assert (await leases.silences())["one"] == 0.0
    # From here on its silence counts.
    while not (await leases.silences())["one"]:
        await asyncio.sleep(0.01)
    for each in (reader, other):
        each.close()


async def test_the_time_that_a_store_hung_is_no_silence_of_a_server(s3: str, proxy: FaultyStore) -> None:
    with bucket(proxy.url, f"b-{uuid4().hex}") as url, credentials(s3):
        name = url
        direct = open_store(name)
        leases, undisturbed = Leases(store := open_store(name)), Leases(direct)
        with credentials(proxy.url):
            await leases.renew("one")  # the first call connects
        with proxy.held():
            reading = asyncio.ensure_future(leases.silences())
            assert await until(lambda: proxy.met)
            while (await undisturbed.silences())["one"] < 1.0:
                await asyncio.sleep(0.05)
        assert (await reading)["one"] < 1.0
        for each in (store, direct):
            each.close()


# --- a full disk ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
async def test_a_full_disk_stops_saves_and_nothing_else(
    apart: Path, mark: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_retries(monkeypatch)
    settings = make_settings(store=str(small_disk / "store"), preload=[], pool=1)
    async with Service.local(settings, apart / "one", "serve") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        await printed(one, "import random; x = random.randbytes(100_000)")
        await troubled(one)
        notices = (await one.get_session("s")).notices
        assert any(re.search("the store .* is full .* free space there", each) for each in notices), notices
        assert await printed(one, "print(len(x))") == "100000\n"
        with pytest.raises(errors.StoreFull, match="is full"):
            await one.save_session("s", "snap")
        filler.unlink()
        await saved_again(one, 3)
        assert not list((small_disk / "store").rglob("*.part"))
    async with Service.local(settings, apart / "two", "serve") as two:
        assert await printed(two, "print(len(x))") == "100000\n"
