"""Durable sessions in an object store: another server has them when theirs is gone."""

import asyncio
import contextlib
import math
import re
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingle import errors
from ingle.callers import Caller
from ingle.service import Service
from ingle.sessions.persistence.shared_sessions import SharedSessions
from ingle.settings import Settings
from ingle.store import shared as shared_store
from ingle.store import upkeep
from ingle.store.claims import Claim
from ingle.store.saves import SessionSaves
from ingle.store.store import Store
from support.internals import manager_of, node_of, session_of
from support.object_store import credentials
from support.service import make_settings
from support.store_races import printed, race, saved
from support.waiting import until

pytestmark = pytest.mark.req("store.remote")

Start = Callable[..., contextlib.AbstractAsyncContextManager[Service]]

MANY = 60_000
"""Numbers that are too many to be part of a save itself."""


@pytest.fixture
def settings(url: str) -> Settings:
    return make_settings(store=url, preload=[], pool=1, exit_grace=20.0)


@pytest.fixture
def start(settings: Settings, apart: Path, mark: str, s3: str) -> Start:
    """Start a server with a data folder of its own: two of them are as if on two machines."""

    @contextlib.asynccontextmanager
    async def start(name: str, **changes: Any) -> AsyncIterator[Service]:
        service = Service.local(replace(settings, **changes), apart / name, "serve")
        with credentials(s3):
            await service.start()
        try:
            yield service
        finally:
            await service.stop()

    return start


async def there(service: Service, name: str = "s") -> None:
    """Wait until this server has the session."""
    while not [each for each in await service.list_sessions() if each.session_id == name]:
        await asyncio.sleep(0.01)


async def stored_bytes(service: Service) -> int:
    """Return the size of all chunks in the store."""
    return sum(each.size for each in await manager_of(service).takeover.shared.store.list("chunks/"))


async def abandon(service: Service) -> None:
    """Have a server renew its lease no more, as if its machine were cut off. It still runs."""
    await manager_of(service).takeover.stop()


# --- another machine ---------------------------------------------------------------------------------------


async def test_a_durable_session_comes_back_on_another_machine(start: Start) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = list(range(1000)); print('printed on one')")
        await printed(one, "print(open('file.txt', 'w').write('kept'))")
        await saved(one, 2)
    async with start("two") as two:
        result = await two.execute("s", "print(sum(x), open('file.txt').read())")
        assert result.stdout == "499500 kept\n"
        assert any(each.startswith("this session is as it was after cell 2, saved ") for each in result.notices)
        assert (await two.wait("s", 1)).stdout == "printed on one\n"
        await saved(two, 3)
    async with start("one") as one:
        assert await printed(one, "print(len(x))") == "1000\n"
        assert (await one.wait("s", 3)).stdout == "499500 kept\n"
        await one.end_session("s")
    async with start("two") as two:
        assert await two.list_sessions() == []


async def test_a_server_that_runs_takes_over_from_one_that_is_silent(start: Start) -> None:
    async with start("one", store_takeover=1.0) as one, start("two", store_takeover=1.0) as two:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        with pytest.raises(errors.SessionExists):
            await two.create_session("s", durable=True)
        await abandon(one)
        await there(two)
        assert await printed(two, "x += 1; print(x)") == "2\n"
        # The first server does not know yet. Its saves are refused, and the second one never sees them.
        await printed(one, "x = 100")
        session = session_of(one, "s")
        while session.autosave is not None and not session.autosave.taken_over:
            await asyncio.sleep(0.01)
        assert (await one.get_session("s")).saved_cell == 1
        result = await one.execute("s", "1")
        assert any("was taken over by another server" in each for each in result.notices)
        await saved(two, 2)
        assert await printed(two, "print(x)") == "2\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_server_renews_its_lease_while_it_starts(start: Start, store: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(self: SharedSessions, known: object) -> list[Claim]:
        begun.set()
        await go_on.wait()
        return []

    async def run() -> None:
        async with start("one", store_takeover=1.0):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedSessions, "abandoned", slow)
        running = asyncio.ensure_future(run())
        await begun.wait()
        seen = set()
        async with asyncio.timeout(20):
            while len(seen) < 3:
                seen |= {each.version for each in await store.list("leases/")}
                await asyncio.sleep(0.01)
        go_on.set()
        await running


