"""A tracked folder, and a session in it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ingle.service import Service
from support.tracked_folder import serving


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def tracking() -> dict[str, Any]:
    """Further settings of the service of `tracked`."""
    return {}


@pytest.fixture
async def tracked(home: Path, mark: str, project: Path, tracking: dict[str, Any]) -> AsyncIterator[Service]:
    """A service with one session, in a tracked folder."""
    async with serving(home, f"{project}:tracked", **tracking) as service:
        await service.create_session("main")
        yield service
