"""What people do in a session, in a sandbox: each of these runs there as it does anywhere."""

import re
import shutil
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRELUDE = """
import asyncio, ctypes, fcntl, math, mmap, os, pty, signal, socket, sqlite3, ssl, subprocess, tempfile, threading
import multiprocessing as mp
"""
TABLE = (Path(__file__).parent / "workloads.txt").read_text()
WORK = {name: (prints, code) for name, prints, code in re.findall(r"=== (.+)\n--> (.+)\n((?:(?!===).*\n)+)", TABLE)}
PROGRAMS = ("gcc", "git", "node", "openssl")

SESSIONS: dict[int, str] = {}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings(preload=["numpy", "pandas"], pool=1, isolation="sandbox", network="none", mount=[])


async def session_on(service: Service) -> str:
    """One for all of them: what one leaves behind must not hurt the next."""
    if id(service) not in SESSIONS:
        SESSIONS[id(service)] = (await service.create_session()).session_id
        await service.execute(SESSIONS[id(service)], PRELUDE)
    return SESSIONS[id(service)]


@pytest.mark.parametrize("name", WORK)
async def test_it_runs_in_a_sandbox(shared: Service, name: str) -> None:
    prints, code = WORK[name]
    for program in PROGRAMS:
        if f"'{program}'" in code and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    result = await shared.execute(await session_on(shared), code, timeout=60)
    assert (result.status, result.stdout.strip()) == ("ok", prints), (result.error, result.stderr)


async def test_they_are_enough() -> None:
    assert len(WORK) >= 30
