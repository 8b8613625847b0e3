"""Files that a cell creates, changes and deletes in the session's folder, as its result names them."""

import asyncio
from pathlib import Path

import pytest

from ingle.events import Result
from ingle.files import FileChanges
from ingle.render.model import text, view
from ingle.service import Service
from ingle.sessions.watch import folders
from support.waiting import wait_until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("files.changes")]


def changes(created: list[str] | None = None, changed: list[str] | None = None, deleted: list[str] | None = None):
    return FileChanges(created or [], changed or [], deleted or [])


async def test_each_cell_names_its_own_files(run) -> None:
    steps = [
        ("x = 1", changes()),
        ("import os; open('b', 'w').write('1'); open('a.txt', 'w').close()", changes(created=["a.txt", "b"])),
        ("open('b').read()", changes()),
        ("open('b', 'a').write('2')", changes(changed=["b"])),
        ("os.makedirs('p/q'); open('p/q/deep', 'w').close()", changes(created=["p/q/deep"])),
        ("open('p/q/deep', 'a').write('x'); open('p/q/next', 'w').close()", changes(["p/q/next"], ["p/q/deep"])),
        ("os.rename('p', 'r')", changes(["r/q/deep", "r/q/next"], [], ["p/q/deep", "p/q/next"])),
        ("open('r/q/deep', 'a').write('y')", changes(changed=["r/q/deep"])),
        ("open('tmp', 'w').close(); os.remove('tmp')", changes()),
        ("open('tmp', 'w').write('new'); os.replace('tmp', 'b')", changes(changed=["b"])),
        ("os.remove('b'); open('b', 'w').close()", changes(changed=["b"])),
        ("os.rename('a.txt', 'c.txt')", changes(["c.txt"], [], ["a.txt"])),
        ("import shutil; shutil.rmtree('r'); os.remove('b')", changes(deleted=["b", "r/q/deep", "r/q/next"])),
        ("os.symlink('/etc', 'etc'); os.chmod('c.txt', 0o600)", changes(["etc"], ["c.txt"])),
        ("import subprocess; _ = subprocess.run('echo 1 > from_shell', shell=True)", changes(["from_shell"])),
        ("open(b'\\xff', 'w').close()", changes(["\\udcff"])),
        ("open('kept', 'w').close(); 1 / 0", changes(["kept"])),
        ("f = open('open', 'w'); f.write('x'); f.flush()", changes(["open"])),
        ("f.write('y'); f.flush()", changes(changed=["open"])),
    ]
    for code, files in steps:
        result = await run(code)
        assert (code, result.files) == (code, files)


async def test_a_cell_that_ends_its_process_names_its_files_too(run) -> None:
    result = await run("open('last', 'w').close(); import os; os._exit(3)")
    assert (result.status, result.files) == ("exit", changes(["last"]))
    assert (await run("open('last', 'a').write('x')")).files == changes(changed=["last"])


async def test_changes_between_two_cells_belong_to_neither(service: Service) -> None:
    await service.create_session("main")

    async def content():
        yield b"from outside"

    await service.execute("main", "x = 1")
    await service.write_file("main", "up/loaded", content())
    assert (await service.execute("main", "open('own', 'w').close()")).files == changes(["own"])
    assert (await service.execute("main", "open('up/loaded', 'a').close()")).files == changes(changed=["up/loaded"])


async def test_a_running_cell_has_no_files_yet_and_its_past_result_keeps_them(service: Service) -> None:
    await service.create_session("main")
    running = await service.execute("main", "open('a', 'w').close(); import time; time.sleep(0.3)", wait=0)
    assert (running.status, running.files) == ("running", None)
    assert (await service.wait("main", running.cell)).files == changes(["a"])
    await service.execute("main", "open('b', 'w').close()")
    assert (await service.wait("main", running.cell)).files == changes(["a"])


async def test_many_writes_of_few_files_are_told_exactly(run) -> None:
    await run("import os; open('same', 'w').close(); open('gone', 'w').close(); open('log', 'w').close()")
    many = f"for i in range({folders.MAX_EVENTS}): open('log', 'a').write('x')\n"
    assert (await run(many + "open('new', 'w').close(); os.remove('gone')")).files == changes(
        ["new"], ["log"], ["gone"]
    )
    assert (await run("open('same', 'a').write('x')")).files == changes(changed=["same"])


async def test_more_than_two_thousand_files_are_not_named_and_the_next_cell_is_exact(run) -> None:
    result = await run("for i in range(2001): open(f'f{i}', 'w').close()")
    assert (result.files, result.notices) == (None, [])
    assert (await run("open('f7', 'a').write('x')")).files == changes(changed=["f7"])


