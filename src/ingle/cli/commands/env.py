"""`ingle env`: named environments of the data folder, which every server on it offers."""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingle.cli.echo import echo, echo_json
from ingle.cli.failure import Failure
from ingle.cli.options import VerbGroup, json_option
from ingle.cli.services import Choice, find_targets, list_sessions
from ingle.errors import EnvironmentInUse, Unreachable
from ingle.settings import data_folder

if TYPE_CHECKING:
    from ingle.environments.shapes import NewEnvironment

FILES = ("pyproject.toml", "uv.lock", "poetry.lock", "pdm.lock", "pylock.toml")
"""Names of files that are read where a package is expected."""

python_option = click.option("--python", default="", metavar="3.12|PATH", help="Version or path of its interpreter.")
file_option = click.option(
    "-r",
    "--requirement",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requirements file, pyproject.toml or lock file; may be repeated.",
)


@click.group(cls=VerbGroup, epilog="Example: ingle env create data --python 3.12 numpy pandas scikit-learn")
def env() -> None:
    """Manage environments: interpreters with packages, for sessions that ask for them by name.

    Sessions can read an environment and not change it. Use one with `ingle run --environment NAME`. `new`, `ls` and
    `rm` are the same as `create`, `list` and `remove`.
    """


@env.command(epilog="Example: ingle env create data --python 3.12 numpy pandas")
@click.argument("name")
@click.argument("packages", nargs=-1, metavar="[PACKAGE]...")
@python_option
@file_option
@json_option
def create(name: str, packages: tuple[str, ...], python: str, files: tuple[Path, ...], as_json: bool) -> None:
    """Create an environment with these packages."""
    from ingle.environments.store import Store

    if name in Store(data_folder()).names():
        raise Failure(f"there is an environment {name!r} already; update it with `ingle env update {name}`")
    _build(name, _request(packages, python, files), as_json)


@env.command(epilog="Example: ingle env update data polars")
@click.argument("name")
@click.argument("packages", nargs=-1, metavar="[PACKAGE]...")
@python_option
@file_option
@json_option
def update(name: str, packages: tuple[str, ...], python: str, files: tuple[Path, ...], as_json: bool) -> None:
    """Build an environment anew, with the newest versions, and with these packages added.

    Sessions that run keep the packages they have. If the build fails, the environment stays as it is.
    """
    from ingle.environments.build import merged
    from ingle.environments.store import Store

    before = Store(data_folder()).read(name).made_from
    _build(name, merged(before, _request(packages, python, files)), as_json)


@env.command("list", epilog="Example: ingle env list --json")
@json_option
def list_environments(as_json: bool) -> None:
    """List the environments."""
    from ingle.environments.store import Store
    from ingle.nodes.environments import describe

    records = Store(data_folder()).all()
    if as_json:
        echo_json({"environments": [describe(record) for record in records]})
        return
    if not records:
        echo("There is no environment yet; create one with `ingle env create NAME PACKAGE...`", err=True)
    for record in records:
        asked = ", ".join(describe(record).requested) or "no packages"
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created_at))
        echo(f"{record.name:20} Python {record.python:8} {made}  {len(record.packages)} packages: {asked}")


@env.command(epilog="Example: ingle env remove data")
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove an environment that no session uses."""
    from ingle.environments.store import Store

    try:
        Store(data_folder()).remove(name)
    except EnvironmentInUse as error:
        users = _sessions_with(name)
        if not users:
            raise
        raise Failure(
            f"sessions use the environment {name!r}: {', '.join(users)}; end each with `ingle stop SESSION`, or "
            "update it: sessions that run keep the packages they have"
        ) from error
    if as_json:
        echo_json({"deleted": name})


def _sessions_with(name: str) -> list[str]:
    """Return the sessions on this machine that use an environment. Servers that do not answer are left out."""
    users = []
    for target in find_targets(Choice(None, None, None)):
        with contextlib.suppress(Unreachable):
            users += [each["session_id"] for each in list_sessions(target) if each.get("environment") == name]
    return sorted(users)


def _request(packages: tuple[str, ...], python: str, files: tuple[Path, ...]) -> "NewEnvironment":
    from ingle.environments.recipe import with_file
    from ingle.environments.shapes import NewEnvironment

    named = [each for each in packages if Path(each).name in FILES and Path(each).is_file()]
    new = NewEnvironment(python=python, packages=[each for each in packages if each not in named])
    for file in (*map(Path, named), *files):
        new = with_file(new, file)
    return new


def _build(name: str, new: "NewEnvironment", as_json: bool) -> None:
    from ingle.cli.options import load_settings
    from ingle.environments.build import Build
    from ingle.environments.store import Store
    from ingle.nodes.environments import describe

    began = time.monotonic()
    progress = Progress()
    try:
        record = Build(Store(data_folder()), name, new, python=load_settings({}).python, tell=progress.tell).run()
    finally:
        progress.clear()
    if as_json:
        echo_json(describe(record))
    else:
        echo(
            f"{name}: Python {record.python} with {len(record.packages)} packages, "
            f"built in {time.monotonic() - began:.0f} s. Use it with `ingle run --environment {name}`."
        )


class Progress:
    """Steps of a build on standard error: one line that changes on a terminal, else a line for each."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._length = 0

    def tell(self, text: str) -> None:
        if self._terminal:
            shown, before = text[:100], self._length
            self._length = len(shown)
            echo(f"\r{shown.ljust(before)}", err=True, nl=False)
        else:
            echo(text, err=True)

    def clear(self) -> None:
        if self._terminal:
            echo("\r" + " " * self._length + "\r", err=True, nl=False)
