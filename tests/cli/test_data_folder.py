"""Who may write the data folder decides what a server does: one that another user can write is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle import errors
from ingle.service import Service
from support.server import PATIENCE
from support.service import make_settings
from support.tokens import ingle_token

ANOTHER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def ingle(home: Path, *arguments: str) -> tuple[int, str]:
    """Run a command until it ends. A server would end at once, because its standard input is empty.

    It grants no folder: a grant of one around the data folder is refused too.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", *arguments],
        env={**os.environ, "INGLE_HOME": str(home), "INGLE_MOUNT": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stderr


def writable(home: Path) -> None:
    home.chmod(0o777)


def writable_by_a_group(home: Path) -> None:
    home.chmod(0o770)


def replaceable(home: Path) -> None:
    home.parent.chmod(0o777)


def of_another(home: Path) -> None:
    os.chown(home, ANOTHER, ANOTHER)


def with_settings_of_another(home: Path) -> None:
    (home / "config.toml").write_text('isolation = "none"')
    os.chown(home / "config.toml", ANOTHER, ANOTHER)


def with_settings_for_all(home: Path) -> None:
    (home / "config.toml").write_text('isolation = "none"')
    (home / "config.toml").chmod(0o666)


def with_tokens_of_another(home: Path) -> None:
    ingle_token(home, "new", "planted")
    os.chown(home / "tokens.json", ANOTHER, ANOTHER)


def with_a_token_of_another(home: Path) -> None:
    (home / "token").touch(0o600)
    (home / "token").write_text("known\n")
    os.chown(home / "token", ANOTHER, ANOTHER)


FAULTS = [
    writable,
    writable_by_a_group,
    replaceable,
    with_settings_for_all,
    *(
        pytest.param(each, marks=AS_ROOT)
        for each in (of_another, with_settings_of_another, with_tokens_of_another, with_a_token_of_another)
    ),
]


@pytest.mark.req("safe.token")
@pytest.mark.parametrize("fault", FAULTS)
def test_serve_refuses_a_data_folder_that_another_user_has_a_hand_in(
    tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    home = tmp_path / "around" / "home"
    home.mkdir(mode=0o700, parents=True)
    fault(home)
    code, said = ingle(home, "serve", "--port", "0", "--until-eof")
    assert code == 2, said
    assert said.startswith("ingle: ")
    assert ("others can " in said) or (f"belongs to another user (uid {ANOTHER})" in said), said
    assert "chmod" in said or "chown" in said


@pytest.mark.parametrize("arguments", [["run", "1"], ["sh", "true"], ["mcp"]], ids=" ".join)
def test_so_do_the_other_commands_that_run_code(tmp_path: Path, arguments: list[str]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    writable(home)
    code, said = ingle(home, *arguments)
    assert (code, "others can write" in said) == (2, True), said


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
async def test_so_does_a_service_in_a_program(tmp_path: Path) -> None:
    writable(tmp_path)
    service = Service.local(make_settings(), tmp_path)
    with pytest.raises(errors.DataFolderFailed, match="others can write"):
        await service.start()


@AS_ROOT
async def test_a_planted_key_signs_no_snapshot(home: Path, mark: str) -> None:
    async with Service.local(make_settings(), home) as service:
        await service.create_session("main")
        await service.save_session("main", "first")
        os.chown(home / "signing.key", ANOTHER, ANOTHER)
    async with Service.local(make_settings(), home) as service:
        await service.create_session("main")
        with pytest.raises(errors.DataFolderFailed, match="another user"):
            await service.save_session("main", "second")
        os.chown(home / "signing.key", 0, 0)


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
def test_a_usual_data_folder_is_used(tmp_path: Path) -> None:
    for mode in (0o700, 0o755, 0o711):
        home = tmp_path / f"{mode:o}"
        home.mkdir()
        home.chmod(mode)
        assert ingle(home, "serve", "--port", "0", "--until-eof")[0] == 0
