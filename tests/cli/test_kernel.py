"""`ingle kernel install`: kernelspecs for the interpreter, for each environment and for a live session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("compat.jupyter")


def kernel(home: Path, prefix: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ingle", "kernel", "install", "--prefix", str(prefix), *arguments]
    env = {**os.environ, "INGLE_HOME": str(home)}
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def specs(prefix: Path) -> dict[str, tuple[str, list[str]]]:
    found = {}
    for path in (prefix / "share" / "jupyter" / "kernels").glob("*/kernel.json"):
        spec = json.loads(path.read_text())
        assert (spec["language"], spec["interrupt_mode"]) == ("python", "message")
        assert spec["argv"][:5] == [sys.executable, "-m", "ingle", "kernel", "run"]
        found[path.parent.name] = (spec["display_name"], spec["argv"][5:])
    return found


def test_a_kernel_is_installed_for_the_interpreter_or_a_session(home: Path, tmp_path: Path) -> None:
    file = ["-f", "{connection_file}"]
    done = kernel(home, tmp_path / "a")
    assert (done.returncode, done.stderr) == (0, "")
    assert specs(tmp_path / "a") == {"ingle": ("Python 3 (ingle)", file)}
    done = kernel(home, tmp_path / "b", "--session", "Main")
    assert done.stdout.startswith("ingle-session-main: session Main (ingle), in ")
    assert specs(tmp_path / "b") == {"ingle-session-main": ("session Main (ingle)", [*file, "--session", "Main"])}


def test_what_cannot_be_installed_is_told_in_a_sentence(home: Path, tmp_path: Path) -> None:
    done = kernel(home, tmp_path, "--session", "../x")
    assert done.returncode == 2
    assert "is not a name" in done.stderr
    (tmp_path / "file").write_text("")
    done = kernel(home, tmp_path / "file")
    assert done.returncode == 2
    assert "the kernel ingle cannot be installed" in done.stderr
