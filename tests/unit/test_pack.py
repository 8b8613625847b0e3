"""Files of chunks: read back whole, or refused; whatever was done to them, and however many use them at once."""

import contextlib
import fcntl
import hashlib
import os
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingle import errors
from ingle.snapshots import chunks as blobs_room
from ingle.snapshots import manifest
from ingle.snapshots.chunks import ChunkStore
from ingle.snapshots.pack import END, HEAD, MAX_INDEX, TAIL, Pack, Writer

pytestmark = [pytest.mark.req("state.save"), pytest.mark.req("state.load")]

CHUNKS = [bytes([number]) * (1 + number * 100) for number in range(20)]


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "a.pack"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    writer = Writer(fd)
    for chunk in CHUNKS:
        writer.put(digest(chunk), memoryview(chunk))
    writer.finish(b'{"some": "manifest"}', "signed")
    os.close(fd)
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Pack]:
    pack = Pack.open(path)
    try:
        yield pack
    finally:
        pack.close()


def read_all(path: Path) -> tuple[bytes, str, list[bytes]]:
    with opened(path) as pack:
        return pack.manifest, pack.signature, [pack.read(digest(chunk), len(chunk)) for chunk in CHUNKS]


def test_what_was_put_in_comes_out(pack: Path) -> None:
    assert read_all(pack) == (b'{"some": "manifest"}', "signed", CHUNKS)


def test_a_chunk_that_is_not_what_it_is_said_to_be_is_not_kept(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "b.pack", os.O_RDWR | os.O_CREAT, 0o600)
    with pytest.raises(errors.SaveFailed):
        Writer(fd).put(digest(b"one"), memoryview(b"two"))
    os.close(fd)


def test_no_change_of_a_byte_and_no_cut_goes_unseen(pack: Path) -> None:
    whole = pack.read_bytes()
    chance = random.Random(5)
    for _ in range(300):
        data = bytearray(whole)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        else:
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        pack.write_bytes(data)
        with pytest.raises(errors.SnapshotDamaged):
            read_all(pack)


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{}",
        b'{"chunks": [["00", 8, 1]]}',
        b'{"chunks": [["%s", 8, 1]]}' % (b"0" * 63),
        b'{"chunks": [["%s", 8, 99999999999]]}' % (b"0" * 64),
        b'{"chunks": [["%s", -8, 1]]}' % (b"0" * 64),
        b'{"chunks": [["%s", 0, 8]]}' % (b"0" * 64),
        b'{"chunks": [["%s", 8, 100000]]}' % (b"0" * 64),
        b'{"chunks": ' + b"[" * 5000,
    ],
    ids=range(10),
)
def test_an_index_that_lies_is_refused(tmp_path: Path, index: bytes) -> None:
    path = tmp_path / "c.pack"
    path.write_bytes(HEAD + b"chunk" + index + END.pack(digest(index), len(index), TAIL))
    with pytest.raises(errors.SnapshotDamaged), opened(path):
        pass


@pytest.mark.parametrize("length", [MAX_INDEX + 1, 2**63, 10_000])
def test_an_index_that_is_longer_than_its_file_is_not_read(tmp_path: Path, length: int) -> None:
    path = tmp_path / "c.pack"
    path.write_bytes(HEAD + END.pack(bytes(32), length, TAIL))
    with pytest.raises(errors.SnapshotDamaged, match="longer than the file"), opened(path):
        pass


