"""Levels between nothing and a sandbox: what each takes from a session, as the server's own user."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingle.errors import IsolationUnavailable
from ingle.isolation import self_test
from ingle.service import Service
from ingle.workers.launch.zygote import try_level
from support.internals import launchers_of, manager_of
from support.service import make_settings
from support.waiting import until

LOOK = """
import os, subprocess
def tried(f):
    try: return f()
    except OSError as e: return type(e).__name__
status = open('/proc/self/status').read()
print('NoNewPrivs:\\t1' in status, 'Seccomp:\\t2' in status, os.environ.get('SECRET_OF_SERVER'))
own = tried(lambda: open('own', 'w').write('x'))
print(tried(lambda: open(SECRET).read()), own, tried(lambda: os.kill(os.getppid(), 0)))
print(subprocess.run('echo child; ls', shell=True, capture_output=True, text=True).stdout.split())
"""
PYTHON = "/usr/bin/python3"
"""One that every user can read, where the server is root and sessions are not."""


@pytest.mark.parametrize("level", ["limits", "restricted"])
async def test_a_level_takes_what_it_says_from_cells_and_from_commands(
    level: str, mark: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    monkeypatch.setenv("SECRET_OF_SERVER", "s")
    # Where the server is root, its sessions are others, who have to get to their folders.
    home.parent.chmod(0o755)
    if not Path(PYTHON).exists() or await try_level(level, PYTHON, str(home)) is not None:
        pytest.skip(f"{level} is not available here with {PYTHON}")
    settings = make_settings(preload=[], pool=1, isolation=level, python=PYTHON, mount=[])
    async with Service.local(settings, home) as service:
        info = await service.create_session("a")
        assert (info.isolation, info.network) == (level, "full")
        result = await service.execute("a", LOOK.replace("SECRET)", f"{str(secret)!r})"))
        held = level == "restricted"
        read, signalled = ("PermissionError", "PermissionError") if held else ("s", "None")
        assert result.stdout.splitlines() == [
            f"True {held} None",
            f"{read} 1 {signalled}",
            "['child', 'own']",
        ], (result.stdout, result.error)
        await service.execute("a", "os.kill(os.getpid(), 9)")
        assert (await service.execute("a", "open('own').read()")).result == {"text/plain": "'x'"}
        for session in ("a", None):
            task = await service.shell(f"cat {secret}; touch made; ls made", session_id=session)
            assert task.stdout == ("" if held else "s") + "made\n", task.stderr
            await service.shell("x=1", session_id=session, shell_session="s")
            assert (await service.shell("echo $x", session_id=session, shell_session="s")).stdout == "1\n"
            if os.geteuid() == 0 and held:
                assert int((await service.shell("id -u", session_id=session)).stdout) >= 2_000_000_000


@pytest.mark.parametrize("level", ["limits", "restricted"])
async def test_a_session_is_copied_as_anywhere(level: str, mark: str, home: Path) -> None:
    home.parent.chmod(0o755)
    if not Path(PYTHON).exists() or await try_level(level, PYTHON, str(home)) is not None:
        pytest.skip(f"{level} is not available here with {PYTHON}")
    settings = make_settings(preload=[], pool=1, isolation=level, python=PYTHON, mount=[])
    use = "import tempfile; file = tempfile.TemporaryFile(); file.write(b'x'); open('seen', 'a').write('x'); x += 1; x"
    async with Service.local(settings, home) as service:
        await service.create_session("a")
        await service.execute("a", "x = 0")
        await service.checkpoint("a", "begin")
        (fork,) = await service.fork_session("a", "b")
        (again,) = await service.fork_session("b", "c")
        assert (fork.isolation, again.isolation) == (level, level)
        for session in ("a", "b", "c"):
            result = await service.execute(session, use)
            assert (result.result, result.error) == ({"text/plain": "1"}, None)
        await service.rollback("a", "begin")
        await service.execute("b", "import os; os.kill(os.getpid(), 9)")
        await service.execute("b", "x = 1")
        for session, count in (("a", "1"), ("b", "2")):
            result = await service.execute(session, use)
            assert (result.result, result.error) == ({"text/plain": count}, None)
        # Each has its own files: the original's went back with it, and the second copy was used once.
        for session, seen in (("a", "x"), ("b", "xx"), ("c", "x")):
            assert (await service.execute(session, "open('seen').read()")).result == {"text/plain": repr(seen)}


async def test_a_command_waits_until_its_room_has_its_folder(mark: str, home: Path) -> None:
    home.parent.chmod(0o755)
    if not Path(PYTHON).exists() or await try_level("restricted", PYTHON, str(home)) is not None:
        pytest.skip(f"restricted is not available here with {PYTHON}")
    settings = make_settings(preload=[], pool=1, isolation="restricted", python=PYTHON, mount=[])
    async with Service.local(settings, home) as service:
        await manager_of(service).warm()
        ((pooled,),) = [each._pool for each in launchers_of(service)]
        os.kill(pooled.pid, signal.SIGSTOP)
        asked = asyncio.create_task(service.shell("touch made; ls"))
        assert await until(lambda: pooled.owner is not None)
        # A sandbox that is taken for ready too soon refuses the command at once.
        await asyncio.wait({asked}, timeout=0.5)
        os.kill(pooled.pid, signal.SIGCONT)
        task = await asked
        assert (task.status, task.exit_code, task.stdout) == ("done", 0, "made\n")


async def test_a_server_with_a_level_that_cannot_be_had_does_not_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "read", lambda proof: "it is forbidden")
    with pytest.raises(IsolationUnavailable, match="restricted is not available here: it is forbidden"):
        await Service.local(make_settings(preload=[], isolation="restricted"), home).start()
    async with Service.local(make_settings(preload=[], pool=0, isolation="auto"), home) as service:
        held = await service.isolation()
        assert (held.level, set(held.missing)) == ("none", {"sandbox", "restricted", "limits"})


ONE_USER = """
import asyncio, sys
from pathlib import Path
from ingle.service import Service
from ingle.settings import Settings
async def main():
    async with Service.local(Settings(preload=[], pool=0, isolation="auto"), Path(sys.argv[1])) as service:
        held = await service.isolation()
        await service.create_session("a")
        print(held.level, (await service.execute("a", "1 + 1")).result["text/plain"], held.missing["sandbox"])
asyncio.run(main())
"""


def test_a_root_that_has_no_other_users_takes_what_needs_none(tmp_path: Path) -> None:
    """As in a container whose root is an ordinary user outside: sessions cannot be made users of their own there."""
    alone = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no user namespace can be had here")
    told = subprocess.run(
        [*alone, sys.executable, "-c", ONE_USER, str(tmp_path / "home")], capture_output=True, text=True, check=False
    )
    assert told.stdout.startswith("limits 2 a session as a user of its own: Invalid argument"), told.stderr
    assert "run as an ordinary user in it" in told.stdout


def test_bait_that_was_left_by_a_killed_server_is_cleared_with_the_next(apart: Path) -> None:
    for name in ("old", "new"):
        (apart / f".probe-{name}").mkdir()
        (apart / f".probe-{name}" / "secret").touch()
    os.utime(apart / ".probe-old", (0, 0))
    bait = self_test.AttackTargets(str(apart))
    assert not (apart / ".probe-old").exists()
    bait.remove()
    # It may be that of a server which starts at this moment.
    assert [path.name for path in apart.iterdir()] == [".probe-new"]
