"""What an installation brings: the service and no more, the libraries for cells on request, the rest for tests."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.checkout import beside

NUMERIC = {"matplotlib", "numpy", "pandas", "scikit-learn", "scipy"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each)[0] for each in requirements}


def test_the_libraries_for_cells_come_on_request() -> None:
    project = tomllib.loads(beside("pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert names(project["dependencies"]) & (names(extras["data"]) | names(extras["dev"])) == set()
    assert names(extras["data"]) >= NUMERIC


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("target", "what"), [("run", "--editable ."), ("test", "--editable '.[dev]'")])
def test_make_installs_what_a_target_needs_and_says_so_first(target: str, what: str, tmp_path: Path) -> None:
    folder = beside("Makefile").parent
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    steps = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    place = next(number for number, step in enumerate(steps) if "tools/install.py" in step)
    assert steps[place].endswith(f"tools/install.py {what}")
    assert re.fullmatch(r"echo 'installing into .* what .* needs? \(.*\)'", steps[place - 1])


def install(*what: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(beside("tools/install.py")), "--no-index", "--dry-run", *what]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_an_installation_ends_with_its_time_or_with_the_reason_of_pip() -> None:
    done = install("pip")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"installed in \d+ s\n", done.stdout)
    failed = install("ingle-of-nobody")
    assert failed.returncode != 0
    assert "No matching distribution found for ingle-of-nobody" in failed.stderr
    assert failed.stderr.endswith("ingle-of-nobody; its last lines are above\n")
