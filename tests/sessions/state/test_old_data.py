"""A data folder written by an earlier version still works: sessions, snapshots, the user's library and tokens."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from ingle.http.auth import tokens_file
from ingle.service import Service
from ingle.settings import Settings

ARCHIVE = Path(__file__).with_name("old_data") / "version_0_1.tar.gz"
"""Written by version 0.1 before portable files were masked: a durable session, a snapshot, a portable file, a library
with one function, and a token of the tenant alice."""

CHECK = """
assert shared is numbers and numbers == list(range(1000))
assert round(area(2), 3) == 12.566 and point == Point(1, 2) and add(1) == 2
assert when.isoformat() == "2026-11-15" and counted["l"] == 2 and text == "äöü" * 1000
"whole"
"""


@pytest.fixture
def old(home: Path, tmp_path: Path) -> Path:
    """The folder with the portable file; `home` is the data folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.move(tmp_path / "home", home)
    home.chmod(0o700)
    return tmp_path


@pytest.mark.level("none", "the folder was written at this level")
@pytest.mark.req("state.load", "state.restart")
async def test_a_data_folder_of_an_earlier_version_is_used_as_it_is(
    settings: Settings, home: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # durable sessions belong to the folder their service was started in
    async with Service.local(settings, home) as service:
        assert [(each.session_id, each.state) for each in await service.list_sessions()] == [("kept", "hibernated")]
        assert (await service.execute("kept", CHECK)).result == {"text/plain": "'whole'"}
        assert (await service.execute("kept", "open('notes.txt').read()")).result == {"text/plain": "'kept'"}
        for number, source in enumerate(("snap", "./portable.pkl", str(old / "portable.pkl"))):
            await service.load_session(source, f"loaded-{number}", start=str(old))
            assert (await service.execute(f"loaded-{number}", CHECK)).result == {"text/plain": "'whole'"}
        await service.create_session("fresh")
        assert (await service.execute("fresh", "double(21)")).result == {"text/plain": "42"}
        for each in await service.list_sessions():
            await service.end_session(each.session_id)
    assert [each.tenant for each in tokens_file.read(home)] == ["alice"]
