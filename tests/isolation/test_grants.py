"""What a sandboxed session can do by a folder that it was granted: nothing beyond the files in it."""

import os
import shutil
import stat
import tempfile
import venv
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.callers import Caller
from ingle.errors import IngleError, NotGranted
from ingle.grants import NewGrant
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

pytestmark = pytest.mark.req("safe.isolation")


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="sandbox", network="none")


@pytest.fixture(params=["/tmp", "/var/lib"])
def granted(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of the server's user, in a place that is a session's own, and in one that is not."""
    if not os.access(request.param, os.W_OK):
        pytest.skip("not this user's")
    with tempfile.TemporaryDirectory(dir=request.param, prefix="ingle-granted-") as folder:
        yield Path(folder)


async def tried(service: Service, session: str, code: str) -> str:
    """What became of it: the name of the error, or nothing."""
    result = await service.execute(session, f"import os\n{code}")
    return result.error.value if result.error is not None else ""


async def test_the_way_to_what_it_may_not_write_cannot_be_moved_aside(
    mark: str, home: Path, settings: Settings, granted: Path
) -> None:
    """Else something of its own would stand there: an interpreter, for one, that the server starts the next time."""
    environment = granted / "services" / "api" / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    kept = granted / "services" / "data" / "kept"
    kept.mkdir(parents=True)
    (kept / "file").write_text("as it was")
    python = environment / "bin" / "python"
    wanted = replace(settings, mount=[str(granted), f"{kept}:ro"], python=str(python))
    async with Service.local(wanted, home) as service:
        session = (await service.create_session(cwd=str(granted))).session_id
        for place in ("services", "services/api", "services/data", "services/api/env", "services/data/kept"):
            for aside in ("aside", f"{place}-aside"):
                assert await tried(service, session, f"os.rename({place!r}, {aside!r})") != "", place
            assert await tried(service, session, f"os.mkdir('other'); os.rename('other', {place!r})") != "", place
            await tried(service, session, "os.rmdir('other')")
        assert await tried(service, session, "open('services/api/env/pyvenv.cfg', 'a')") != ""
        assert await tried(service, session, "open('services/data/kept/file', 'a')") != ""
        # All else is as in any folder.
        code = "open('services/api/made', 'w').close(); os.rename('services/api/made', 'services/api/moved')\n"
        code += "os.makedirs('services/other/deep'); os.rename('services/other', 'services/another')"
        assert await tried(service, session, code) == ""
    assert python.is_symlink()
    assert (kept / "file").read_text() == "as it was"
    assert (granted / "services" / "api" / "moved").exists()
    assert (granted / "services" / "another" / "deep").exists()


PLANTED = """
status = open("/proc/self/status").read()
held = "NoNewPrivs:\\t1" in status
if not held:
    open({proof!r}, "w").close()
"""
PLANT = """
import os
os.makedirs("later")
for name in ("src/sitecustomize", "src/usercustomize", "src/fuel", "later/sitecustomize", "later/leftover"):
    with open(f"{name}.py", "w") as file:
        file.write(PLANTED)
"""
SEEN = """
import sys
names = ("sitecustomize", "usercustomize", "fuel", "leftover")
print([name for name in names if name in sys.modules], [path.rpartition("/")[2] for path in sys.path][-2:])
import fuel, leftover
open(os.path.join(os.path.dirname(fuel.__file__), "made"), "w").close()
print(fuel.held, leftover.held)
"""


@pytest.mark.parametrize("preload", [[], ["fuel"]])
async def test_nothing_that_sessions_can_write_is_loaded_by_who_is_not_held(
    mark: str, home: Path, settings: Settings, granted: Path, preload: list[str]
) -> None:
    """An environment often names folders of a project for its modules. Python looks there for what it begins with, and
    the zygote for what it loads beforehand: once outside of the room, and once in it with all its rights."""
    environment = granted / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    (granted / "src").mkdir()
    (library,) = environment.glob("lib/python3*/site-packages")
    (library / "project.pth").write_text(f"{granted}/src\n{granted}/later\n")
    (library / "remains.pth").write_text("import leftover\n")
    python = str(environment / "bin" / "python")
    proof = granted / "proof"
    wanted = replace(settings, mount=[str(granted)], pythons=[python], preload=preload)
    async with Service.local(wanted, home) as service:
        first = (await service.create_session(cwd=str(granted))).session_id
        planted = f"PLANTED = {PLANTED.format(proof=str(proof))!r}\n{PLANT}"
        assert await tried(service, first, planted) == ""
        second = (await service.create_session(python=python)).session_id
        result = await service.execute(second, f"import os\n{SEEN}")
        assert result.stdout.splitlines() == ["[] ['src', 'later']", "True True"], (result.stdout, result.error)
    assert not proof.exists()
    assert (granted / "src" / "made").exists()


async def test_a_variable_that_is_kept_leads_nobody_to_what_sessions_can_write_who_is_not_held(
    mark: str, home: Path, settings: Settings, granted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH comes before all else: what lies there would be loaded in the place of Python's own modules."""
    (granted / "src").mkdir()
    apart = granted.with_name(f"{granted.name}-apart")
    apart.mkdir(mode=0o755)
    (apart / "beside.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{granted}/src:{apart}")
    proof = granted / "proof"
    planted = PLANTED.format(proof=str(proof))
    plant = f"for name in ('platform', 'selectors', 'fuel'):\n    open(name + '.py', 'w').write({planted!r})"
    wanted = replace(settings, mount=[str(granted)], keep_env=["PYTHONPATH"], preload=["fuel"])
    async with Service.local(wanted, home) as service:
        session = (await service.create_session(cwd=str(granted))).session_id
        assert await tried(service, session, f"os.chdir('src')\n{plant}") == ""
    async with Service.local(wanted, home) as service:
        session = (await service.create_session()).session_id
        code = "import sys\nprint('fuel' in sys.modules, sys.path.count({!r}))\nimport beside, fuel\nfuel.held"
        result = await service.execute(session, code.format(f"{granted}/src"))
        assert (result.stdout, result.result) == ("False 1\n", {"text/plain": "True"}), result.error
    assert not proof.exists()
    (apart / "beside.py").unlink()
    shutil.rmtree(apart)


async def test_a_folder_that_may_be_written_in_one_that_may_not_is_not_the_zygotes_either(
    mark: str, home: Path, settings: Settings, granted: Path
) -> None:
    granted.chmod(0o755)
    (granted / "open" / "closed").mkdir(parents=True)
    library = granted / "library"
    venv.create(library, with_pip=False, symlinks=True)
    (packages,) = library.glob("lib/python3*/site-packages")
    (packages / "project.pth").write_text(f"{granted}/open\n")
    (granted / "open" / "fuel.py").write_text(PLANTED.format(proof=str(granted / "open" / "proof")))
    python = str(library / "bin" / "python")
    mounts = [f"{granted}:ro", str(granted / "open"), f"{granted}/open/closed:ro"]
    wanted = replace(settings, mount=mounts, python=python, preload=["fuel"])
    async with Service.local(wanted, home) as service:
        session = (await service.create_session()).session_id
        code = "import sys\n'fuel' in sys.modules, __import__('fuel').held"
        assert (await service.execute(session, code)).result == {"text/plain": "(False, True)"}
        assert await tried(service, session, f"open('{granted}/open/made', 'w')") == ""
        assert await tried(service, session, f"open('{granted}/open/closed/made', 'w')") != ""
        assert await tried(service, session, f"open('{granted}/made', 'w')") != ""
    assert not (granted / "open" / "proof").exists()


MAKE_PROGRAM = """
with open("program", "wb") as file:
    file.write(b"#!/bin/sh")
os.chmod("program", 0o755)
"""
OPENAT2 = """
import ctypes, struct
how = struct.pack("QQQ", os.O_RDWR | os.O_CREAT, 0o6755, 0)
ctypes.CDLL(None).syscall(437, -100, b"made", how, len(how))
"""
WAYS = {
    "chmod": "os.chmod('program', 0o4755)",
    "for its group": "os.chmod('program', 0o2755)",
    "fchmod": "os.fchmod(os.open('program', os.O_RDONLY), 0o6755)",
    "fchmodat": "os.chmod('program', 0o4755, dir_fd=os.open('.', os.O_RDONLY))",
    "fchmodat2": "import ctypes; ctypes.CDLL(None).syscall(452, -100, b'program', 0o4755, 0)",
    "made so": "os.open('made', os.O_RDWR | os.O_CREAT, 0o6755)",
    "made so for its group": "os.open('made', os.O_RDWR | os.O_CREAT, 0o2755)",
    "made so by the older call": "import ctypes; ctypes.CDLL(None).syscall(2, b'made', os.O_RDWR | os.O_CREAT, 0o6755)",
    "made so by creat": "import ctypes; ctypes.CDLL(None).creat(b'made', 0o6755)",
    "made so by openat2": OPENAT2,
    "made so without a name": (
        "fd = os.open('.', os.O_RDWR | os.O_TMPFILE, 0o6755)\n"
        "os.link(f'/proc/self/fd/{fd}', 'made', follow_symlinks=True)"
    ),
    "made so by mknod": "os.mknod('made', 0o104755)",
    "made so by mknodat": "os.mknod('made', 0o106755, dir_fd=os.open('.', os.O_RDONLY))",
    "a pipe": "os.mknod('made', 0o014755)",
    "made so and written": "os.write(os.open('made', os.O_RDWR | os.O_CREAT, 0o6755), b'#!/bin/sh')",
    "made so and enlarged": "os.ftruncate(os.open('made', os.O_RDWR | os.O_CREAT, 0o6755), 100)",
    "made so and reserved": "os.posix_fallocate(os.open('made', os.O_RDWR | os.O_CREAT, 0o6755), 0, 100)",
    "a copy": "os.mknod('made', 0o104755); os.sendfile(os.open('made', os.O_WRONLY), os.open('program', 0), 0, 9)",
}


@pytest.mark.parametrize("way", WAYS)
async def test_no_program_is_left_that_lends_the_folders_owner_to_whoever_runs_it(
    mark: str, home: Path, settings: Settings, way: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="ingle-granted-") as granted:
        async with Service.local(replace(settings, mount=[granted]), home) as service:
            session = (await service.create_session(cwd=granted)).session_id
            assert await tried(service, session, MAKE_PROGRAM) == ""
            await tried(service, session, f"os.umask(0)\n{WAYS[way]}")
        left = list(Path(granted).iterdir())
        assert "program" in [path.name for path in left], "it has made nothing"
        for path in left:
            assert path.stat().st_uid == os.geteuid()
            assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID), path.name


