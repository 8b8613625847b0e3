"""Objects, claims and leases, in a folder and in a bucket."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.store import leases
from ingle.store.claims import FORGOTTEN_SECONDS, Claim, Claims
from ingle.store.leases import Leases, new_renewal
from ingle.store.objects import quoted, unquoted
from ingle.store.store import Store, open_store
from support.object_store import bucket, environment


@pytest.fixture
def coarse(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose clock tells nothing about the last minutes."""
    monkeypatch.setattr(store.objects, "resolution", 3600.0)


async def test_objects_are_written_read_listed_and_deleted(store: Store) -> None:
    assert await store.read("a/b") is None
    assert await store.list("a/") == []
    await store.write("a/b", b"1")
    await store.write("a/c/d", b"22")
    await store.write("ab", b"3")
    await store.write("a/b", b"4")
    assert await store.read("a/b") == b"4"
    assert [(each.path, each.size) for each in await store.list("a/")] == [("a/b", 1), ("a/c/d", 2)]
    assert [each.path for each in await store.list("a")] == ["a/b", "a/c/d", "ab"]
    assert [each.path for each in await store.list("a/c")] == ["a/c/d"]
    assert await store.list("a/cc") == []
    await store.delete("a/b")
    await store.delete("a/b")
    assert [each.path for each in await store.list("a/")] == ["a/c/d"]


