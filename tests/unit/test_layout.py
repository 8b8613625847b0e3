"""The layout of the source tree: small folders, small modules."""

from pathlib import Path

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