async def some(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
@pytest.mark.parametrize("replaced", ["work", "work/deep"])
async def test_a_folder_that_a_session_began_in_and_replaced_by_a_link_leads_nowhere(
    mark: str, home: Path, settings: Settings, level: str, replaced: str
) -> None:
    if level == "restricted" and os.geteuid() == 0:
        pytest.skip("the interpreter of the tests may lie where only root can go; others are tested as such")
    with tempfile.TemporaryDirectory(prefix="ingle-granted-") as around:
        granted, secret = Path(around) / "granted", Path(around) / "secret"
        for folder in (granted / "work" / "deep", secret / "deep"):
            folder.mkdir(parents=True)
            (folder / "file").write_text(folder.name)
            folder.chmod(0o777)
        for folder in (granted, granted / "work"):
            folder.chmod(0o777)
        wanted = replace(settings, isolation=level, mount=[str(granted)], network="full")
        async with Service.local(wanted, home) as service:
            start = str(granted / "work" / "deep")
            session = (await service.create_session(cwd=start)).session_id
            assert [each.name for each in (await service.list_files(session)).files] == ["file"]
            target = secret if replaced == "work" else secret / "deep"
            code = f"os.chdir({around!r} + '/granted')\nos.rename({replaced!r}, 'aside')\n"
            assert await tried(service, session, f"{code}os.symlink({str(target)!r}, {replaced!r})") == ""
            for reach in (
                service.list_files(session),
                service.open_file(session, "file"),
                service.write_file(session, "made", some(b"x")),
                service.remove_file(session, "file"),
            ):
                with pytest.raises(IngleError):
                    await reach
        assert sorted(path.name for path in (secret / "deep").iterdir()) == ["file"]


def nested(around: str) -> tuple[Path, Path]:
    """A folder to grant with a part to grant by itself, and a file that is not granted. Sessions may pass all of it."""
    granted, secret = Path(around) / "granted", Path(around) / "secret"
    for folder in (granted / "part", secret):
        folder.mkdir(parents=True)
        (folder / "file").write_text(folder.name)
    for folder in (Path(around), granted, granted / "part", secret):
        folder.chmod(0o777)
    return granted, secret


def replaced_by_a_link(granted: Path, target: Path) -> str:
    """Code that puts a link in the place of the part."""
    return f"os.chdir({str(granted)!r})\nos.rename('part', 'aside')\nos.symlink({str(target)!r}, 'part')"


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
async def test_a_granted_folder_that_a_session_replaced_by_a_link_leads_no_other_session_out(
    mark: str, home: Path, settings: Settings, level: str
) -> None:
    if level == "restricted" and os.geteuid() == 0:
        pytest.skip("the interpreter of the tests may lie where only root can go; others are tested as such")
    with tempfile.TemporaryDirectory(prefix="ingle-granted-") as around:
        granted, secret = nested(around)
        (Path(around) / "other").mkdir()
        more = NewGrant(folder=f"{around}/other")
        wanted = replace(settings, isolation=level, mount=[str(granted), f"{granted}/part"], network="full")
        async with Service.local(wanted, home) as service:
            first = (await service.create_session()).session_id
            assert await tried(service, first, replaced_by_a_link(granted, secret)) == ""
            second = (await service.create_session()).session_id
            assert await tried(service, second, f"open('{secret}/file')") != ""
            with pytest.raises(IngleError, match="leads elsewhere now; remove that grant first"):
                await service.add_grant(more)
            part = next(each.id for each in await service.list_grants() if each.name == f"{granted}/part")
            await service.remove_grant(part)
            await service.add_grant(more)
            third = (await service.create_session()).session_id
            assert await tried(service, third, f"open('{around}/other/made', 'w').close()") == ""
            assert await tried(service, third, f"open('{secret}/file')") != ""


async def test_a_folder_granted_for_reading_is_not_followed_over_a_link_of_an_older_session(
    mark: str, home: Path, settings: Settings
) -> None:
    """The older session has the folder without the part that is read-only now, and nothing keeps it in its place."""
    with tempfile.TemporaryDirectory(prefix="ingle-granted-") as around:
        granted, secret = nested(around)
        environment = Path(around) / "env"
        venv.create(environment, with_pip=False, symlinks=True)
        python = str(environment / "bin" / "python")
        async with Service.local(replace(settings, mount=[str(granted)], pythons=[python]), home) as service:
            older = (await service.create_session()).session_id
            await service.add_grant(NewGrant(folder=f"{granted}/part", read_only=True))
            assert await tried(service, older, replaced_by_a_link(granted, secret)) == ""
            # Another interpreter has a zygote of its own, which is started now.
            newer = (await service.create_session(python=python)).session_id
            assert await tried(service, newer, f"open('{granted}/part/file')") != ""
            assert await tried(service, newer, f"open('{granted}/aside/file').close()") == ""


@pytest.mark.parametrize("level", ["none", "limits"])
async def test_a_tenant_names_only_its_own_folders_where_nothing_holds_its_code(
    mark: str, home: Path, settings: Settings, level: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="ingle-granted-") as around:
        granted, _ = nested(around)
        wanted = replace(settings, isolation=level, network="full", folder=[str(granted)])
        async with Service.local(wanted, home) as owner:
            await owner.create_session("mine")
            tenant = owner.acting_for(Caller("other", "other"))
            await tenant.create_session("theirs")
            for reach in (
                tenant.open_file("theirs", f"{granted}/part/file"),
                tenant.write_file("theirs", f"{granted}/made", some(b"x")),
                tenant.open_archive("theirs", str(granted)),
            ):
                with pytest.raises(NotGranted):
                    await reach
            assert not (granted / "made").exists()