async def test_links_that_replace_folders_lead_nowhere_else(run, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "secret").write_text("x")
    code = f"""
        import os, shutil
        for i in range(200):
            os.makedirs('a/below')
            shutil.rmtree('a'); os.symlink({str(tmp_path)!r}, 'a'); os.remove('a')
        os.symlink({str(tmp_path)!r}, 'a')
    """
    assert (await run("if 1:" + code)).files == changes(["a"])
    (tmp_path / "below" / "other").write_text("y")
    assert (await run("open('b', 'w').close()")).files == changes(["b"])


@pytest.mark.fresh_service
async def test_lost_events_are_made_up_for_by_a_comparison(run, monkeypatch: pytest.MonkeyPatch) -> None:
    await run("open('a', 'w').close(); open('b', 'w').close()")
    read = folders.Inotify.read

    def overflowing(kernel):
        list(read(kernel))
        yield folders.Event(-1, folders.inotify.OVERFLOW, "")

    monkeypatch.setattr(folders.Inotify, "read", overflowing)
    monkeypatch.setattr(folders, "PAUSE_SECONDS", 0.0)
    assert (await run("import os, time; os.remove('a'); open('c', 'w').close(); time.sleep(0.1)")).files == changes(
        ["c"], [], ["a"]
    )


async def test_a_start_folder_is_watched_without_what_programs_keep_there(service: Service, tmp_path: Path) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "data.csv").write_text("1")
    await service.create_session("main", cwd=str(tmp_path / "project"))
    code = "open('data.csv', 'a').write('2'); open('.git/x', 'w').close(); open('out', 'w').close()"
    assert (await service.execute("main", code)).files == changes(["out"], ["data.csv"])


@pytest.mark.level("none", "the folder is made by the test, and read by the host alone")
async def test_a_folder_that_is_too_large_is_told_once(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "QUICK_FILES", 5)
    monkeypatch.setattr(folders, "MAX_FILES", 10)
    for number in range(11):
        (tmp_path / f"{number}").touch()
    await service.create_session("main", cwd=str(tmp_path))
    results = [await service.execute("main", "x = 1") for _ in range(2)]
    notice = f"results of this session do not name the files that cells change: {tmp_path} has more than 10 files or "
    assert [result.files for result in results] == [None, None]
    assert [len(result.notices) for result in results] == [1, 0]
    assert results[0].notices[0].startswith(notice)


@pytest.mark.level("none", "the folder is made by the test, and read by the host alone")
async def test_a_large_folder_is_listed_in_a_thread(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "QUICK_FILES", 5)
    for number in range(50):
        (tmp_path / f"{number}").touch()
    await service.create_session("main", cwd=str(tmp_path))
    await service.execute("main", "x = 1")
    assert (await service.execute("main", "open('7', 'a').write('x')")).files == changes(changed=["7"])


async def test_forks_share_the_folder_and_its_watch(service: Service) -> None:
    await service.create_session("main")
    await service.execute("main", "open('a', 'w').close()")
    await service.fork_session("main", "copy")
    assert (await service.execute("copy", "open('a', 'a').write('x')")).files == changes(changed=["a"])
    assert (await service.execute("main", "x = 1")).files == changes()
    await service.end_session("main")
    assert (await service.execute("copy", "open('b', 'w').close()")).files == changes(["b"])


@pytest.mark.fresh_service
async def test_the_watches_of_a_session_end_with_it(service: Service) -> None:
    import os

    def watches() -> int:
        fds = Path("/proc/self/fdinfo")
        return sum(
            file.read_text().count("inotify wd:")
            for file in fds.iterdir()
            if os.path.lexists(file) and (fds.parent / "fd" / file.name).is_symlink()
        )

    before = watches()
    await service.create_session("main")
    await service.execute("main", "import os; os.makedirs('a/b/c')")
    assert watches() == before + 4
    await service.end_session("main")
    assert await asyncio.to_thread(wait_until, lambda: watches() == before, 5)


def test_a_model_reads_one_short_line_about_files() -> None:
    def line(**files: list[str]) -> str:
        return text(view(Result("main", 1, "ok", True, files=changes(**files))))

    assert line(created=["out.csv"], changed=["model.pkl"]) == "[files: created out.csv, changed model.pkl]"
    assert line(deleted=["old"]) == "[files: deleted old]"
    assert line(created=[".cache/x", "__pycache__/m.pyc"]) == "[cell 1 · ok]"
    many = [f"f{number:03}" for number in range(100)]
    assert line(created=many, deleted=["x"]) == "[files: created f000, f001, f002, f003, f004, f005, and 95 more]"
