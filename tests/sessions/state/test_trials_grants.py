"""Trials in a sandbox write to granted folders through a layer, which a commit applies and a discard drops."""

import asyncio
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from ingle.trees.agent import AgentLost, TreeAgent
from ingle.trials import Effect
from ingle.workers import views
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("trial.commit")]

State = dict[str, tuple[str, int, str]]


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    """Folder with one entry of each kind."""
    folder = tmp_path / "granted"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "gone").mkdir()
    (folder / "file").write_text("theirs\n")
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "old").write_text("to be removed\n")
    (folder / "gone" / "a").write_text("a\n")
    (folder / "sub" / "b").write_text("b\n")
    (folder / "sub" / "deep" / "c").write_text("c\n")
    (folder / "link").symlink_to("file")
    return folder


@pytest.fixture
def settings(granted: Path) -> Settings:
    return make_settings(preload=[], pool=0, isolation="sandbox", mount=[str(granted)], keep_bytes=10_000_000)


@pytest.fixture
async def session(service: Service, granted: Path) -> str:
    await service.create_session("s")
    await run(service, f"import os, shutil\ngranted = {str(granted)!r}")
    return "s"


async def run(service: Service, code: str) -> str:
    result = await service.execute("s", code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def attempt(service: Service, code: str) -> tuple[str, Effect, Result]:
    """Run a trial. Return its name, its effect and its result."""
    result = await service.trial("s", code)
    assert result.error is None, result.error
    assert result.trial is not None
    assert result.trial.effect is not None
    return result.trial.name, result.trial.effect, result


def state(folder: Path) -> State:
    """Return all entries below a folder: kind, permissions, and text or target."""
    found: State = {}
    for path in sorted(folder.rglob("*")):
        about, name = path.lstat(), str(path.relative_to(folder))
        if stat.S_ISLNK(about.st_mode):
            found[name] = "link", 0, os.readlink(path)
        elif stat.S_ISDIR(about.st_mode):
            found[name] = "folder", stat.S_IMODE(about.st_mode), ""
        else:
            found[name] = "file", stat.S_IMODE(about.st_mode), path.read_text()
    return found


def changed(effect: Effect, folder: Path) -> dict[str, str]:
    """Return how each file of a granted folder changes, by its path there."""
    assert effect.files is not None
    return {os.path.relpath(each.path, folder): each.change for each in effect.files if each.path.startswith("/")}


EVERYTHING = """
os.chdir(granted)
open('file', 'a').write('ours\\n')
open('new', 'w').write('new\\n')
os.makedirs('made/empty')
os.chmod('script', 0o755)
os.remove('old')
shutil.rmtree('gone')
os.rename('sub/b', 'sub/renamed')
shutil.rmtree('sub/deep'); os.mkdir('sub/deep'); open('sub/deep/d', 'w').write('d\\n')
os.remove('link'); os.symlink('/etc/passwd', 'link')
os.chdir('/tmp')
"""


async def test_a_commit_writes_what_the_trial_has_written(service: Service, session: str, granted: Path) -> None:
    before = state(granted)
    name, effect, _ = await attempt(service, EVERYTHING)
    assert state(granted) == before
    assert changed(effect, granted) == {
        "file": "changed",
        "new": "created",
        "made/empty": "created",
        "script": "changed",
        "old": "deleted",
        "gone/a": "deleted",
        "sub/b": "deleted",
        "sub/renamed": "created",
        "sub/deep/c": "deleted",
        "sub/deep/d": "created",
        "link": "changed",
    }
    assert effect.files is not None
    assert [each.text for each in effect.files if each.path == f"{granted}/file"] == [
        "--- a/file\n+++ b/file\n@@ -1 +1,2 @@\n theirs\n+ours\n"
    ]
    done = await service.commit("s", name)
    expected = {
        **{name: each for name, each in before.items() if name.split("/")[0] in ("file", "script", "sub")},
        "file": ("file", 0o644, "theirs\nours\n"),
        "script": ("file", 0o755, "#!/bin/sh\n"),
        "new": ("file", 0o644, "new\n"),
        "made": ("folder", 0o755, ""),
        "made/empty": ("folder", 0o755, ""),
        "sub/renamed": ("file", 0o644, "b\n"),
        "sub/deep/d": ("file", 0o644, "d\n"),
        "link": ("link", 0, "/etc/passwd"),
    }
    for gone in ("sub/b", "sub/deep/c"):
        del expected[gone]
    assert state(granted) == expected
    assert done.files is not None
    assert f"{granted}/new" in done.files.created
    assert f"{granted}/old" in done.files.deleted
    # From now on the session writes to the folder itself.
    await run(service, "open(granted + '/after', 'w').write('after')")
    assert (granted / "after").read_text() == "after"
    again, effect, _ = await attempt(service, "os.remove(granted + '/after')")
    assert changed(effect, granted) == {"after": "deleted"}
    await service.commit("s", again)
    assert not (granted / "after").exists()


@pytest.mark.req("trial.discard")
async def test_a_discard_leaves_the_folder_alone(service: Service, session: str, granted: Path) -> None:
    before = state(granted)
    name, _, _ = await attempt(service, EVERYTHING)
    await service.discard("s", name)
    assert state(granted) == before
    assert await run(service, "print(open(granted + '/file').read())") == "theirs\n\n"


@pytest.mark.req("trial.discard")
async def test_no_way_leads_around_the_layer(service: Service, session: str, granted: Path) -> None:
    await run(
        service,
        "import mmap\n"
        "held = open(granted + '/file', 'r+')\n"
        "folder = os.open(granted, os.O_RDONLY); path = os.open(granted, os.O_PATH)\n"
        "locked = open(granted + '/script', 'r+'); os.chmod(granted + '/script', 0o444); os.chdir(granted)\n"
        "mapped = open(granted + '/old', 'r+'); memory = mmap.mmap(mapped.fileno(), 0)\n"
        "parent = os.getpid()",
    )
    before = state(granted)
    attacks = """
done = []
def attack(name, function):
    try:
        function()
        done.append(name)
    except BaseException:
        pass
attack('descriptor', lambda: (held.seek(0), held.write('ours'), held.flush()))
attack('closed descriptor', lambda: (locked.write('ours'), locked.flush()))
attack('open folder', lambda: os.close(os.open('by-folder', os.O_CREAT | os.O_WRONLY, dir_fd=folder)))
attack('path', lambda: os.close(os.open('by-path', os.O_CREAT | os.O_WRONLY, dir_fd=path)))
attack('proc', lambda: open(f'/proc/self/fd/{folder}/by-proc', 'w').close())
attack('working directory', lambda: open('by-cwd', 'w').close())
attack('root of another process', lambda: open(f'/proc/{parent}/root{granted}/by-root', 'w').close())
attack('hard link', lambda: os.link(granted + '/file', '/tmp/taken'))
attack('rename', lambda: os.rename(granted, granted + '-moved'))
attack('beside', lambda: open(granted + '-beside', 'w').close())
attack('above', lambda: open(os.path.dirname(granted) + '/above', 'w').close())
attack('device', lambda: os.mknod(granted + '/device', 0o20666, os.makedev(1, 3)))
attack('removed', lambda: os.mknod(granted + '/file2', 0o20666, 0))
attack('set user id', lambda: os.chmod(granted + '/file', 0o4755))
attack('mark', lambda: os.setxattr(granted + '/sub', 'user.overlay.opaque', b'y'))
attack('memory', lambda: (memory.__setitem__(0, 88), memory.flush()))
attack('unmount', lambda: os.system(f'umount {granted}') and 1 / 0)
print(sorted(done))
"""
    name, effect, result = await attempt(service, attacks)
    # What succeeds lands in the layer, or beside it in the sandbox's own /tmp.
    reached = set(eval(result.stdout)) - {"beside", "above"}
    assert reached <= {
        "descriptor",
        "closed descriptor",
        "open folder",
        "path",
        "proc",
        "working directory",
        "memory",
        "mark",
    }
    assert {"descriptor", "open folder", "working directory"} <= reached
    assert any("script (Permission denied)" in notice for notice in effect.notices), effect.notices
    assert changed(effect, granted).keys() == {"file", "old", "by-folder", "by-path", "by-proc", "by-cwd"}
    await service.discard("s", name)
    assert state(granted) == before
    assert not {"above", "granted-beside", "granted-moved"} & {each.name for each in granted.parent.iterdir()}


async def test_open_files_are_those_of_the_folder_after_a_commit(service: Service, session: str, granted: Path) -> None:
    name, _, _ = await attempt(service, "held = open(granted + '/log', 'a'); held.write('one\\n'); held.flush()")
    await service.commit("s", name)
    await run(service, "held.write('two\\n'); held.flush()")
    assert (granted / "log").read_text() == "one\ntwo\n"


async def test_files_that_others_have_changed_are_not_overwritten(
    service: Service, session: str, granted: Path
) -> None:
    name, _, _ = await attempt(service, "open(granted + '/file', 'w').write('ours'); os.remove(granted + '/old')")
    (granted / "file").write_text("somebody else's")
    (granted / "script").write_text("of no interest")
    with pytest.raises(
        errors.FilesChanged, match=r"others have changed the same files since it began: .*granted/file;"
    ):
        await service.commit("s", name)
    assert (granted / "file").read_text() == "somebody else's"
    assert (granted / "old").exists()
    # It is still open, and can be discarded.
    assert [each.name for each in await service.trials("s")] == [name]
    await service.discard("s", name)


async def test_files_that_others_have_removed_are_not_written_again(
    service: Service, session: str, granted: Path
) -> None:
    name, _, _ = await attempt(service, "open(granted + '/file', 'a').write('ours')")
    (granted / "file").unlink()
    with pytest.raises(errors.FilesChanged, match="granted/file"):
        await service.commit("s", name)
    assert not (granted / "file").exists()
    await service.discard("s", name)


async def test_a_commit_never_writes_through_a_link(
    service: Service, session: str, granted: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    name, _, _ = await attempt(
        service,
        f"shutil.rmtree(granted + '/sub'); os.symlink({str(tmp_path / 'outside')!r}, granted + '/sub')\n"
        "os.mkdir(granted + '/way'); open(granted + '/way/in', 'w').write('x')",
    )
    # Another program puts a link where the trial has made a folder.
    (granted / "way").symlink_to(tmp_path / "outside")
    with pytest.raises(errors.FilesChanged, match="granted/way"):
        await service.commit("s", name)
    (granted / "way").unlink()
    await service.commit("s", name)
    assert (granted / "sub").is_symlink()
    assert (granted / "way" / "in").read_text() == "x"
    assert list((tmp_path / "outside").iterdir()) == []


async def test_what_cannot_be_kept_is_told_and_not_committed(service: Service, session: str, granted: Path) -> None:
    name, effect, _ = await attempt(
        service,
        "os.remove(granted + '/old'); os.mkfifo(granted + '/old')\n"
        "os.chmod(granted + '/file', 0o000); open(granted + '/new', 'w').write('new')",
    )
    assert changed(effect, granted) == {"new": "created"}
    assert any("old (a pipe" in notice and "file (Permission denied)" in notice for notice in effect.notices)
    await service.commit("s", name)
    assert (granted / "new").read_text() == "new"
    assert (granted / "old").read_text() == "to be removed\n"
    assert (granted / "file").read_text() == "theirs\n"


async def test_too_much_to_keep_refuses_the_commit(service: Service, session: str, granted: Path) -> None:
    name, effect, _ = await attempt(service, "with open(granted + '/file', 'r+') as file: file.truncate(900_000_000)")
    assert any("above the bound of 10.0 MB (keep_bytes)" in notice for notice in effect.notices), effect.notices
    with pytest.raises(errors.Conflict, match="keep_bytes"):
        await service.commit("s", name)
    assert (granted / "file").read_text() == "theirs\n"
    await service.discard("s", name)


async def test_a_folder_that_holds_a_mount_can_only_be_read(tmp_path: Path, apart: Path) -> None:
    (tmp_path / "granted" / "inner").mkdir(parents=True)
    mounts = [str(tmp_path / "granted"), f"{tmp_path / 'granted' / 'inner'}:ro"]
    settings = make_settings(preload=[], pool=0, isolation="sandbox", mount=mounts)
    async with Service.local(settings, apart / "other") as other:
        await other.create_session("s")
        result = await other.trial("s", f"open({str(tmp_path / 'granted' / 'new')!r}, 'w')")
        assert result.error is not None
        assert result.error.name == "OSError"
        assert result.trial is not None
        assert result.trial.effect is not None
        told = f"{tmp_path / 'granted'} can only be read in a trial: another folder is mounted in it"
        assert told in result.trial.effect.notices
        await other.discard("s", result.trial.name)


@pytest.mark.req("try.best")
async def test_the_variant_that_is_kept_writes_its_files(service: Service, session: str, granted: Path) -> None:
    codes = [f"open(granted + '/file', 'w').write('{number}'); score = {number}" for number in (1, 3, 2)]
    tried = await service.try_cells("s", codes, score="score")
    assert tried.chosen == 1
    assert (granted / "file").read_text() == "3"


async def test_changes_of_several_trials_add_up(service: Service, session: str, granted: Path) -> None:
    for number in range(3):
        name, _, _ = await attempt(service, f"open(granted + '/file', 'a').write('{number}\\n')")
        await service.commit("s", name)
    assert (granted / "file").read_text() == "theirs\n0\n1\n2\n"
    shutil.rmtree(granted / "sub")
    assert await asyncio.wait_for(run(service, "print(os.path.exists(granted + '/sub'))"), 60) == "False\n"


async def test_a_fork_has_trials_too(service: Service, session: str, granted: Path) -> None:
    """The fork sees its files through a view, and the layers of its trials lie outside of that."""
    await service.fork_session("s", "copy")
    result = await service.trial("copy", "open(granted + '/file', 'w').write('of the fork')")
    assert result.trial is not None
    assert result.trial.effect is not None
    assert changed(result.trial.effect, granted) == {"file": "changed"}
    assert (granted / "file").read_text() == "theirs\n"
    await service.commit("copy", result.trial.name)
    assert (granted / "file").read_text() == "of the fork"
    await service.end_session("copy")


async def test_a_session_that_starts_in_a_granted_folder_names_its_files(service: Service, granted: Path) -> None:
    await service.create_session("s", cwd=str(granted))
    name, effect, _ = await attempt(service, "open('file', 'a').write('ours'); open('new', 'w').close()")
    assert effect.files is not None
    assert [each.path for each in effect.files] == ["file", "new"]
    done = await service.commit("s", name)
    assert done.files is not None
    assert (done.files.changed, done.files.created) == (["file"], ["new"])
    await run(service, "open('after', 'w').close()")
    assert (granted / "after").exists()


async def test_another_file_agent_finishes_a_commit(
    service: Service, session: str, granted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is killed when half of the files are written, and the session goes on."""
    name, _, _ = await attempt(service, "for n in range(40): _ = open(f'{granted}/file{n}', 'w').write('ours')")
    apply, lost = TreeAgent.apply, []

    def lose_once(agent: TreeAgent, steps: list[list[object]], sources: list[int]) -> object:
        if lost or len(steps) < 40:
            return apply(agent, steps, sources)
        lost.append(apply(agent, steps[:20], sources[:20]))
        raise AgentLost("killed")

    monkeypatch.setattr(TreeAgent, "apply", lose_once)
    await service.commit(session, name)
    assert len(lost) == 1
    written = {each.name for each in granted.glob("file*")}
    assert written == {"file", *(f"file{n}" for n in range(40))}
    (notice,) = (await service.execute(session, "1")).notices
    assert notice.startswith(f"committed {name}")


async def test_a_process_that_stays_in_its_view_is_not_taken_over(
    service: Service, session: str, granted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on to write into the layer. The next process finishes the files."""
    name, _, _ = await attempt(service, "x = 2; _ = open(f'{granted}/file', 'w').write('ours')")
    undo, failed = views.undo, []

    async def fail_once(*args: Any) -> None:
        if not failed:
            failed.append(args)
            raise views.NoView("its helper was killed")
        await undo(*args)

    monkeypatch.setattr(views, "undo", fail_once)
    await service.commit(session, name)
    assert len(failed) == 1
    assert (granted / "file").read_text() == "ours"
    result = await service.execute(session, f"_ = open({str(granted / 'new')!r}, 'w').write('later'); 'x' in dir()")
    assert (result.status, result.result) == ("ok", {"text/plain": "False"})
    assert any("could not be given the files of the session" in each for each in result.notices), result.notices
    assert (granted / "new").read_text() == "later"
