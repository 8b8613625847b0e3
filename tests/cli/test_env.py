"""Named environments: built in the data folder, asked for by name at every interface, never changed by a session."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.callers import IMPLIED, Caller
from ingle.client import Client
from ingle.environments.build import reason_of
from ingle.environments.recipe import with_file
from ingle.environments.shapes import NewEnvironment
from ingle.service import Service
from ingle.settings import Settings
from support.mcp_host import Host, text_of
from support.server import Server, problem
from support.service import make_settings
from support.wheels import make_wheel

pytestmark = [pytest.mark.req("env.named"), pytest.mark.timeout(300)]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of three wheels, and no other."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, version in (("ingle_ember", "0.5"), ("ingle_hearth", "1.0"), ("ingle_hearth", "2.0")):
        make_wheel(folder, name, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=0)


@pytest.fixture
def ingle(home: Path, wheels: Path, mark: str) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str) -> tuple[int, str, str]:
        ended = subprocess.run(
            [sys.executable, "-m", "ingle", *args],
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "INGLE_HOME": str(home)},
            cwd=wheels,
        )
        return ended.returncode, ended.stdout, ended.stderr

    return run


VERSIONS = "import ingle_hearth, sys\nprint(ingle_hearth.version, sys.prefix != sys.base_prefix)"


def test_an_environment_is_created_used_updated_and_removed(ingle: Callable[..., tuple[int, str, str]]) -> None:
    code, said, steps = ingle("env", "create", "data", "ingle_hearth<2")
    assert (code, said.partition(" packages")[0].partition(" with ")[::2]) == (0, (f"data: Python {VERSION}", "2"))
    assert steps.splitlines()[0] == "making a virtual environment"
    assert steps.splitlines()[-1] == "installing 2 packages"
    assert ingle("run", "--environment", "data", VERSIONS) == (0, "1.0 True\n", "")
    assert ingle("env", "create", "data", "six")[::2] == (
        2,
        "ingle: there is an environment 'data' already; update it with `ingle env update data`\n",
    )

    code, _, said = ingle("env", "update", "data", "nosuchthing")
    told = said[said.index("ingle: ") :].splitlines()
    assert (code, told[0]) == (2, "ingle: the environment 'data' could not be built, and nothing was changed:")
    assert 1 <= len(told[1:]) <= 3
    assert "nosuchthing" in told[1]
    assert ingle("run", "--environment", "data", VERSIONS)[1] == "1.0 True\n"

    assert ingle("env", "update", "data", "ingle_hearth", "ingle_ember")[0] == 0
    assert ingle("run", "--environment", "data", VERSIONS)[1] == "2.0 True\n"
    (listed,) = json.loads(ingle("env", "list", "--json")[1])["environments"]
    assert listed["requested"] == ["ingle_hearth", "ingle_ember"]
    assert {name.replace("-", "_") for name in listed["packages"]} == {"pip", "ingle_hearth", "ingle_ember"}

    assert ingle("env", "remove", "data", "--json") == (0, '{"deleted":"data"}\n', "")
    assert ingle("run", "--environment", "data", "1") == (
        2,
        "",
        "ingle: there is no environment 'data'; there is none yet; create it with `ingle env create data PACKAGE...`\n",
    )


def test_a_second_environment_uses_the_wheels_of_the_first(
    ingle: Callable[..., tuple[int, str, str]], wheels: Path
) -> None:
    assert ingle("env", "create", "first", "ingle_hearth")[0] == 0
    for wheel in wheels.iterdir():
        wheel.unlink()
    code, said, steps = ingle("env", "create", "second", "ingle_hearth")
    assert code == 0, said
    assert "reusing ingle_hearth-2.0" in steps
    assert ingle("run", "--environment", "second", VERSIONS)[1] == "2.0 True\n"


def test_an_environment_in_use_is_not_removed_and_its_sessions_are_named(
    ingle: Callable[..., tuple[int, str, str]], start: Callable[..., Server]
) -> None:
    server = start("--pool", "0")
    assert ingle("env", "create", "data", "ingle_hearth")[0] == 0
    for name in ("work", "again"):
        assert ingle("run", "-s", name, "--environment", "data", "import ingle_hearth")[0] == 0
    server.make_session("other")
    assert ingle("env", "remove", "data")[::2] == (
        2,
        "ingle: sessions use the environment 'data': again, work; end each with `ingle stop SESSION`, or update it: "
        "sessions that run keep the packages they have\n",
    )


VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.mark.both_levels
@pytest.mark.req("env.named", "safe.isolation")
async def test_sessions_keep_the_build_they_began_with_and_cannot_write_it(
    service: Service, wheels: Path, home: Path
) -> None:
    with pytest.raises(errors.EnvironmentNotFound):
        await service.create_session("a", environment="data")
    info = await service.build_environment("data", NewEnvironment(packages=["ingle_hearth==1.0"]), wait=200)
    assert (info.state, info.usable, info.python) == ("ready", True, VERSION)
    first = await service.create_session("a", environment="data")
    assert first.environment == "data"
    began = await service.build_environment("data", NewEnvironment(packages=["ingle_hearth"]), wait=0)
    assert (began.state, began.usable, began.packages["ingle_hearth"]) == ("building", True, "1.0")
    with pytest.raises(errors.EnvironmentInUse):
        await service.build_environment("data", NewEnvironment())
    while (await service.list_environments())[0].state == "building":
        (listed,) = await service.list_environments()
        assert listed.usable
        await asyncio.sleep(0.05)
    await service.create_session("b", environment="data")
    found = [await service.execute(name, VERSIONS) for name in "ab"]
    assert [each.stdout for each in found] == ["1.0 True\n", "2.0 True\n"]
    if first.isolation == "sandbox":
        wheel_folder = home / "wheels"
        for place in ("sys.prefix", repr(str(wheel_folder))):
            tried = await service.execute("b", f"import os\nopen(os.path.join({place}, 'x'), 'w')")
            assert tried.error is not None
            assert tried.error.name in ("OSError", "PermissionError", "FileNotFoundError")
    with pytest.raises(errors.EnvironmentInUse, match="sessions use the environment 'data'"):
        await service.remove_environment("data")
    await service.end_session("b")
    await service.fork_session("a", "c")
    assert (await service.execute("c", VERSIONS)).stdout == "1.0 True\n"
    await service.end_session("a")
    await service.end_session("c")
    await service.remove_environment("data")
    assert await service.list_environments() == []
    assert [path for path in (home / "environments" / "data").iterdir() if path.is_dir()] == []


@pytest.mark.req("rich.magics")
def test_packages_of_a_command_without_a_session_are_told_to_end_with_it(
    ingle: Callable[..., tuple[int, str, str]], wheels: Path
) -> None:
    code, said, _ = ingle("run", f"%pip install --no-index --find-links {wheels} ingle_ember")
    assert (code, said.replace("-", "_").splitlines()) == (
        0,
        [
            "installing ingle_ember 0.5",
            "installed ingle_ember 0.5",
            "packages end with this command; keep them in a session by name, or by `ingle env create NAME ingle_ember`",
        ],
    )


async def test_a_failed_build_is_told_in_three_lines_and_can_be_removed(service: Service, wheels: Path) -> None:
    with pytest.raises(errors.EnvironmentFailed) as raised:
        await service.build_environment("data", NewEnvironment(packages=["nosuchthing>1"]), wait=200)
    assert 1 <= len(raised.value.why.splitlines()) <= 3
    (listed,) = await service.list_environments()
    assert (listed.state, listed.usable, listed.error) == ("failed", False, raised.value.why)
    await service.remove_environment("data")
    assert await service.list_environments() == []


def test_every_interface_takes_the_name_of_an_environment(server: Server, tmp_path: Path, home: Path) -> None:
    known = "there is no environment 'data'"
    said = problem(server.client.post("/v1/sessions", json={"environment": "data"}), 404, "environment_not_found")
    assert known in said["detail"]
    both = server.client.post("/v1/sessions", json={"environment": "data", "python": sys.executable})
    assert both.status_code in (404, 422)
    with Client(server.url, token=server.token) as client, pytest.raises(errors.EnvironmentNotFound, match=known):
        client.session("a", environment="data").run("1")
    with Host(home, cwd=tmp_path) as host:
        host.initialize()
        assert known in text_of(host.call("create_repl_session", environment="data"))


async def test_only_the_owner_changes_environments(service: Service, home: Path) -> None:
    admin = service.acting_for(Caller("t", "other", IMPLIED["admin"]))
    with pytest.raises(errors.Forbidden, match="only the owner"):
        await admin.build_environment("data", NewEnvironment())
    with pytest.raises(errors.Forbidden, match="only the owner"):
        await admin.remove_environment("data")
    assert await admin.list_environments() == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("requirements.txt", "a==1\n-r b.txt\n", {"requirements": "a==1\n-r b.txt\n\n"}),
        ("pyproject.toml", None, {"packages": ["a>=1", "b"]}),
        (
            "uv.lock",
            '[[package]]\nname="a"\nversion="1.2"\n[[package]]\nname="c"\nversion="1"\n[[package]]\nname="c"\nversion="2"\n',
            {"packages": ["a>=1", "b"], "constraints": "a==1.2\n"},
        ),
        (
            "pylock.toml",
            'lock-version="1.0"\n[[packages]]\nname="a"\nversion="1.2"\n[[packages]]\nname="w"\nversion="1"\n'
            "marker=\"sys_platform == 'win32'\"\n",
            {"packages": ["a==1.2", "w==1 ; sys_platform == 'win32'"]},
        ),
    ],
)
def test_packages_come_from_files(tmp_path: Path, name: str, text: str | None, expected: dict[str, Any]) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname="p"\nversion="1"\ndependencies=["a>=1", "b"]\n')
    if text is not None:
        (tmp_path / name).write_text(text)
    assert with_file(NewEnvironment(), tmp_path / name) == NewEnvironment(**expected)


def test_the_reason_of_a_failure_has_three_lines() -> None:
    assert reason_of(["Collecting a\n", "ERROR: no a\n", "ERROR: none found for a\n"]) == "no a\nnone found for a"
    assert reason_of([f"line {n}\n" for n in range(9)]) == "line 6\nline 7\nline 8"
    versions = ", ".join(f"1.{n}" for n in range(500))
    assert reason_of(
        [
            "ERROR: Ignored the following versions that require a different python version: 1.2 Requires-Python <3\n",
            f"ERROR: Could not find a version that satisfies the requirement a==9 (from versions: {versions})\n",
            "ERROR: No matching distribution found for a==9\n",
        ]
    ) == (
        "Could not find a version that satisfies the requirement a==9 (from versions: …, 1.497, 1.498, 1.499)\n"
        "No matching distribution found for a==9"
    )
    assert reason_of([]) == "the installer said nothing"
