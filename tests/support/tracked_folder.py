"""A service whose sessions start in tracked folders, and cells that must succeed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ingle.service import Service
from support.service import make_settings


@asynccontextmanager
async def serving(home: Path, *folders: str, kind: str = "local", **settings: Any) -> AsyncIterator[Service]:
    """Provide a service with these folders, each with `:tracked` or `:shared`."""
    settings = {"preload": [], "pool": 1, "exit_grace": 20.0, "folder": list(folders), "mount": [], **settings}
    async with Service.local(make_settings(**settings), home, kind) as service:
        yield service


async def say(service: Service, code: str, sid: str = "main") -> str:
    """Run a cell. Return what it prints."""
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout.strip()
