"""Background work of a server: one failure ends none of it, and is logged."""

import asyncio
import os
from pathlib import Path

import pytest

from ingle import errors
from ingle.http.auth import principals, tokens_file
from ingle.http.auth.principals import Principals
from ingle.isolation.limits import disk_usage
from ingle.service import Service
from ingle.sessions.persistence.hibernation import Hibernation
from ingle.support import background
from support.service import make_settings
from support.waiting import until


@pytest.mark.req("idle.expire")
async def test_a_failure_in_looking_for_idle_sessions_is_told_and_the_next_look_comes(
    home: Path, mark: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.01)
    look, failed = Hibernation.check, False

    def fail_once(self: Hibernation) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("by chance")
        look(self)

    monkeypatch.setattr(Hibernation, "check", fail_once)
    async with Service.local(make_settings(preload=[], pool=0, idle_policy="end"), home) as service:
        await service.create_session("s", idle_timeout=0.01)
        async with asyncio.timeout(30):
            while await service.list_sessions():
                await asyncio.sleep(0.01)
    assert "looking for idle sessions: failed, and is started again" in caplog.text
    assert "by chance" in caplog.text


def test_a_folder_that_goes_while_it_is_counted_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp-1").mkdir()

    def vanish(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "scandir", vanish)
    assert disk_usage.of_folder(tmp_path) == disk_usage.Usage()


@pytest.mark.req("safe.token")
async def test_a_file_of_tokens_that_cannot_be_read_for_a_moment_is_read_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(principals, "REFRESH_SECONDS", 0.01)
    read, tries = tokens_file.read, 0
    taken: list[object] = []

    def read_at_last(home: Path) -> list[tokens_file.Entry]:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise errors.InvalidRequest("it cannot be read: Too many open files")
        return read(home)

    monkeypatch.setattr(tokens_file, "read", read_at_last)
    known = Principals(Service(make_settings(), None), "token", tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(known, "take", taken.append)
    following = asyncio.create_task(known.follow())
    assert await until(lambda: taken == [[]])
    following.cancel()
    await asyncio.wait({following})
    assert caplog.text.count("the file of tokens could not be read") == 1
