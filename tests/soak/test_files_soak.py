"""Files of a gigabyte, and ten thousand small ones: written and copied several times, which takes minutes.

Smaller and fewer files go through the same operations in tests/sessions/state.
"""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.folder_agent import State, state_of
from support.internals import session_of
from support.service import make_settings
from support.tracked_folder import serving

pytestmark = pytest.mark.soak

WRITE = """
import os
with open('large', 'wb') as file:
    for _ in range(256):
        _ = file.write(os.urandom(1 << 22))
"""
GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, durable_size=4 * GIGABYTE, limit_file_size=2 * GIGABYTE, exit_grace=300.0)


def digest_of(service: Service, sid: str) -> str:
    with open(Path(session_of(service, sid).folders.place) / "large", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def say(service: Service, sid: str, code: str) -> None:
    result = await service.execute(sid, code, wait=300)
    assert (result.status, result.error) == ("ok", None), result


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_goes_back(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", WRITE)
    before = digest_of(service, "main")
    assert (await service.checkpoint("main", "base")).notices == []
    await say(service, "main", "with open('large', 'r+b') as file: file.seek(5_000_000); _ = file.write(b'changed')")
    assert digest_of(service, "main") != before
    await service.rollback("main", "base")
    assert digest_of(service, "main") == before
    saved = await service.save_session("main", "large")
    assert saved.files == 1
    await service.load_session("large", "other")
    assert digest_of(service, "other") == before
    await service.delete_snapshot("large")


TEN_THOUSAND = """
import os, shutil
for d in range(100):
    os.mkdir(str(d))
    for f in range(100):
        with open(f'{d}/{f}', 'w') as file:
            _ = file.write(f'{d} {f}')
"""


CHANGE_SOME = "shutil.rmtree('7')\nwith open('8/8', 'w') as file: _ = file.write('!')"


@pytest.mark.timeout(900)
async def test_ten_thousand_small_files_go_back_and_are_saved(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", TEN_THOUSAND)
    before = state_of(Path(session_of(service, "main").folders.place))
    assert (await service.checkpoint("main", "base")).notices == []
    await say(service, "main", CHANGE_SOME)
    back = await service.rollback("main", "base")
    assert back.files is not None
    assert (len(back.files.created), back.files.changed, back.files.deleted) == (100, ["8/8"], [])
    assert state_of(Path(session_of(service, "main").folders.place)) == before
    assert (await service.save_session("main", "many")).files == 10_000
    await service.load_session("many", "other")
    assert state_of(Path(session_of(service, "other").folders.place)) == before
    await service.delete_snapshot("many")


@pytest.mark.timeout(900)
async def test_ten_thousand_small_files_survive_a_restart(apart: Path, mark: str, settings: Settings) -> None:
    async with Service.local(settings, apart / "kept", "serve") as first:
        await first.create_session("main", durable=True)
        await say(first, "main", TEN_THOUSAND)
        folder = Path(session_of(first, "main").folders.place)
        before = state_of(folder)
    shutil.rmtree(folder / "7")
    (folder / "8" / "8").write_text("torn")
    async with Service.local(settings, apart / "kept", "serve") as second:
        await say(second, "main", "pass")
        assert state_of(Path(session_of(second, "main").folders.place)) == before


@pytest.mark.timeout(900)
async def test_ten_thousand_small_files_are_copied(service: Service) -> None:
    def state(sid: str) -> State:
        return state_of(Path(session_of(service, sid).folders.place))

    await service.create_session("main")
    await say(service, "main", TEN_THOUSAND)
    before = state("main")
    await service.fork_session("main", "fork")
    await say(service, "fork", CHANGE_SOME)
    after = state("fork")
    assert state("main") == before != after
    await service.discard("main", await trial(service, CHANGE_SOME))
    assert state("main") == before
    done = await service.commit("main", await trial(service, CHANGE_SOME))
    assert done.files is not None
    assert (len(done.files.deleted), done.files.changed, done.files.created) == (100, ["8/8"], [])
    assert state("main") == after


@pytest.mark.timeout(900)
async def test_ten_thousand_small_files_in_a_tracked_folder(apart: Path, mark: str, tmp_path: Path) -> None:
    folder = f"{tmp_path}:tracked"
    async with serving(apart / "kept", folder, kind="serve", pool=0, isolation="sandbox", keep_files=12_000) as service:
        await service.create_session("main", durable=True)
        await say(service, "main", TEN_THOUSAND)
        before = state_of(tmp_path)
        assert (await service.checkpoint("main", "base")).notices == []
        await say(service, "main", CHANGE_SOME)
        after = state_of(tmp_path)
        back = await service.rollback("main", "base")
        assert back.files is not None
        assert (len(back.files.created), back.files.changed, back.files.deleted) == (100, ["8/8"], [])
        assert state_of(tmp_path) == before
        await service.discard("main", await trial(service, CHANGE_SOME))
        assert state_of(tmp_path) == before
        done = await service.commit("main", await trial(service, CHANGE_SOME))
        assert done.files is not None
        assert (len(done.files.deleted), done.files.changed, done.files.created) == (100, ["8/8"], [])
        assert state_of(tmp_path) == after


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_survives_a_restart(apart: Path, mark: str, settings: Settings) -> None:
    async with Service.local(settings, apart / "kept", "serve") as first:
        await first.create_session("main", durable=True)
        await say(first, "main", WRITE)
        before = digest_of(first, "main")
        path = Path(session_of(first, "main").folders.place) / "large"
    os.truncate(path, 1000)
    async with Service.local(settings, apart / "kept", "serve") as second:
        await say(second, "main", "pass")
        assert digest_of(second, "main") == before


CHANGE = "with open('large', 'r+b') as file: file.seek(5_000_000); _ = file.write(b'changed')"


async def held(service: Service) -> str:
    """Connections can be held in a sandbox only."""
    return "held" if (await service.get_session("main")).isolation == "sandbox" else "allowed"


async def trial(service: Service, code: str) -> str:
    result = await service.trial("main", code, network=await held(service), wait=300)
    assert (result.status, result.error) == ("ok", None), result
    assert result.trial is not None
    return result.trial.name


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_is_copied(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", WRITE)
    before = digest_of(service, "main")
    await service.fork_session("main", "fork")
    assert digest_of(service, "fork") == before
    await say(service, "fork", CHANGE)
    after = digest_of(service, "fork")
    assert digest_of(service, "main") == before != after
    name = await trial(service, CHANGE)
    assert digest_of(service, "main") == before
    await service.discard("main", name)
    assert digest_of(service, "main") == before
    await service.commit("main", await trial(service, CHANGE))
    assert digest_of(service, "main") == after


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_in_a_tracked_folder(apart: Path, mark: str, tmp_path: Path) -> None:
    def digest() -> str:
        with open(tmp_path / "large", "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    given = {"folder": [f"{tmp_path}:tracked"], "mount": [], "isolation": "sandbox", "limit_file_size": 2 * GIGABYTE}
    async with Service.local(make_settings(preload=[], pool=0, **given), apart / "kept", "serve") as service:
        await service.create_session("main")
        await say(service, "main", WRITE)
        before = digest()
        assert (await service.checkpoint("main", "base")).notices == []
        await say(service, "main", CHANGE)
        after = digest()
        await service.rollback("main", "base")
        assert digest() == before != after
        name = await trial(service, CHANGE)
        assert digest() == before
        await service.discard("main", name)
        assert digest() == before
        await service.commit("main", await trial(service, CHANGE))
        assert digest() == after
