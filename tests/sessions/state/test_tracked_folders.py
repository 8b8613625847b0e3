"""Tracked folders: files of a granted folder that checkpoints keep and rollbacks bring back, byte for byte."""

import subprocess
from pathlib import Path

import pytest

from ingle import errors
from ingle.files import FileChanges
from ingle.grants import NewGrant
from ingle.service import Service
from support.folder_agent import state_of
from support.folder_cases import CHANGES, OPEN, SETUP
from support.mcp_host import Host, text_of
from support.tracked_folder import say, serving

pytestmark = [pytest.mark.both_levels, pytest.mark.req("files.state", "files.changes")]


async def test_a_rollback_brings_files_of_a_tracked_folder_back(tracked: Service, project: Path) -> None:
    await say(tracked, SETUP)
    before = state_of(project)
    assert (await tracked.checkpoint("main", "base")).notices == []
    for kind, (change, check) in CHANGES.items():
        await say(tracked, change)
        assert state_of(project) != before, kind
        back = await tracked.rollback("main", "base")
        assert state_of(project) == before, kind
        assert back.files is not None
        assert await say(tracked, f"print({check})") == "True"


@pytest.mark.parametrize("kind", ["open for writing", "mapped", "a database with an open connection"])
async def test_open_files_continue_where_they_were(tracked: Service, project: Path, kind: str) -> None:
    begin, change, check, expected = OPEN[kind]
    await say(tracked, SETUP)
    await say(tracked, begin)
    before = state_of(project)
    assert (await tracked.checkpoint("main", "base")).notices == []
    for _ in range(2):
        await say(tracked, change)
        await tracked.rollback("main", "base")
        assert state_of(project) == before
        assert await say(tracked, check) == expected


async def test_the_answers_name_files_relative_to_the_start_folder(tracked: Service, project: Path) -> None:
    await say(tracked, SETUP)
    await tracked.checkpoint("main", "base")
    changed = await tracked.execute("main", "Path('a').write_text('A'); os.remove('b'); Path('sub/new').touch()")
    assert changed.files == FileChanges(["sub/new"], ["a"], ["b"])
    differs = await tracked.diff("main")
    assert [(each.path, each.change) for each in differs.files or []] == [
        ("a", "changed"),
        ("b", "deleted"),
        ("sub/new", "created"),
    ]
    back = await tracked.rollback("main", "base")
    assert back.files == FileChanges(["b"], ["a"], ["sub/new"])


