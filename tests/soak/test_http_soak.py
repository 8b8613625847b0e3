"""The HTTP door at its full load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.http_load import stream_from_many
from support.server import Server

pytestmark = pytest.mark.soak


async def test_two_hundred_sessions_and_twenty_thousand_cells(start: Callable[..., Server]) -> None:
    figures = await stream_from_many(start(), sessions=200, executes=20_000)
    print({name: f"{seconds * 1000:.1f} ms" for name, seconds in figures.items()})
