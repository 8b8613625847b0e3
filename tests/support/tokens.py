"""Tokens, made by `ingle token`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from support.server import PATIENCE, Server


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


def client_with(server: Server, token: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
