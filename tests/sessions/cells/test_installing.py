"""`%pip install` in a session: into its own folder, only what is missing, and usable on the next line."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from ingle_worker.magics import packages
from support.service import make_settings
from support.wheels import make_wheel

pytestmark = [pytest.mark.req("rich.magics"), pytest.mark.timeout(300)]

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder, "ingle_hearth", "1.0", "ingle_ember")
    make_wheel(folder, "ingle_hearth", "2.0", "ingle_ember")
    make_wheel(folder, "ingle_ember", "0.5")
    return folder


def path_without_uv() -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(each for each in folders if not os.path.exists(os.path.join(each, "uv")))


@pytest.fixture(params=["pip", "uv"])
def tool(request: pytest.FixtureRequest) -> str:
    if request.param == "uv" and shutil.which("uv") is None:
        pytest.skip("there is no uv on the PATH")
    return request.param


@pytest.fixture(scope="module")
def settings(bare: str) -> Settings:
    return make_settings(preload=[], pool=1, pythons=[bare])


@pytest.fixture
async def run(service: Service, wheels: Path, tool: str, tmp_path: Path) -> Run:
    env = {
        "PATH": os.environ["PATH"] if tool == "uv" else path_without_uv(),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }
    await service.create_session("s", env=env)

    async def execute(code: str, **options: object) -> Result:
        offline = f"install --no-index --find-links {wheels} "
        return await service.execute("s", code.replace("%pip install ", f"%pip {offline}"), wait=200, **options)

    return execute


async def test_a_package_and_what_it_needs_can_be_imported_on_the_next_line(run: Run) -> None:
    result = await run(
        "%pip install ingle_hearth\nimport ingle_hearth, ingle_ember\ningle_hearth.version, ingle_ember.version"
    )
    assert (result.status, result.stderr) == ("ok", "")
    assert result.result == {"text/plain": "('2.0', '0.5')"}
    installed = result.stdout.splitlines()[-1].replace("-", "_").removeprefix("installed ")
    assert sorted(installed.split(", ")) == ["ingle_ember 0.5", "ingle_hearth 2.0"]
    folder = (await run("import os\nos.path.dirname(ingle_hearth.__file__)")).result["text/plain"]
    assert folder.endswith("/packages'")
    assert (await run("!" + sys.executable + " -c 'import ingle_ember; print(ingle_ember.version)'")).stdout == "0.5\n"
    assert (await run("sorted(n for n in globals() if not n.startswith('_'))")).result == {
        "text/plain": "['ingle_ember', 'ingle_hearth', 'os']"
    }


async def test_what_is_there_is_not_installed_again_and_an_upgrade_asks_for_a_restart(run: Run) -> None:
    assert (await run("%pip install 'ingle_hearth==1.0'\nimport ingle_hearth")).status == "ok"
    result = await run("%pip install ingle_hearth==1.0")
    assert result.stdout == "already there: ingle_hearth==1.0\n"
    result = await run("%pip install --upgrade ingle_hearth\ningle_hearth.version")
    assert result.stdout.replace("-", "_").splitlines() == [
        "installing ingle_hearth 2.0",
        "installed ingle_hearth 2.0",
        "ingle_hearth was imported before: restart the session to use the new version",
    ]
    assert result.result == {"text/plain": "'1.0'"}


async def test_what_a_worker_installed_is_there_for_the_one_that_takes_its_place(run: Run) -> None:
    await run("%pip install ingle_ember")
    await run("import os\nos._exit(1)")
    assert (await run("import ingle_ember\ningle_ember.version")).result == {"text/plain": "'0.5'"}


async def test_a_package_that_does_not_exist_is_told_in_a_few_lines(run: Run) -> None:
    result = await run("!pip install --no-index nosuchthing\n_exit_code")
    assert (result.status, result.stdout) == ("ok", "")
    assert result.result != {"text/plain": "0"}
    reason = result.stderr.splitlines()[0]
    assert re.fullmatch("nothing was installed: .*nosuchthing.*", reason), result.stderr
    assert reason.partition(": ")[2] not in result.stderr.partition("\n")[2]
    assert len(result.stderr.splitlines()) < 25


async def test_the_error_of_a_build_is_told_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "backend.py").write_text(
        "def get_requires_for_build_wheel(settings=None): raise RuntimeError('it needs libfoo 2.0')\n"
        "prepare_metadata_for_build_wheel = build_wheel = get_requires_for_build_wheel\n"
    )
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "bad" / "pyproject.toml").write_text(system)
    result = await run(f"%pip install {tmp_path}/bad")
    assert result.stderr.splitlines()[0] == "nothing was installed: RuntimeError: it needs libfoo 2.0"


async def test_a_package_can_be_shown_and_removed(run: Run, tool: str) -> None:
    await run("%pip install ingle_ember")
    shown = await run("%pip show ingle_ember")
    assert "Version: 0.5" in shown.stdout
    assert "ingle_ember" in (await run("%pip list")).stdout
    result = await run("%pip uninstall ingle_ember\nimport ingle_ember")
    assert result.stdout == "removed ingle_ember from the session's packages\n"
    assert result.error.name == "ModuleNotFoundError"


async def test_a_longer_command_with_pip_in_it_installs_into_the_folder_too(run: Run, tool: str) -> None:
    result = await run("!pip install -q ingle_ember && echo did\nimport ingle_ember\ningle_ember.__file__")
    assert (result.status, result.stdout) == ("ok", "did\n")
    assert result.result["text/plain"].endswith("/packages/ingle_ember.py'")


IN_SHELL = (
    "pip install --no-index --find-links {wheels} {package} && python -c 'import {package} as it; print(it.version)'"
)


@pytest.mark.both_levels
@pytest.mark.req("env.shell")
@pytest.mark.parametrize("name", [None, "kept"])
async def test_pip_in_a_shell_of_a_session_installs_for_the_session(
    service: Service, run: Run, wheels: Path, name: str | None
) -> None:
    assert (await run("import sys\nsys.executable")).result == {"text/plain": repr(sys.executable)}
    command = f"python -c 'import sys; print(sys.executable)'; {IN_SHELL}".format(wheels=wheels, package="ingle_ember")
    task = await service.shell(command, session_id="s", shell_session=name, wait=100)
    lines = [sys.executable, "installing ingle_ember 0.5", "installed ingle_ember 0.5", "0.5"]
    assert (task.stdout.replace("-", "_").splitlines(), task.stderr) == ([line.replace("-", "_") for line in lines], "")
    assert (await run("import ingle_ember\ningle_ember.version")).result == {"text/plain": "'0.5'"}


@pytest.mark.both_levels
@pytest.mark.req("env.shell")
async def test_pip_in_a_subprocess_installs_for_the_session(run: Run, wheels: Path) -> None:
    order = IN_SHELL.replace("pip install", "python3 -m pip install -q").format(wheels=wheels, package="ingle_hearth")
    cell = f"import subprocess\nsubprocess.run({order!r}, shell=True)\nimport ingle_hearth\ningle_hearth.version"
    result = await run(cell)
    assert (result.stdout, result.stderr, result.result) == ("2.0\n", "", {"text/plain": "'2.0'"})
    got = await run("!python -c 'import sys, ingle_ember; print(sys.executable, ingle_ember.version)'")
    assert got.stdout == f"{sys.executable} 0.5\n"
    assert (await run("x = !pip show ingle_ember\nx[1]")).result == {"text/plain": "'Version: 0.5'"}


@pytest.mark.both_levels
@pytest.mark.fresh_service
@pytest.mark.req("env.shell")
async def test_commands_without_a_session_share_their_packages(service: Service, wheels: Path, tool: str) -> None:
    if tool == "uv":
        pytest.skip("the tool makes no difference here")
    env = {"PIP_NO_INDEX": "1"}
    first = await service.shell(IN_SHELL.format(wheels=wheels, package="ingle_ember"), env=env, wait=100)
    assert (first.stdout.splitlines()[-1:], first.stderr) == (["0.5"], "")
    second = await service.shell("python3 -c 'import sys, ingle_ember; print(sys.executable)'", wait=100)
    assert (second.stdout, second.stderr) == (f"{sys.executable}\n", "")
    removed = await service.shell("pip uninstall ingle_ember", wait=100)
    assert removed.stdout == "removed ingle_ember from the session's packages\n"


@pytest.mark.both_levels
@pytest.mark.req("env.shell")
async def test_a_fork_and_a_loaded_session_install_into_folders_of_their_own(service: Service, run: Run) -> None:
    folder = "import os\nos.environ['SESSION_PACKAGES'], os.environ['PATH'].split(':')[1], sys.path.count('')"
    await run("%pip install ingle_ember\nimport sys, ingle_ember")
    original = await run(folder)
    await service.fork_session("s", "f")
    await service.save_session("s", "kept")
    await service.load_session("kept", "l")
    try:
        forked, loaded = [(await service.execute(each, folder)).result for each in "fl"]
        assert len({str(each) for each in (original.result, forked, loaded)}) == 3
        assert (await service.execute("f", "ingle_ember.version")).result == {"text/plain": "'0.5'"}
    finally:
        await service.end_session("f")
        await service.end_session("l")
        await service.delete_snapshot("kept")


async def test_an_interrupt_stops_an_installation(service: Service, run: Run, wheels: Path) -> None:
    # Nobody ever writes to it, so the installer waits until it is stopped.
    os.mkfifo(wheels / "requirements.txt")
    running = await service.execute("s", f"kept = 1\n%pip install -r {wheels}/requirements.txt\nkept = 2", wait=0.5)
    assert running.status == "running"
    result = await service.interrupt("s", wait=30)
    assert result is not None
    assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
    assert (await run("kept")).result == {"text/plain": "1"}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("pip install a", ["install", "a"]),
        ("pip3 install 'a>=1' -q", ["install", "a>=1", "-q"]),
        ("python -m pip install a", ["install", "a"]),
        ("python3.11 -m pip install a>=1,<2", ["install", "a>=1,<2"]),
        ("uv pip install a", ["install", "a"]),
        ("pip install a 2>&1 | tail -1", ["install", "a"]),
        ("pip install -q a > /dev/null 2>&1", ["install", "-q", "a"]),
        ("pip install a >/dev/null", ["install", "a"]),
        ("pip --version", ["--version"]),
        ("pip", []),
        ("pip install a && echo x", None),
        ("pip install a; ls", None),
        ("pip install a > log.txt", None),
        ("pip install $(cat list)", None),
        ("pip freeze > requirements.txt", None),
        ("echo pip install a", None),
        ("pipx install a", None),
        ("cd x && pip install a", None),
    ],
)
def test_a_plain_call_of_pip_is_told_from_a_shell_command(command: str, arguments: list[str] | None) -> None:
    assert packages.arguments_of(command) == arguments


def test_options_of_an_installation_are_told_from_what_is_installed() -> None:
    words = ["-U", "-i", "URL", "--no-binary", ":all:", "-r", "req.txt", "--find-links=x", "six", "--pre"]
    words += ["--no-deps", "-c", "con.txt", "iniconfig"]
    assert packages._options(words) == [
        *("-i", "URL", "--no-binary", ":all:", "--find-links=x", "--pre", "-c", "con.txt"),
    ]


async def test_an_interpreter_without_pip_installs_all_the_same(service: Service, wheels: Path, bare: str) -> None:
    import ensurepip

    if not list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")):
        pytest.skip("this Python comes without its pip")
    env = {"PATH": path_without_uv(), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    await service.create_session("s", python=bare, env=env)
    result = await service.execute("s", "%pip install ingle_ember\nimport ingle_ember\ningle_ember.version", wait=200)
    await service.end_session("s")
    assert (result.status, result.result) == ("ok", {"text/plain": "'0.5'"})


@functools.cache
def index_answers() -> bool:
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", "/dev/null/no", "six"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return "No matching distribution" not in asked.stderr and "connection" not in asked.stderr.lower()


async def test_a_package_comes_from_the_index(service: Service, tool: str) -> None:
    if not index_answers():
        pytest.skip("no package index can be reached")
    env = {"PATH": os.environ["PATH"] if tool == "uv" else path_without_uv()}
    await service.create_session("s", env=env)
    result = await service.execute("s", "%pip install six\nimport six\nsix.moves, six.__file__", wait=200)
    await service.end_session("s")
    assert result.status == "ok", result.stderr
    assert "installed six 1." in result.stdout or result.stdout == "already there: six\n"
