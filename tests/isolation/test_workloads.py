"""What people do in a session, in a sandbox: each of these runs there as it does anywhere."""

import re
import shutil
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

PRELUDE = """
import asyncio, ctypes, fcntl, math, mmap, os, pty, signal, socket, sqlite3, ssl, subprocess, tempfile, threading
import multiprocessing as mp
"""
TABLE = (Path(__file__).parent / "workloads.txt").read_text()
WORK = {name: (prints, code) for name, prints, code in re.findall(r"=== (.+)\n--> (.+)\n((?:(?!===).*\n)+)", TABLE)}
PROGRAMS = ("gcc", "git", "node", "openssl")


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=["numpy", "pandas"], pool=1, isolation="sandbox", network="none", mount=[])


async def test_a_workload_runs_in_a_sandbox(service: Service, subtests: pytest.Subtests) -> None:
    """All of them run in one session: what one leaves behind must not hurt the next."""
    await service.create_session("main")
    await service.execute("main", PRELUDE)
    for name, (prints, code) in WORK.items():
        with subtests.test(name):
            for program in PROGRAMS:
                if f"'{program}'" in code and shutil.which(program) is None:
                    pytest.skip(f"{program} is not installed")
            result = await service.execute("main", code, timeout=60)
            assert (result.status, result.stdout.strip()) == ("ok", prints), (result.error, result.stderr)


async def test_they_are_enough() -> None:
    assert len(WORK) >= 30