async def test_large_objects_are_streamed(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * 50_000
    (tmp_path / "source").write_bytes(data)
    with (tmp_path / "source").open("rb") as source, (tmp_path / "target").open("w+b") as target:
        await store.upload("large", source.fileno())
        assert await store.download("large", target.fileno())
        assert not await store.download("missing", target.fileno())
        await store.download("large", target.fileno())
    assert (tmp_path / "target").read_bytes() == data


async def test_exactly_one_of_many_creates_an_object(store: Store) -> None:
    for number in range(5):
        made = await asyncio.gather(*(store.create(f"one/{number}", b"%d" % each) for each in range(8)))
        assert made.count(True) == 1
        assert await store.read(f"one/{number}") == b"%d" % made.index(True)


async def test_a_store_proves_that_it_creates_exclusively(store: Store) -> None:
    await store.check()
    assert await store.list("checks/") == []


async def test_a_store_that_replaces_on_create_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(path: str, data: bytes) -> bool:
        store.objects.write(path, data)
        return True

    monkeypatch.setattr(store.objects, "create", replace)
    with pytest.raises(errors.StoreFailed, match="does not create objects exclusively"):
        await store.check()


async def test_an_object_whose_creation_lost_its_answer_is_known_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = store.objects.create
    answers = [0]

    def lose_the_first_answer(path: str, data: bytes) -> bool:
        made = create(path, data)
        answers[0] += 1
        if answers[0] == 1:
            raise OSError("the connection broke")
        return made

    monkeypatch.setattr(store.objects, "create", lose_the_first_answer)
    assert await store.create("mine", b"first caller")
    assert not await store.create("mine", b"second caller")


async def test_claims_have_one_owner_for_each_epoch(store: Store) -> None:
    claims = Claims(store)
    assert await claims.newest("team/main") is None
    won = await asyncio.gather(*(claims.take("team/main", 0, f"agent-{each}", "node") for each in range(8)))
    (first,) = [each for each in won if each is not None]
    assert await claims.newest("team/main") == first
    second = await claims.take("team/main", first.epoch, "other", "elsewhere")
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert await claims.take("team/main", 0, "late", "node") is None
    third = await claims.take("team/main", second.epoch, "other", "elsewhere")
    assert third is not None
    # The object of the first epoch is gone by now, and its number is still not free.
    assert await claims.take("team/main", 0, "late", "node") is None
    assert await claims.newest("team/main") == third
    assert await claims.epoch("team/main") == third.epoch
    assert await claims.newest("main") is None


async def claimed(claims: Claims, key: str, agent: str = "one", after: int = 0) -> Claim:
    claim = await claims.take(key, after, agent, "node")
    assert claim is not None
    return claim


async def test_a_released_claim_keeps_the_count_of_epochs(store: Store) -> None:
    claims = Claims(store)
    claim = await claimed(claims, "main")
    await claims.release(claim)
    newest = await claims.newest("main")
    assert newest is not None
    assert (newest.epoch, newest.released) == (claim.epoch, True)
    assert await claims.take("main", 0, "two", "node") is None
    assert await claims.take("main", claim.epoch, "two", "node") is not None


@pytest.mark.req("node.once")
async def test_a_name_that_was_forgotten_has_one_owner_afterwards(store: Store) -> None:
    claims = Claims(store)
    old = await claimed(claims, "main")
    await claims.release(old)
    # One that has read the old claim, and goes on only now.
    late = await claims.create("main", old.epoch, "late", "node")
    assert late is not None
    await claims.forget(old, "upkeep", "node")
    assert await claims.newest("main") == late
    assert await claims.confirm(late)
    await claims.release(late)
    await claims.forget(late, "upkeep", "node")
    assert await claims.newest("main") is None
    assert await claims.take("main", old.epoch, "later", "node") is None
    assert await claims.take("main", late.epoch, "later", "node") is None
    again = await claimed(claims, "main")
    assert await claims.take("main", late.epoch, "later", "node") is None
    # A second round that has read the same claim removes nothing.
    await claims.forget(late, "another upkeep", "node")
    assert await claims.newest("main") == again


@pytest.mark.req("node.once")
async def test_a_slow_removal_leaves_the_claim_of_a_new_owner(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claims, others = Claims(store), Claims(store)
    old = await claimed(claims, "main")
    await claims.release(old)
    taken = Claims.take
    new: list[Claim] = []

    async def slow(self: Claims, *given: Any) -> Claim | None:
        own = await taken(self, *given)
        monkeypatch.undo()
        # Another server finds that the one that removes has no lease, and takes the name.
        assert own is not None
        new.append(await claimed(others, "main", "two", own.epoch))
        return own

    monkeypatch.setattr(Claims, "take", slow)
    await claims.forget(old, "upkeep", "node")
    assert await others.newest("main") == new[0]


async def test_the_first_claim_of_a_name_is_above_those_that_were_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(store)
    claim = await claimed(claims, "main")
    for _ in range(3):
        claim = await claimed(claims, "main", after=claim.epoch)
    await claims.release(claim)
    await claims.forget(claim, "upkeep", "node")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + FORGOTTEN_SECONDS)
    assert (await claimed(claims, "main")).epoch > claim.epoch + 1


async def test_claims_of_an_agent_are_listed(store: Store) -> None:
    claims = Claims(store)
    first = {key: await claimed(claims, key, agent) for key, agent in (("a", "one"), ("t/b", "one"), ("c", "two"))}
    moved = await claimed(claims, "a", "two", first["a"].epoch)
    assert await claims.all("one") == [first["t/b"]]
    assert {each.key: each for each in await claims.all("two")} == {"a": moved, "c": first["c"]}
    assert len(await claims.all()) == 3


async def test_a_silent_agent_is_told_from_one_that_renews(store: Store) -> None:
    leases = Leases(store)
    assert await leases.last_seen("one") is None
    await leases.renew("one")
    await leases.renew("two")
    while (await leases.silences())["one"] < 0.5:
        await leases.renew("two")
    await leases.renew("two")
    silences = await leases.silences()
    assert silences["two"] < 0.5 <= silences["one"]
    await leases.renew("one")
    assert (await leases.silences())["one"] < silences["one"]
    await leases.release("one")
    assert await leases.last_seen("one") is None


async def test_a_new_reader_knows_the_silence_by_the_time_of_the_store(store: Store) -> None:
    began = time.monotonic()
    await Leases(store).renew("one")
    while not (silence := (await Leases(store).silences())["one"]):
        await asyncio.sleep(0.01)
    # Times in a bucket are whole seconds, and a silence is never told as longer than it is.
    assert silence <= time.monotonic() - began


async def test_what_killed_servers_have_left_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, reader = Leases(store), Leases(store)
    await killed.renew("one")
    await killed.silences()
    assert list(await reader.silences()) == ["one"]
    monkeypatch.setattr(leases, "LEFT_SECONDS", -1.0)
    await killed.renew("two")
    # With this age even the own clock is old. What is seen is told, and then removed.
    assert list(await reader.silences()) == ["one", "two"]
    assert [each.path for folder in ("leases/", "clocks/") for each in await store.list(folder)] == []
    assert await reader.silences() == {}


async def test_a_silence_is_counted_from_the_renewal_that_was_told(store: Store, coarse: None) -> None:
    agent, heard, plain = Leases(store), Leases(store), Leases(store)
    renewal = new_renewal()
    heard.tell("one", renewal)
    told = time.monotonic()
    await agent.renew("one", renewal)
    while (asked := time.monotonic()) < told + 0.2:
        await asyncio.sleep(0.01)
    silence = await heard.last_seen("one")
    assert silence is not None
    assert silence >= asked - told
    assert await plain.last_seen("one") == 0.0


@pytest.mark.req("node.once")
async def test_a_renewal_that_was_not_told_ends_the_silence(store: Store, coarse: None) -> None:
    agent, heard = Leases(store), Leases(store)
    renewal = new_renewal()
    heard.tell("one", renewal)
    await agent.renew("one", renewal)
    await agent.renew("one", new_renewal())
    assert await heard.last_seen("one") == 0.0


@pytest.mark.req("node.once")
async def test_a_renewal_that_is_written_late_proves_no_silence(store: Store, coarse: None) -> None:
    agent, heard = Leases(store), Leases(store)
    late = new_renewal()
    heard.tell("one", late)
    # The agent gave the write up, and has renewed its lease since. Then the store carries the first write out.
    await agent.renew("one", new_renewal(late.generation + 1))
    await agent.renew("one", late)
    assert await heard.last_seen("one") == 0.0
    await agent.release("one", before=1)
    assert [each.path for each in await store.list("leases/")] == ["leases/one.1"]


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "ä b", "%", "x" * 80])
def test_any_text_is_a_part_of_a_path(text: str) -> None:
    part = quoted(text)
    assert unquoted(part) == text
    assert part.strip(".")
    assert "/" not in part