def test_many_save_and_clear_away_at_once_and_nothing_that_is_used_is_lost(tmp_path: Path) -> None:
    """Two servers, each with its own view of the folder, and threads in each."""
    servers = [ChunkStore(tmp_path / "chunks"), ChunkStore(tmp_path / "chunks")]
    used: set[bytes] = set()
    failed: list[BaseException] = []
    began = threading.Barrier(6)

    def save(store: ChunkStore, number: int) -> None:
        try:
            began.wait(10)
            for turn in range(15):
                data = [b"%d %d %d" % (number, turn, each) * 50 for each in range(5)] + [b"common" * 100]
                with store.shared():
                    with store.begin() as addition:
                        for each in data:
                            if not addition.has(digest(each)):
                                addition.put(digest(each), memoryview(each))
                        addition.finish()
                    used.update(map(digest, data))
        except BaseException as error:  # told in the test's own thread
            failed.append(error)

    def clear(store: ChunkStore) -> None:
        try:
            began.wait(10)
            for _ in range(30):
                store.collect(used.copy)
        except BaseException as error:  # as above
            failed.append(error)

    threads = [threading.Thread(target=save, args=(servers[number % 2], number)) for number in range(4)]
    threads += [threading.Thread(target=clear, args=(each,)) for each in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    late = ChunkStore(tmp_path / "chunks")
    late.refresh()
    assert [key for key in used if not late.has(key)] == []
    late.collect(used.copy)
    assert len(list((tmp_path / "chunks").glob("*.pack"))) < 30


def save_one(store: ChunkStore, data: bytes) -> None:
    with store.begin() as addition:
        addition.put(digest(data), memoryview(data))
        addition.finish()


def test_where_somebody_always_saves_what_is_not_used_goes_all_the_same(tmp_path: Path) -> None:
    """Each begins before the other is done, so that there is never a moment without a save."""
    store = ChunkStore(tmp_path / "chunks")
    entered, done, moved = [0, 0], [False, False], threading.Condition()
    most, failed = 0, []

    def save(me: int) -> None:
        nonlocal most
        other = 1 - me
        try:
            for number in range(100):
                with store.shared():
                    with moved:
                        entered[me] += 1
                        seen = entered[other]
                        moved.notify()
                    save_one(store, b"%d %d" % (me, number))
                    with moved:
                        # Where the other cannot begin, it is not waited for.
                        moved.wait_for(lambda seen=seen: entered[other] > seen or done[other], 0.2)
                store.collect(set)
                most = max(most, len(list((tmp_path / "chunks").glob("*.pack"))))
        except BaseException as error:  # told in the test's own thread
            failed.append(error)
        finally:
            with moved:
                done[me] = True
                moved.notify()

    threads = [threading.Thread(target=save, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert most < 60


def test_while_one_takes_long_nobody_waits_for_it_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_room, "MAX_BLOCK_SECONDS", 0.01)
    store = ChunkStore(tmp_path / "chunks")
    with store.shared():
        for number in range(1000):
            with store.shared():
                save_one(store, b"%d" % number)
            store.collect(set)
        assert len(list((tmp_path / "chunks").glob("*.pack"))) == 1000
        # As many descriptors as before: there may be tens of thousands of packs by then.
        assert not [each for each in open_files() if each.endswith(".pack")]
    store.collect(set)
    assert list((tmp_path / "chunks").glob("*.pack")) == []


def open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def test_what_is_used_is_asked_for_while_nobody_can_add_to_it(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "chunks")
    asked = []

    def used() -> set[bytes]:
        fd = os.open(tmp_path / "chunks" / "lock", os.O_RDWR)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(fd)
        asked.append(True)
        return set()

    store.collect(used)
    assert asked == [True]
    with store.shared():
        store.collect(used)  # not now
    assert asked == [True]


SMALL_PARTS = 300_000
"""Of a list whose parts take nine bytes in a file and a hundred in memory."""


def peak_of(read: Callable[[], object], failure: type[Exception]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(failure):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_index_does_not_become_more_than_it_is(tmp_path: Path) -> None:
    index = b'{"chunks":[' + b'["",8,0],' * SMALL_PARTS + b'["",8,0]]}'
    path = tmp_path / "pack"
    path.write_bytes(HEAD + index + END.pack(hashlib.sha256(index).digest(), len(index), TAIL))
    assert peak_of(lambda: Pack.open(path), errors.SnapshotDamaged) < 2 * len(index)


@pytest.mark.parametrize(
    "parts",
    [
        lambda: b'["",1],' * SMALL_PARTS + b'["",1]',
        lambda: b'"",' * 20_000_000 + b'""',
        lambda: b"[]," * 13_000_000 + b"[]",
        lambda: b"[" * 10_000_000,
        lambda: b'"' + b"\\\\" * 10_000_001 + b'",' + b"[]," * 2_000_000 + b"[]",
        lambda: b'"' + b"x" * 33_000_000 + "😀".encode() + b'"',
    ],
    ids=["chunks", "texts", "lists", "depth", "lists after backslashes", "one wide character"],
)
def test_a_summary_does_not_become_more_than_it_is(parts: Callable[[], bytes]) -> None:
    summary = b'{"sources":[{"file":"f","chunks":[' + parts() + b"]}]}"
    assert peak_of(lambda: manifest.read_summary(summary), errors.SaveFailed) < 4_000_000
