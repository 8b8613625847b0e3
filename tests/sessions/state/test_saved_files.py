"""Files of the own folder in saves: a loaded snapshot and a durable session have them again, byte for byte."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingle import errors
from ingle.service import Service
from ingle.settings import Settings
from support.folder_agent import State, state_of
from support.folder_cases import CHANGES, MANY, OPEN, SETUP
from support.internals import manager_of, session_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("files.state")]

SAVED = {kind: change for kind, (change, _) in CHANGES.items() if kind != "locked"}
"""Changes of which nothing is hidden from the session itself: a file that it cannot read is not saved."""

SAVED |= {kind: f"{begin}; {change}" for kind, (begin, change, _, _) in OPEN.items()}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, keep_files=12_000, keep_bytes=4 * 1024**2)


@pytest.fixture
def kept(apart: Path, mark: str) -> Path:
    """A data folder in which sessions stay."""
    return apart / "kept"


@asynccontextmanager
async def serving(home: Path, **given: object) -> AsyncIterator[Service]:
    async with Service.local(make_settings(preload=[], pool=1, exit_grace=20.0, **given), home, "serve") as service:
        yield service


def folder_of(service: Service, sid: str) -> Path:
    return Path(session_of(service, sid).folders.workspace)


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout.strip()


# --- snapshots ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SAVED)
async def test_a_loaded_session_has_the_files_of_the_save(service: Service, kind: str) -> None:
    await service.create_session("main")
    await say(service, "main", SETUP)
    await say(service, "main", SAVED[kind])
    before = state_of(folder_of(service, "main"))
    saved = await service.save_session("main", "snap")
    count = sum(what != "folder" for what, _, _ in before.values())
    assert saved.files == count
    await say(service, "main", "import shutil\nshutil.rmtree('sub', ignore_errors=True)\nopen('late', 'w').write('!')")
    loaded = await service.load_session("snap", "other")
    assert loaded.files == count
    assert state_of(folder_of(service, "other")) == before
    if "database" in kind:
        check = "print(sqlite3.connect('db').execute('pragma integrity_check').fetchall())"
        assert await say(service, "other", f"import sqlite3; {check}") == "[('ok',)]"


async def test_a_loaded_session_uses_files_of_its_own(service: Service) -> None:
    """Its working directory, open files and connections are below its own folder, also if a fork was saved."""
    await service.create_session("main")
    await say(service, "main", SETUP)
    await say(
        service,
        "main",
        "os.chdir('sub'); log = open('log', 'a'); full = open(os.path.abspath('full'), 'w')\n"
        "db = sqlite3.connect('db'); db.execute('create table t (x)'); db.commit()",
    )
    await service.fork_session("main", "fork")
    folders = {}
    for sid in ("main", "fork"):
        await service.save_session(sid, f"of-{sid}")
        await service.load_session(f"of-{sid}", f"loaded-{sid}")
        folders[sid] = state_of(Path(session_of(service, sid).folders.place))
    write = "_ = log.write('x'), full.write('y'); log.flush(); full.flush(); print(os.path.basename(os.getcwd()))"
    insert = "db.execute('insert into t values (1)'); db.commit()"
    for sid in ("main", "fork"):
        assert await say(service, f"loaded-{sid}", f"{write}; {insert}") == "sub"
        loaded = state_of(Path(session_of(service, f"loaded-{sid}").folders.place))
        assert (loaded["sub/log"][2], loaded["sub/full"][2]) == (b"x", b"y")
        assert await say(
            service, f"loaded-{sid}", "print(sqlite3.connect('db').execute('select x from t').fetchall())"
        ) == ("[(1,)]")
    for sid, before in folders.items():
        assert state_of(Path(session_of(service, sid).folders.place)) == before


async def test_a_large_file_and_many_small_ones_are_saved(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", MANY)
    await say(service, "main", "open('large', 'wb').write(os.urandom(3_900_000)); open('empty', 'w').close()")
    before = state_of(folder_of(service, "main"))
    await service.save_session("main", "snap")
    again = await service.save_session("main", "again")
    assert (again.files, again.new_bytes) == (2_002, 0)
    await service.load_session("again", "other")
    assert state_of(folder_of(service, "other")) == before


async def test_a_file_above_the_size_of_a_chunk_is_saved(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("main")
        await say(service, "main", "import os\nopen('large', 'wb').write(os.urandom(9_000_000))")
        before = state_of(folder_of(service, "main"))
        await service.save_session("main", "snap")
        await service.load_session("snap", "other")
        assert state_of(folder_of(service, "other")) == before


async def test_a_portable_file_holds_the_files(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", SETUP)
    before = state_of(folder_of(service, "main"))
    await service.save_session("main", "snap")
    exported = await service.open_snapshot("snap")
    data = b"".join([chunk async for chunk in exported.chunks(0, exported.size)])
    exported.close()

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    info = await service.write_snapshot("again", chunks())
    assert info.files == 4
    await service.delete_snapshot("snap")
    await service.load_session("again", "other")
    assert state_of(folder_of(service, "other")) == before


async def test_files_above_the_bounds_are_not_saved_and_the_answer_says_why(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", "x = 1; open('large', 'wb').write(bytes(5_000_000))")
    why = "the folder holds 5.0 MB, above the bound of 4.2 MB (keep_bytes)"
    saved = await service.save_session("main", "snap")
    assert saved.files is None
    assert f"the files are not saved: {why}" in saved.notices
    loaded = await service.load_session("snap", "other")
    assert (loaded.files, loaded.variables) == (None, saved.variables)
    assert f"the files are not loaded: {why}" in loaded.notices
    assert state_of(folder_of(service, "other")) == {}


async def test_the_files_of_all_snapshots_have_a_quota(kept: Path) -> None:
    async with serving(kept, keep_disk=1_000_000) as service:
        await service.create_session("main")
        await say(service, "main", "import os\nopen('a', 'wb').write(os.urandom(600_000))")
        assert (await service.save_session("main", "one")).files == 1
        assert (await service.save_session("main", "same")).files == 1
        await service.end_session("main")
        await service.create_session("main")
        await say(service, "main", "import os\nopen('a', 'wb').write(os.urandom(600_000))")
        full = await service.save_session("main", "two")
        assert full.files is None
        why = "they need 600 kB, and 400 kB of 1.0 MB are left (keep_disk)"
        assert full.notices == [f"the files are not saved: {why}"]
        for name in ("one", "same"):
            await service.delete_snapshot(name)
        assert (await service.save_session("main", "two")).files == 1


async def test_bytes_of_files_are_removed_with_the_last_snapshot(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("main")
        await say(service, "main", "import os\nopen('a', 'wb').write(os.urandom(1_000_000))")
        for name in ("one", "two"):
            await service.save_session("main", name)
        packs = kept / "snapshots"

        def stored() -> int:
            return sum(path.stat().st_size for path in packs.rglob("*.pack"))

        assert 1_000_000 < stored() < 1_500_000
        await service.delete_snapshot("one")
        assert stored() > 1_000_000
        await service.delete_snapshot("two")
        assert stored() < 100_000
        await service.end_session("main")
        assert await until(lambda: manager_of(service)._trees.of("").used == 0)


async def test_a_snapshot_whose_files_are_damaged_is_refused(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("main")
        await say(service, "main", "open('a', 'w').write('unmistakable')")
        await service.save_session("main", "snap")
        await service.end_session("main")
        assert await until(lambda: manager_of(service)._trees.of("").used == 0)
        for pack in (kept / "snapshots").rglob("*.pack"):
            pack.write_bytes(pack.read_bytes().replace(b"unmistakable", b"mistakable!!"))
        with pytest.raises(errors.SnapshotDamaged):
            await service.load_session("snap", "other")


# --- durable sessions --------------------------------------------------------------------------------------


async def test_durable_sessions_have_their_files_again_in_the_next_server(kept: Path) -> None:
    """Whatever happened to them since the last save, for example in a cell that the server's end has cut short."""
    before: dict[str, State] = {}
    folders: dict[str, Path] = {}
    async with serving(kept) as first:
        for number, (kind, change) in enumerate(SAVED.items()):
            sid = f"s{number}"
            await first.create_session(sid, durable=True)
            await say(first, sid, f"{SETUP}\n{change}")
            folders[sid] = folder_of(first, sid)
            before[sid] = state_of(folders[sid])
            assert kind
    for number, folder in enumerate(folders.values()):
        _disturb(folder, number)
    async with serving(kept) as second:
        for sid, state in before.items():
            await say(second, sid, "pass")
            assert state_of(folder_of(second, sid)) == state, list(SAVED)[int(sid[1:])]