async def test_exactly_one_of_two_servers_that_race_gets_the_session(start: Start) -> None:
    async with start("one") as one, start("two") as two, start("three") as three:
        await race(4, one, two, three)


async def test_a_session_moves_from_one_server_to_another_without_loss(start: Start) -> None:
    async with start("one") as one, start("two") as two:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await node_of(one).give_up("s")
        with pytest.raises(errors.SessionNotFound):
            await one.get_session("s")
        assert (await node_of(two).adopt("s")).state == "hibernated"
        assert await printed(two, "x += 1; print(x)") == "2\n"
        await node_of(two).give_up("s")
        await node_of(one).adopt("s")
        assert await printed(one, "print(x)") == "2\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_session_does_not_move_while_a_cell_runs(start: Start) -> None:
    async with start("one") as one:
        objects = manager_of(one).takeover.shared.store.objects
        await one.create_session("s", durable=True)
        write, answer, hung = objects.write, threading.Event(), threading.Event()

        def hang(path: str, data: bytes) -> None:
            hung.set()
            answer.wait()
            write(path, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "write", hang)
            try:
                await printed(one, "x = 1")
                moving = asyncio.ensure_future(node_of(one).give_up("s"))
                assert await until(hung.is_set)
                running = await one.execute("s", "print(input())", wait=10.0)
            finally:
                answer.set()
            with pytest.raises(errors.Busy):
                await moving
        await one.input("s", "not ended", wait=10.0)
        assert (await one.wait("s", running.cell)).stdout == "not ended\n"
        await node_of(one).give_up("s")


async def test_a_name_is_free_again_after_its_session_has_ended(start: Start) -> None:
    async with start("one") as one, start("two") as two:
        await one.create_session("s", durable=True)
        await one.end_session("s")
        await two.create_session("s", durable=True)
        with pytest.raises(errors.SessionExists):
            await one.create_session("s", durable=True)


async def test_a_request_whose_server_is_lost_is_not_run_again(start: Start) -> None:
    async with start("one") as one, start("two") as two:
        await one.create_session("s", durable=True)
        first = await one.execute("s", "x = 1", key="first")
        await saved(one, 1)
        running = await one.execute("s", "import time; time.sleep(600)", key="second", wait=0.0)
        await node_of(two).adopt("s")
        assert (await two.execute("s", "x = 1", key="first")).cell == first.cell
        with pytest.raises(errors.CellForgotten):
            await two.execute("s", "import time; time.sleep(600)", key="second", wait=0.0)
        assert (running.cell, running.status) == (2, "running")
        assert await printed(two, "print(x)") == "1\n"


async def test_a_cleared_session_comes_back_cleared(start: Start) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        await one.clear_session("s")
    async with start("two") as two:
        assert await printed(two, "print('x' in globals())") == "False\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_save_that_cannot_be_read_stops_no_server(start: Start, url: str) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
    for path in (Path(url) / "saves").rglob("*.*"):
        path.write_bytes(b"damaged")
    async with start("two") as two:
        assert await two.list_sessions() == []
        with pytest.raises(errors.SnapshotDamaged):
            await node_of(two).adopt("s")
        await two.create_session("other", durable=True)
    async with start("one") as one:
        assert await printed(one, "print(x)") == "1\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_server_killed_between_the_two_renames_of_a_save_starts_again(start: Start, apart: Path) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
    [current] = local_saves(apart / "one")
    current.rename(current.with_suffix(".previous.json"))
    async with start("one") as one:
        assert await printed(one, "print(x)") == "1\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
