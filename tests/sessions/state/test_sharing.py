"""Sessions that share the folder of another one, and folders that a sandbox shows as a home."""

from __future__ import annotations

import os

import pytest

from ingle import errors
from ingle.callers import Caller
from ingle.service import Service
from support.cells import value

PLACE = "import os; (os.getcwd(), os.getuid(), os.path.expanduser('~'))"


@pytest.mark.both_levels
async def test_a_session_can_share_the_folder_and_the_user_of_another(service: Service) -> None:
    first = await service.create_session("first")
    second = await service.create_session("second", shares="first")
    assert second.cwd == first.cwd
    assert await value(service, "first", PLACE) == await value(service, "second", PLACE)
    await service.execute("first", "x = 1; open('f', 'w').write('one')")
    assert await value(service, "second", "open('f').read()") == "'one'"
    assert (await service.execute("second", "x")).error is not None
    await service.end_session("first")
    await service.execute("second", "open('f', 'a').write('two')")
    assert await value(service, "second", "open('f').read()") == "'onetwo'"


@pytest.mark.both_levels
async def test_an_empty_shared_folder_outlives_the_session_that_made_it(service: Service) -> None:
    await service.create_session("first")
    second = await service.create_session("second", shares="first")
    await service.end_session("first")
    await service.execute("second", "open('f', 'w').write('later')")
    assert [each.name for each in (await service.list_files("second", second.cwd)).files] == ["f"]


@pytest.mark.both_levels
async def test_a_sandbox_shows_its_folder_as_a_home_and_others_tell_the_real_path(service: Service) -> None:
    info = await service.create_session("first", home="/home/user")
    second = await service.create_session("second", shares="first")
    if info.isolation == "sandbox" and not os.path.exists("/home/user"):
        assert info.cwd == second.cwd == "/home/user"
        assert "'/home/user'" in await value(service, "second", PLACE)
        assert (await service.shell("pwd; echo ~", session_id="first")).stdout == "/home/user\n/home/user\n"
    assert await value(service, "first", "__import__('os').getcwd()") == repr(info.cwd)
    await service.execute("first", "open('f', 'w').write('one')")
    assert [each.name for each in (await service.list_files("second", info.cwd)).files] == ["f"]


@pytest.mark.both_levels
async def test_sessions_of_one_folder_are_forked_together(service: Service) -> None:
    await service.create_session("first", home="/home/user")
    await service.create_session("second", shares="first")
    await service.execute("first", "x = 1; open('f', 'w').write('original')")
    await service.execute("second", "y = [2]; opened = open('f', 'r+')")
    await service.fork_session("first", "copy")
    (info,) = await service.fork_session("second", "copy-2", shares="copy")
    assert info.cwd == (await service.get_session("copy")).cwd
    assert await value(service, "copy-2", "y, opened.read()") == "([2], 'original')"
    await service.execute("copy-2", "open('f', 'w').write('copied')")
    read = "open('f').read()"
    assert await value(service, "copy", read) == "'copied'"
    assert [await value(service, name, read) for name in ("first", "second")] == ["'original'"] * 2
    # Also after its process has ended, and after the session has ended whose folder it uses.
    await service.execute("copy-2", "exit()")
    assert await value(service, "copy-2", read) == "'copied'"
    await service.end_session("copy")
    assert await value(service, "copy-2", read) == "'copied'"
    (again,) = await service.fork_session("copy-2", "third")
    assert await value(service, again.session_id, read) == "'copied'"


async def test_a_fork_uses_the_folder_of_no_stranger(service: Service) -> None:
    await service.create_session("first")
    await service.create_session("stranger")
    with pytest.raises(errors.InvalidRequest, match="does not descend"):
        await service.fork_session("first", shares="stranger")
    with pytest.raises(errors.SessionNotFound):
        await service.fork_session("first", shares="missing")
    assert {each.session_id for each in await service.list_sessions()} == {"first", "stranger"}


async def test_a_share_that_cannot_be_is_refused(service: Service) -> None:
    await service.create_session("first")
    with pytest.raises(errors.SessionNotFound):
        await service.create_session("second", shares="missing")
    with pytest.raises(errors.InvalidRequest, match="durable"):
        await service.create_session("second", shares="first", durable=True)
    with pytest.raises(errors.InvalidRequest, match="must be one of /home/user"):
        await service.create_session("second", home="/etc")
    other = service.acting_for(Caller("other", "other"))
    with pytest.raises(errors.SessionNotFound):
        await other.create_session("second", shares="first")


@pytest.mark.level("sandbox", "only a sandbox shows a folder as a home")
async def test_a_fork_sees_its_own_files_in_the_same_home(service: Service) -> None:
    await service.create_session("first", home="/home/user")
    await value(service, "first", "open('f', 'w').write('first')")
    await service.fork_session("first", "second")
    await value(service, "second", "open('f', 'w').write('second')")
    for name in ("first", "second"):
        assert await value(service, name, "open('f').read()") == repr(name)
        assert await value(service, name, "open('/home/user/f').read()") == repr(name)
