"""The layout of the tree: small folders, small modules, tests that stand alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import beside

SOURCE = Path(__file__).parents[2] / "src"

MAX_MODULES = 15
MAX_LINES = 500

LONGER: dict[str, str] = {}
"""Modules that have more lines, each with the reason. There is none."""


def modules() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in modules()}
    counts = {str(each.relative_to(SOURCE)): len(set(each.glob("*.py")) - {each / "__init__.py"}) for each in folders}
    assert {name: count for name, count in counts.items() if count > MAX_MODULES} == {}


def test_no_module_is_too_long_without_a_reason() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text("utf-8").splitlines()) for path in SOURCE.rglob("*.py")
    }
    assert {name for name, length in lengths.items() if length > MAX_LINES} == set(LONGER)


def test_the_map_names_every_module_in_a_few_words() -> None:
    """ARCHITECTURE.md has one table per folder. `client/sync` is generated and has none."""
    found: dict[str, str] = {}
    folder = ""
    for line in beside("ARCHITECTURE.md").read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"### `(.*)/`", line):
            folder = heading[1]
        elif line.startswith("## "):
            folder = ""
        elif folder and (row := re.fullmatch(r"\| `(\w+)` \| (.*) \|", line)):
            found[f"{folder}/{row[1]}"] = row[2]
    names = {str(path.relative_to(SOURCE).with_suffix("")) for path in modules()}
    assert set(found) == {name for name in names if not name.startswith("ingle/client/sync/")}
    assert {name: words for name, words in found.items() if len(words.split()) > 12} == {}


PLACES = re.compile(r"`((?:\w+/)+\w+|\w+)(?:\.(\w+))?(?:\(\))?`")


def test_what_the_map_says_about_additions_and_decisions_is_there() -> None:
    """A name in these tables is that of a module, with `.name` of something in it."""
    text = beside("ARCHITECTURE.md").read_text("utf-8")
    tables = text[text.index("## Where to add something") : text.index("## Processes")]
    places = [found for found in PLACES.finditer(tables) if "/" in found[1] or found[2] is not None]
    assert [found[0] for found in places if not is_there(*found.groups())] == []


def is_there(module: str, name: str | None) -> bool:
    for folder in (SOURCE, SOURCE / "ingle", beside("tests").parent):
        for path in (folder / f"{module}.py", folder / module / "__init__.py", folder / module):
            if path.is_dir() or path.is_file():
                return name is None or re.search(rf"\b{name}\b", path.read_text("utf-8")) is not None
    return False


@pytest.mark.parametrize("folder", ["cluster", "gpu", "soak", "web"])
def test_tests_that_run_apart_can_be_collected_apart(folder: str) -> None:
    """The Makefile has a target for each. `make test` collects all folders, where one can import from another."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run([*command, beside("tests") / folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