@pytest.mark.parametrize("stored", [True, False], ids=["in the store", "nowhere"])
async def test_a_lost_save_costs_its_own_session_only(start: Start, apart: Path, url: str, stored: bool) -> None:
    async with start("one") as one:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        lost = local_saves(apart / "one")
        await one.create_session("other", durable=True)
        await printed(one, "y = 2", "other")
        await saved(one, 1, "other")
    for path in lost:
        path.unlink()
    if not stored:
        shutil.rmtree(Path(url) / "saves" / "%" / "s")
    async with start("one") as one:
        assert await printed(one, "print(y)", "other") == "2\n"
        assert "s" in {each.session_id for each in await one.list_sessions()} or not stored
        if stored:
            assert await printed(one, "print(x)") == "1\n"


def local_saves(folder: Path) -> list[Path]:
    """Return the last saves of durable sessions in a data folder."""
    return [each for each in folder.glob("snapshots/*/sessions/*.json") if ".previous" not in each.name]


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_session_is_taken_over_however_little_of_its_packs_it_uses(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks would be packed anew, and are not on the disk of the server that takes it over."""
    async with start("one") as one, start("two") as two:
        await one.create_session("s", durable=True)
        await printed(one, f"x = list(range({MANY}))")
        await saved(one, 1)
        claim = await manager_of(one).takeover.shared.claims.newest("s")
        assert claim is not None
        monkeypatch.setattr("ingle.store.packs.MIN_USED_SHARE", 2.0)
        assert await manager_of(two).takeover.adopt(claim)
        assert await printed(two, "print(sum(x))") == f"{sum(range(MANY))}\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_small_session_is_taken_over_and_saved_with_few_requests(start: Start) -> None:
    async with start("one") as one, start("two", store_takeover=0.0) as two:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1; print('told')")
        await saved(one, 1)
        claim = await manager_of(one).takeover.shared.claims.newest("s")
        assert claim is not None
        objects = manager_of(two).takeover.shared.store.objects
        with counted(objects) as asked:
            assert await manager_of(two).takeover.adopt(claim)
            assert await printed(two, "print(x)") == "1\n"
            taken = Counter(asked)
            await saved(two, 2)
        kinds = [("create", "claims"), ("list", "claims"), ("list", "saves"), ("list", "requests"), ("read", "saves")]
        assert taken == Counter([*kinds, ("write", "saves")])
        assert asked - taken == Counter([("write", "saves"), ("list", "claims")])
        assert (await two.wait("s", 1)).stdout == "told\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
@pytest.mark.parametrize("newer", [False, True])
async def test_a_save_that_was_read_before_a_takeover_is_used_if_it_is_the_newest(start: Start, newer: bool) -> None:
    async with start("one") as one, start("two", store_takeover=0.0) as two:
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        takeover = manager_of(two).takeover
        claim = await takeover.shared.claims.newest("s")
        assert claim is not None
        known = await SessionSaves(takeover.shared.store, "s").newest(claim.epoch + 1)
        if newer:
            await printed(one, "x = 2")
            await saved(one, 2)
        with counted(takeover.shared.store.objects) as asked:
            assert await takeover.adopt(claim, known)
        assert asked["read", "saves"] == int(newer)
        assert await printed(two, "print(x)") == f"{1 + newer}\n"


@contextlib.contextmanager
def counted(objects: Any) -> Iterator["Counter[tuple[str, str]]"]:
    """Count the requests to a store by their kind and the folder of the object, but for renewals of the lease."""
    asked: Counter[tuple[str, str]] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("read", "write", "create", "upload", "download", "list", "delete"):
            patch.setattr(objects, kind, partial(_counted, getattr(objects, kind), kind, asked))
        yield asked


def _counted(work: Callable[..., Any], kind: str, asked: "Counter[tuple[str, str]]", path: str, *rest: Any) -> Any:
    folder = path.partition("/")[0]
    asked[kind, folder] += folder != "leases"
    return work(path, *rest)


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_save_of_the_version_before_is_taken_over(
    start: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its chunks are in packs, and its timeline is in segments."""
    with monkeypatch.context() as patch:
        patch.setattr("ingle.store.packs.MAX_INLINE_BYTES", -1)
        patch.setattr("ingle.store.timelines.MAX_INLINE_BYTES", -1)
        async with start("one") as one:
            await one.create_session("s", durable=True)
            await printed(one, "x = 1; print('told')")
            await saved(one, 1)
    for path in [each for each in (Path(url) / "saves").rglob("*.*") if each.is_file()]:
        save = msgspec.msgpack.decode(path.read_bytes())
        assert (save.pop("inline"), save["timeline"].pop()) == (b"", b"")
        path.write_bytes(msgspec.msgpack.encode({**save, "version": 1}))
    async with start("two") as two:
        assert await printed(two, "print(x)") == "1\n"
        assert (await two.wait("s", 1)).stdout == "told\n"


# --- named snapshots ---------------------------------------------------------------------------------------


async def test_a_snapshot_is_loaded_listed_and_deleted_on_another_machine(start: Start) -> None:
    async with start("one") as one, start("two") as two:
        await one.create_session("s")
        await printed(one, "x = 'first'")
        await one.save_session("s", "snap")
        assert [each.name for each in await two.list_snapshots()] == ["snap"]
        await two.load_session("snap", "t")
        assert await printed(two, "print(x)", "t") == "first\n"
        await printed(two, "x = 'second'", "t")
        await two.save_session("t", "snap")
        await one.load_session("snap", "u")
        assert await printed(one, "print(x)", "u") == "second\n"
        await one.delete_snapshot("snap")
        for server in (one, two):
            with pytest.raises(errors.SnapshotNotFound):
                await server.load_session("snap", "v")


async def test_a_snapshot_that_another_server_deletes_is_gone_unless_it_was_saved_again(start: Start) -> None:
    async with start("one") as one, start("two") as two:
        await one.create_session("s")
        await printed(one, "x = 1")
        await one.save_session("s", "snap")
        await one.save_session("s", "again")
        await two.load_session("snap", "t")
        await two.load_session("again", "u")
        await one.delete_snapshot("snap")
        await one.delete_snapshot("again")
        await two.save_session("u", "again")
        assert [each.name for each in await two.list_snapshots()] == ["again"]
        assert [each.name for each in await one.list_snapshots()] == ["again"]


async def test_a_snapshot_that_was_saved_without_a_store_stays(start: Start) -> None:
    async with start("one", store="") as one:
        await one.create_session("s")
        await one.save_session("s", "local")
    async with start("one") as one:
        assert [each.name for each in await one.list_snapshots()] == ["local"]
        await one.load_session("local", "t")


# --- chunks ------------------------------------------------------------------------------------------------


async def test_chunks_are_uploaded_once_and_unused_ones_are_removed(start: Start) -> None:
    async with start("one") as one:
        shared = manager_of(one).takeover.shared
        await one.create_session("s", durable=True)
        await printed(one, "import random; big = random.randbytes(6_000_000)")
        await saved(one, 1)
        assert await stored_bytes(one) > 6_000_000
        for number in range(2, 6):
            await printed(one, f"small = {number}")
            await saved(one, number)
        assert await stored_bytes(one) < 7_000_000
        await shared.collect("", older_than=0.0)
        assert await stored_bytes(one) > 6_000_000
        await printed(one, "del big")
        await saved(one, 6)
        for number in range(7, 13):
            await printed(one, f"small = {number}")
            await saved(one, number)
        await shared.collect("", older_than=0.0)
        assert await stored_bytes(one) < 1_000_000
    async with start("two") as two:
        assert await printed(two, "print(small)") == "12\n"


async def test_unused_chunks_of_a_tenant_that_saves_nothing_more_are_removed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(shared_store, "UNUSED_SECONDS", 0.0)
    async with start("one") as one:
        bob = one.acting_for(Caller("bob", "bob"))
        for service, name in ((one, "kept"), (bob, "dropped")):
            await service.create_session("s")
            await printed(service, "import random; big = random.randbytes(1_000_000)")
            await service.save_session("s", name)
        assert await stored_bytes(one) > 2_000_000
        await bob.delete_snapshot("dropped")
        async with asyncio.timeout(20):
            while await stored_bytes(one) > 2_000_000:
                await asyncio.sleep(0.05)
    async with start("two") as two:
        await two.load_session("kept", "t")
        assert (await two.execute("t", "print(len(big))")).stdout == "1000000\n"


async def test_a_save_that_finds_its_packs_marked_uploads_its_chunks_again(start: Start) -> None:
    """Another server removes packs that no save used a moment ago: this save uses them again."""
    async with start("one") as one:
        shared = manager_of(one).takeover.shared
        await one.create_session("s", durable=True)
        await printed(one, "big = b'x' * 1_000_000; other = 1")
        await saved(one, 1)
        before = await shared.store.list("chunks/")

        async def nothing() -> set[str]:
            return set()

        # What a collector sees that read all saves before this one was written.
        await shared.packs("").collect(nothing, math.inf)
        assert await shared.store.list("chunks/") == []
        await printed(one, "other = 2")
        await saved(one, 2)
        assert {each.path for each in await shared.store.list("chunks/")}.isdisjoint(each.path for each in before)
    async with start("two") as two:
        assert await printed(two, "print(len(big), other)") == "1000000 2\n"


# --- a store that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_store_that_fails_is_named_and_the_session_goes_on(start: Start, url: str) -> None:
    async with start("one") as one:
        objects = manager_of(one).takeover.shared.store.objects
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)

        def fail(path: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "write", fail)
            patch.setattr("ingle.sessions.persistence.autosave.RESEND_SECONDS", 0.05)
            await printed(one, "x = 2")
            session = session_of(one, "s")
            while session.autosave is not None and not session.autosave.trouble:
                await asyncio.sleep(0.01)
            info = await one.get_session("s")
            assert info.saved_cell == 1
            assert any(re.search("not saved as it is now: the store .* is full", each) for each in info.notices)
            result = await one.execute("s", "print(x)")
            assert result.stdout == "2\n"
            assert any("the last save is that after cell 1, and the session goes on" in each for each in result.notices)
            with pytest.raises(errors.StoreFull, match="is saved on this machine only"):
                await one.save_session("s", "snap")
            with pytest.raises(errors.StoreFull):
                await one.create_session("t", durable=True)
        # It is sent as soon as the store takes it.
        await saved(one, 3)
    async with start("two") as two:
        assert await printed(two, "print(x)") == "2\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_an_ended_session_does_not_come_back_in_place_of_a_new_one(start: Start) -> None:
    async with start("one", store_takeover=1000.0) as one:
        objects = manager_of(one).takeover.shared.store.objects
        await one.create_session("s", durable=True)
        for number in range(1, 5):
            await printed(one, "x = 'old'")
            await saved(one, number)

        def fail(path: str) -> None:
            raise PermissionError("not now")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "delete", fail)
            await one.end_session("s")
        await one.create_session("s", durable=True)
        await printed(one, "x = 'new'")
        await saved(one, 1)
    async with start("two") as two:
        assert await printed(two, "print(x)") == "new\n"


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_a_store_that_hangs_holds_up_neither_cells_nor_other_requests(start: Start) -> None:
    async with start("one") as one:
        objects = manager_of(one).takeover.shared.store.objects
        await one.create_session("s", durable=True)
        await printed(one, "x = 1")
        await saved(one, 1)
        write, answer, hung = objects.write, threading.Event(), threading.Event()

        def hang(path: str, data: bytes) -> None:
            hung.set()
            answer.wait()
            write(path, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "write", hang)
            try:
                for number in range(2, 5):
                    assert await printed(one, f"x = {number}; print(x)") == f"{number}\n"
                assert await until(hung.is_set)
                assert (await one.get_session("s")).saved_cell == 1
            finally:
                answer.set()
            await saved(one, 4)
