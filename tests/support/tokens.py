"""Tokens, made by `ingle token`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.server import PATIENCE


def ingle_token(home: Path, *args: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "token", *args],
        env={**os.environ, "INGLE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout.strip() if code == 0 else ended.stderr
