"""Files that name the packages of an environment: requirements, `pyproject.toml` and lock files.

A lock file names packages for every platform. So its versions constrain the dependencies of the project beside it,
and pip decides which of them this machine needs.
"""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ingle.environments.shapes import NewEnvironment
from ingle.errors import InvalidRequest

PROJECT = "pyproject.toml"
LOCKS = ("uv.lock", "poetry.lock", "pdm.lock")
"""Lock files that need the project beside them."""

STANDARD_LOCK = "pylock.toml"


def with_file(new: NewEnvironment, file: Path) -> NewEnvironment:
    """Return the request with the packages that the file names. Blocks."""
    if file.name == PROJECT:
        return _add(new, _dependencies(file))
    if file.name in LOCKS:
        pins = [f"{name}=={version}" for name, version in _locked(file)]
        return _add(new, _dependencies(file.with_name(PROJECT)), pins)
    if file.name == STANDARD_LOCK or (file.name.startswith("pylock.") and file.suffix == ".toml"):
        return _add(new, [_pinned(each) for each in _tables(_read(file), "packages", file)])
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}; name a file of requirements") from None
    return msgspec.structs.replace(new, requirements=f"{new.requirements}{text}\n")


def _add(new: NewEnvironment, packages: list[str], pins: list[str] | None = None) -> NewEnvironment:
    constraints = "".join(f"{pin}\n" for pin in pins or [])
    return msgspec.structs.replace(
        new, packages=[*new.packages, *packages], constraints=f"{new.constraints}{constraints}"
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from None


def _dependencies(file: Path) -> list[str]:
    project = _read(file).get("project")
    found = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(found, list):
        raise InvalidRequest(f"{file} has no list `dependencies` in its table `project`; name the packages themselves")
    return [str(each) for each in found]


def _tables(document: dict[str, Any], name: str, file: Path) -> list[dict[str, Any]]:
    tables = document.get(name)
    if not isinstance(tables, list) or not all(isinstance(each, dict) and "name" in each for each in tables):
        raise InvalidRequest(f"{file} has no tables `{name}`; is it a lock file?")
    return tables


def _locked(file: Path) -> list[tuple[str, str]]:
    """Return the packages with one version. Of several versions, markers decide, which pip does not read here."""
    tables = [each for each in _tables(_read(file), "package", file) if "version" in each]
    count = Counter(each["name"] for each in tables)
    return [(each["name"], each["version"]) for each in tables if count[each["name"]] == 1]


def _pinned(package: dict[str, Any]) -> str:
    version = f"=={package['version']}" if "version" in package else ""
    marker = f" ; {package['marker']}" if "marker" in package else ""
    return f"{package['name']}{version}{marker}"
