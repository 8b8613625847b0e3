"""Tokens, made by `ingle token`."""

from __future__ import annotations

from pathlib import Path

import httpx
from click.testing import CliRunner

from ingle.cli import main
from support.server import PATIENCE, Server


def ingle_token(home: Path, *args: str, code: int = 0) -> str:
    """Run `ingle token` in this process. Return what it printed, or for another exit code the reason."""
    ended = CliRunner().invoke(main, ["token", *args], env={"INGLE_HOME": str(home)})
    assert ended.exit_code == code, ended.stderr
    return ended.stdout.strip() if code == 0 else ended.stderr


def client_with(server: Server, token: str) -> httpx.Client:
    return httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE, verify=False
    )
