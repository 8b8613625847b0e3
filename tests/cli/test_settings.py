"""Settings: one table, three places to give a value, and a page that is made from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ingle.http.server
from ingle.cli import main
from ingle.cli.commands.serve import flag_of
from ingle.cli.options import COMMON
from ingle.errors import InvalidRequest
from ingle.settings import GROUPS, Settings, data_folder, load
from reference.cli import settings_page


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a data folder of this test's own, with an environment that sets nothing."""
    for name in [name for name in os.environ if name.startswith("INGLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INGLE_HOME", str(tmp_path))
    # Some settings name files, which are made where one is.
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config.toml"


def serve_with(*flags: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings with which `ingle serve` would have started."""
    given: list[tuple[Settings, Path]] = []

    def serve(settings: Settings, home: Path, until_eof: bool, mounts: object, protocols: object, *more: object) -> int:
        given.append((settings, home))
        return 0

    monkeypatch.setattr(ingle.http.server, "serve", serve)
    ended = CliRunner().invoke(main, ["serve", *flags])
    assert ended.exit_code == 0, ended.output
    [(settings, home)] = given
    assert home == data_folder()
    return settings


def test_the_page_is_the_same_on_every_interpreter_and_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings_page()
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    assert settings_page() == before
    for setting in fields(Settings):
        assert f"| `{setting.name}` |" in before
        assert setting.metadata["help"] in before


def test_the_help_of_serve_is_short_and_has_every_flag_in_its_group_on_request() -> None:
    short = CliRunner().invoke(main, ["serve", "--help"]).output
    text = CliRunner().invoke(main, ["serve", "--help-all"]).output
    flags = {flag_of(field) for field in fields(Settings)}
    assert {flag for flag in flags if f"  {flag} " in short} == {f"--{name.replace('_', '-')}" for name in COMMON}
    parts = re.split(r"^(\S.*):$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(sections) == ["Options", *GROUPS.values()]
    group = ""
    for field in fields(Settings):
        group = GROUPS.get(field.name, group)
        assert f"  {flag_of(field)} " in sections[group]


def test_without_any_place_the_defaults_hold(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() == serve_with(monkeypatch=monkeypatch) == Settings()


EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "int": (11, 22, 33),
    "float": (1.5, 2.5, 3.5),
    "str": ("one", "two", "three"),
    "list": (["one"], ["two", "more"], ["three", "and", "more"]),
}


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_a_flag_beats_the_environment_which_beats_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, setting: Any
) -> None:
    kind = getattr(setting.type, "__name__", "list")
    choices = setting.metadata["choices"]
    in_file, in_environment, in_flag = (choices[1], choices[0], choices[-1]) if choices else EXAMPLES[kind]

    def text(value: Any) -> str:
        return ",".join(value) if isinstance(value, list) else str(value)

    def chosen(*flags: str) -> Any:
        return getattr(serve_with(*flags, monkeypatch=monkeypatch), setting.name)

    config.write_text(f"{setting.name} = {in_file!r}\n")
    assert chosen() == in_file
    monkeypatch.setenv(f"INGLE_{setting.name.upper()}", text(in_environment))
    assert chosen() == in_environment
    flag = "--" + setting.name.replace("_", "-")
    values = in_flag if setting.metadata["word"] else [text(in_flag)]
    assert chosen(*(word for value in values for word in (flag, value))) == in_flag


def test_an_empty_list_can_be_given_over_a_default(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve_with("--preload", "", monkeypatch=monkeypatch).preload == []
    monkeypatch.setenv("INGLE_PRELOAD", "")
    assert load().preload == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prot = 1", "unknown setting 'prot'"),
        ("port = '1'", "port is '1'; it must be a whole number, 0 or more"),
        ("port = true", "port is True; it must be a whole number, 0 or more"),
        ("port = 70000", "it must be from 0 to 65535"),
        ("wait = nan", "wait is nan; it must be a number, 0 or more"),
        ("wait = -1", "wait is -1; it must be a number, 0 or more"),
        ("preload = 'numpy'", "preload is 'numpy'; it must be a list of texts"),
        ("host = 1", "host is 1; it must be text"),
        ("idle_policy = 'forget'", "idle_policy is 'forget'; it must be one of keep, free, end"),
        ("port =", "cannot be read"),
    ],
)
def test_a_wrong_setting_in_the_file_is_named(config: Path, line: str, words: str) -> None:
    config.write_text(line)
    with pytest.raises(InvalidRequest) as refused:
        load()
    assert words in refused.value.message


def test_a_wrong_setting_in_the_environment_is_told_in_a_sentence(config: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve"],
        env={**os.environ, "INGLE_POOL": "many"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (2, "ingle: INGLE_POOL is 'many', which is not a number\n")


def test_sizes_and_times_are_written_as_people_write_them_in_every_place(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('limit_memory = "4G"\nidle_timeout = "1h30m"\nlimit_disk = "1GiB"\n')
    monkeypatch.setenv("INGLE_LIMIT_TMP", "512M")
    monkeypatch.setenv("INGLE_WAIT", "90s")
    settings = serve_with("--max-file", "2.5G", "--task-age", "2d", "--stop-grace", "250ms", monkeypatch=monkeypatch)
    assert settings == Settings(
        limit_memory=4 * 1024**3,
        idle_timeout=5400.0,
        limit_disk=1024**3,
        limit_tmp=512 * 1024**2,
        wait=90.0,
        max_file=2560 * 1024**2,
        task_age=172800.0,
        stop_grace=0.25,
    )


def test_config_shows_sizes_and_times_as_the_file_takes_them_and_exact_numbers_to_programs(config: Path) -> None:
    given = 'limit_memory = "2G"\nlimit_disk = 1000000001\nidle_timeout = 5400\nstop_grace = 1234567.5\nwait = 0\n'
    config.write_text(given)
    shown = CliRunner().invoke(main, ["config"]).output
    names = [line.partition(" = ")[0] for line in given.splitlines()]
    lines = {line.partition(" = ")[0]: re.sub(" *# .*", "", line) for line in shown.splitlines()}
    assert [lines[name] for name in names] == [
        'limit_memory = "2G"',
        "limit_disk = 1000000001",
        'idle_timeout = "90m"',
        "stop_grace = 1234567.5",
        "wait = 0",
    ]
    told = json.loads(CliRunner().invoke(main, ["config", "--json"]).output)["settings"]
    values = {each["name"]: each["value"] for each in told}
    assert [values[name] for name in names] == [2147483648, 1000000001, 5400, 1234567.5, 0]
    # A file with all of these lines sets the same.
    exact = "\n".join(line for line in lines.values() if not line.startswith("#") and not line.endswith("null"))
    config.write_text(exact)
    again = json.loads(CliRunner().invoke(main, ["config", "--json"]).output)["settings"]
    assert {each["name"]: each["value"] for each in again} == values


def test_every_setting_in_bytes_or_seconds_has_a_unit() -> None:
    with_unit = {each.name: each.metadata["unit"] for each in fields(Settings) if each.metadata["unit"]}
    floats = {each.name for each in fields(Settings) if each.type is float}
    assert {name for name, unit in with_unit.items() if unit == "seconds"} == floats - {"memory_floor", "soft_memory"}
    large = {each.name for each in fields(Settings) if each.type is int and each.default > 200_000}
    large |= {"tool_bytes_session", "gpu_memory"}
    assert {name for name, unit in with_unit.items() if unit == "bytes"} == large


def test_a_wrong_size_is_told_with_an_example(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = CliRunner().invoke(main, ["serve", "--limit-memory", "4 apples"])
    wanted = "a size such as 512M, 4G or 1GiB, or a number of bytes"
    assert flag.exit_code == 2
    assert f"'4 apples' is not {wanted}" in " ".join(flag.output.split())
    monkeypatch.setenv("INGLE_LIMIT_MEMORY", "lots")
    with pytest.raises(InvalidRequest, match=f"INGLE_LIMIT_MEMORY is 'lots', which is not {wanted}"):
        load()
    monkeypatch.delenv("INGLE_LIMIT_MEMORY")
    config.write_text('wait = "soon"')
    with pytest.raises(InvalidRequest, match=r"wait in .*config.toml is 'soon', which is not a time such as 90s"):
        load()


@pytest.mark.parametrize("command", [["serve", "--until-eof", "--port", "0"], ["run", "1"]], ids=["serve", "run"])
def test_unknown_variables_are_named_with_the_nearest_known_one(config: Path, command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", *command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "INGLE_ISOLATON": "sandbox", "INGLE_APPLES": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in ended.stderr.splitlines() if "has no effect" in line] == [
        "ingle: the environment variable INGLE_APPLES is not known and has no effect; "
        "`ingle config` lists the settings",
        "ingle: the environment variable INGLE_ISOLATON is not known and has no effect; did you mean INGLE_ISOLATION?",
    ]
