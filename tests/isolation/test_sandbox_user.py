"""The sandbox of a server that an ordinary user runs: the same tests, as one who is made for it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATIENCE = 110


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; others are one already")
def test_an_ordinary_users_sessions_are_held_as_roots_are() -> None:
    with tempfile.TemporaryDirectory() as home:
        files = [str(HERE / name) for name in ("test_sandbox.py", "test_grants.py", "test_gpus.py")]
        files.append(str(HERE / "test_limits_hold.py::TestManyProcessesOfThisUser"))
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
        done = subprocess.run(
            [sys.executable, str(HERE.parent / "support" / "as_user.py"), home, *tests],
            cwd=HERE.parents[1],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
