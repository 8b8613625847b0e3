"""What the tests on a real GPU share: which interpreter has torch, at which levels they run, and a service.

`INGLE_TORCH_PYTHON` names an interpreter that has torch; the default is the one that runs the tests.
"""

import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.events import Result
from ingle.isolation import gpus
from ingle.service import Service
from support.service import make_settings

PYTHON = os.environ.get("INGLE_TORCH_PYTHON", sys.executable)
LEVELS = ("none", "sandbox")


@functools.cache
def has_torch() -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


needs_gpu = [
    pytest.mark.skipif(gpus.find().driver != gpus.NVIDIA, reason="this machine has no GPU of NVIDIA"),
    pytest.mark.skipif(not has_torch(), reason=f"{PYTHON} has no torch; name another by INGLE_TORCH_PYTHON"),
]


@asynccontextmanager
async def serving(home: Path, level: str, **given: Any) -> AsyncIterator[Service]:
    settings = make_settings(
        **{"preload": ["torch"], "pool": 1, "python": PYTHON, "isolation": level, "gpu": "all"}
        | {"limit_memory": 32 * 1024**3, "network": "none"}
        | given
    )
    made = Service.local(settings, home)
    try:
        await made.start()
    except errors.IsolationUnavailable as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        await made.stop()


async def run(service: Service, code: str, session: str = "s") -> Result:
    result = await service.execute(session, code, wait=100)
    assert result.status == "ok", result.error
    return result
