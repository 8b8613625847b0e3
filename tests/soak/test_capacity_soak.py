"""Two thousand requests for sessions at once."""

from collections.abc import Callable

import pytest

from support.http_load import ask_at_once
from support.server import Server


@pytest.mark.soak
@pytest.mark.req("scale.fair")
async def test_two_thousand_requests_at_once_are_all_answered(start: Callable[..., Server]) -> None:
    await ask_at_once(start("--max-sessions", "2000"), 2000)