async def test_ten_thousand_small_files_survive_a_restart(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("main", durable=True)
        await say(first, "main", MANY)
        folder = folder_of(first, "main")
        before = state_of(folder)
    shutil.rmtree(folder / "7")
    (folder / "8" / "8").write_text("torn")
    async with serving(kept) as second:
        await say(second, "main", "pass")
        assert state_of(folder_of(second, "main")) == before


def _disturb(folder: Path, number: int) -> None:
    """Change a folder in one of several ways."""
    if number % 3 == 0:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    elif number % 3 == 1:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.write_text("torn")
    else:
        (folder / "sub").rename(folder / "moved") if (folder / "sub").is_dir() else (folder / "more").mkdir()


async def test_a_durable_session_is_told_which_files_were_brought_back(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await say(first, "s", "open('a', 'w').write('one'); open('b', 'w').write('two')")
        folder = folder_of(first, "s")
    (folder / "a").write_text("torn")
    (folder / "b").unlink()
    (folder / "c").write_text("new")
    async with serving(kept) as second:
        result = await second.execute("s", "open('a').read(), open('b').read()")
        assert result.result == {"text/plain": "('one', 'two')"}
        assert "files that were not as in this save were brought back: b, a; removed: c" in result.notices


async def test_files_that_no_cell_changed_are_saved_at_the_end_of_the_server(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await say(first, "s", "open('a', 'w').write('one')")
        autosave = session_of(first, "s").autosave
        assert autosave is not None
        assert await until(lambda: autosave.current)
        (folder_of(first, "s") / "outside").write_text("of a shell")
    async with serving(kept) as second:
        result = await second.execute("s", "open('outside').read()")
        assert result.result == {"text/plain": "'of a shell'"}
        assert not [each for each in result.notices if "brought back" in each]


async def test_a_hibernated_session_has_its_files(kept: Path) -> None:
    async with serving(kept, idle_policy="free") as service:
        for name, durable in (("kept", True), ("passing", False)):
            await service.create_session(name, durable=durable)
            await say(service, name, SETUP)
            before = state_of(folder_of(service, name))
            await session_of(service, name).saves.hibernate()
            assert (await service.get_session(name)).state == "hibernated"
            assert await say(service, name, "print(open('a').read())") == "a" * 10
            assert state_of(folder_of(service, name)) == before


async def test_a_durable_session_tells_once_that_its_files_are_not_saved(kept: Path) -> None:
    async with serving(kept, keep_bytes=1000) as service:
        await service.create_session("s", durable=True)
        await say(service, "s", "x = 1; open('large', 'wb').write(bytes(5000))")
        autosave = session_of(service, "s").autosave
        assert autosave is not None
        assert await until(lambda: autosave.current)
        told = "the files of this session are not saved with it: the folder holds 5 kB, above the bound of 1 kB"
        assert any(each.startswith(told) for each in (await service.execute("s", "y = 1")).notices)
        assert await until(lambda: autosave.current)
        assert (await service.execute("s", "z = 1")).notices == []