async def test_files_elsewhere_are_named_in_full(home: Path, mark: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with serving(home, str(first), f"{second}:tracked") as service:
        await service.create_session("main")
        await service.checkpoint("main", "base")
        code = f"open('a', 'w').write('x'); open('{second}/b', 'w').write('x')"
        assert (await service.execute("main", code)).files == FileChanges(created=sorted(["a", f"{second}/b"]))
        differs = await service.diff("main")
        assert [each.path for each in differs.files or []] == [f"{second}/b"]
        back = await service.rollback("main", "base")
        assert back.files == FileChanges(deleted=[f"{second}/b"])
        # The first folder is shared, so its files stay.
        assert (first / "a").exists()
        assert f"files in {first} are not rolled back" in back.notice


async def test_ignored_files_stay_as_they_are(tracked: Service, project: Path) -> None:
    await say(tracked, "import os\nfrom pathlib import Path\nPath('.gitignore').write_text('*.log\\n/build/\\n')")
    await say(tracked, "os.makedirs('build'); os.makedirs('node_modules/x'); os.mkdir('sub'); os.mkdir('.git')")
    await say(tracked, "Path('sub/.gitignore').write_text('!keep.log\\n'); Path('code.py').write_text('1')")
    files = ["old.log", "build/out", "node_modules/x/y", ".git/index"]
    await say(tracked, f"for each in {files}: _ = Path(each).write_text('old')")
    await say(tracked, "_ = Path('sub/keep.log').write_text('old')")
    assert (await tracked.checkpoint("main", "base")).notices == []
    await say(tracked, f"for each in {files}: _ = Path(each).write_text('new')")
    await say(tracked, "_ = Path('new.log').write_text('new'); _ = Path('sub/keep.log').write_text('new')")
    await say(
        tracked, "os.makedirs('made'); _ = Path('made/x.log').write_text('new'); _ = Path('code.py').write_text('2')"
    )
    # The rules of that moment hold: those of now would have files removed that were never kept.
    await say(tracked, "os.remove('.gitignore')")
    back = await tracked.rollback("main", "base")
    assert back.files == FileChanges([".gitignore"], ["code.py", "sub/keep.log"], [])
    assert [(project / each).read_text() for each in files] == ["new"] * 4
    assert (project / "made/x.log").read_text() == "new"
    assert (project / "code.py").read_text() == "1"


async def test_the_last_cell_is_undone_with_its_files(home: Path, mark: str, project: Path) -> None:
    async with serving(home, f"{project}:tracked") as service:
        await service.create_session("main", checkpoints="auto")
        (project / "data.csv").write_text("a,b\n")
        await say(service, "import os\nos.remove('data.csv')")
        assert (await service.rollback("main")).files == FileChanges(["data.csv"])
        assert (project / "data.csv").read_text() == "a,b\n"


async def test_files_that_another_session_changed_stay(tracked: Service, project: Path) -> None:
    await say(tracked, "open('a', 'w').write('one')")
    await tracked.checkpoint("main", "base")
    await tracked.create_session("other")
    await say(tracked, "x = 1", "other")
    await say(tracked, "open('a', 'w').write('two')")
    assert (await tracked.rollback("main", "base")).files == FileChanges(changed=["a"])
    await say(tracked, "open('b', 'w').write('work')", "other")
    await say(tracked, "open('a', 'w').write('two')")
    back = await tracked.rollback("main", "base")
    assert back.files == FileChanges()
    told = f"the files in {project} stay as they are: another session has changed files there: other"
    assert told in back.session.notices
    assert ((project / "a").read_text(), (project / "b").read_text()) == ("two", "work")


async def test_a_folder_above_the_bounds_is_not_kept(home: Path, mark: str, project: Path) -> None:
    async with serving(home, f"{project}:tracked", keep_bytes=1000) as service:
        await service.create_session("main")
        await say(service, "open('large', 'wb').write(bytes(5000))")
        made = await service.checkpoint("main", "base")
        why = "the folder holds 5 kB, above the bound of 1 kB (keep_bytes)"
        assert made.notices == [f"files in {project} are not kept: {why}"]
        await say(service, "open('large', 'wb').write(b'x')")
        back = await service.rollback("main", "base")
        assert f"the files in {project} stay as they are: {why}" in back.session.notices
        assert (project / "large").read_bytes() == b"x"


async def test_saves_leave_tracked_folders_out(tracked: Service, project: Path) -> None:
    await say(tracked, "x = 1; open('a', 'w').write('one')")
    assert (await tracked.save_session("main", "snap")).files == 0
    await say(tracked, "open('a', 'w').write('two')")
    await tracked.load_session("snap", "other")
    assert (project / "a").read_text() == "two"


async def test_a_grant_of_a_live_server_is_tracked_if_asked(home: Path, mark: str, project: Path) -> None:
    async with serving(home) as service:
        change = await service.add_grant(NewGrant(folder=str(project), tracked=True))
        assert (change.grant.tracked, change.grant.read_only) == (True, False)
        await service.create_session("main", cwd=str(project))
        await service.checkpoint("main", "base")
        await say(service, "open('a', 'w').write('one')")
        assert (await service.rollback("main", "base")).files == FileChanges(deleted=["a"])
        with pytest.raises(errors.InvalidRequest):
            await service.add_grant(NewGrant(folder=str(project), tracked=True, read_only=True))


RULES = [
    "*.log",
    "/top",
    "folder/",
    "a/b",
    "**/deep",
    "some/**",
    "x/**/y",
    "!x/keep",
    "[ab]?.txt",
    "[!a-c].md",
    "\\#name",
    "name\\ ",
    "# a comment",
    "",
]
PATHS = [
    *("a.log", "sub/a.log", "top", "sub/top", "folder/x", "sub/folder/x", "folder2", "a/b", "sub/a/b", "deep/x"),
    *("p/q/deep", "some/x", "some/y/z", "x/y", "x/1/2/y", "x/keep", "ab.txt", "ac.txt", "a.txt", "d.md", "a.md"),
    *("#name", "name ", "name", "# a comment"),
]


def test_rules_mean_what_git_means(tmp_path: Path) -> None:
    from ingle_worker.trees.ignore import Rules, ignored

    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if not (tmp_path / path).exists():
            (tmp_path / path).write_text("")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("\n".join(RULES))
    given = "\0".join(PATHS).encode()
    command = ["git", "-C", str(tmp_path), "check-ignore", "-z", "--stdin", "--no-index"]
    theirs = subprocess.run(command, input=given, capture_output=True, check=True).stdout.decode().split("\0")
    rules = [Rules("\n".join(RULES), "")]

    def is_ignored(path: str) -> bool:
        parts = path.split("/")
        ways = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return any(ignored(rules, way, way.rpartition("/")[2], (tmp_path / way).is_dir()) for way in ways)

    assert [path for path in PATHS if is_ignored(path)] == [path for path in PATHS if path in theirs]


def test_ingle_mcp_tracks_the_folder_of_the_project(mark: str, home: Path, project: Path) -> None:
    """An undo covers the user's files. The model sees first what it would undo."""
    (project / "data.csv").write_text("a,b\n1,2\n")
    with Host(home, cwd=project) as host:
        host.initialize()
        host.call("python_session", code="x = [1]")
        host.call("rollback_repl_session", action="checkpoint", checkpoint="base")
        host.call("python_session", code="x.append(2); import os; os.remove('data.csv'); open('new', 'w').write('n')")
        shown = text_of(host.call("diff", to="base"))
        assert "changed x: [1] -> [1, 2] (list)" in shown
        assert "--- a/data.csv\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a,b\n-1,2" in shown
        assert "+++ b/new" in shown
        back = text_of(host.call("rollback_repl_session", checkpoint="base"))
        assert "[files: created data.csv, deleted new]" in back
        assert text_of(host.call("diff")) == "nothing differs from the checkpoint 'base'"
    assert (project / "data.csv").read_text() == "a,b\n1,2\n"
    assert not (project / "new").exists()


async def test_a_durable_session_leaves_a_tracked_folder_as_it_is(apart: Path, mark: str, project: Path) -> None:
    async with serving(apart / "kept", f"{project}:tracked") as first:
        await first.create_session("main", durable=True)
        await say(first, "x = 1; open('a', 'w').write('one')")
    (project / "a").write_text("edited")
    async with serving(apart / "kept", f"{project}:tracked") as second:
        assert await say(second, "print(x, open('a').read())") == "1 edited"