async def test_a_full_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))

    def full(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.objects, "write", full)
    with pytest.raises(errors.StoreFull, match=r"is full .* free space there or raise its quota"):
        await store.write("a", b"")


async def test_a_bucket_that_does_not_exist_is_named(s3: str) -> None:
    with bucket(s3, "some-bucket"):
        store = open_store("s3://no-such-bucket/ingle")
        with pytest.raises(errors.StoreFailed, match=r"s3://no-such-bucket/ingle does not exist .* create the bucket"):
            await store.check()


async def test_a_server_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://bucket/ingle")
    with pytest.raises(errors.StoreFailed, match=r"s3://bucket/ingle failed .* check the network and the store"):
        await store.read("a")


@pytest.mark.parametrize(
    ("url", "words"),
    [("relative/path", "an absolute path"), ("nothing://x/y", "unknown kind"), ("gs://bucket/x", r"ingle\[store\]")],
)
def test_a_wrong_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=words):
        open_store(url)


@pytest.mark.parametrize("url", ["folder"], indirect=True)
async def test_small_requests_do_not_wait_for_uploads(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(store.objects, "upload", lambda path, file: go_on.wait(60))
    file = tmp_path / "large"
    file.write_bytes(b"x")
    with file.open("rb") as opened:
        uploads = [asyncio.ensure_future(store.upload(f"a/{number}", opened.fileno())) for number in range(40)]
        try:
            async with asyncio.timeout(20):
                await store.write("leases/one", b"1")
                assert [each.path for each in await store.list("leases/")] == ["leases/one"]
        finally:
            go_on.set()
            await asyncio.gather(*uploads)
