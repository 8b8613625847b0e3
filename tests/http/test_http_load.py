"""Two hundred sessions that stream at once. The full number of cells is for `make soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.http_load import stream_from_many
from support.server import Server


@pytest.mark.req("http.stream")
async def test_a_hundred_sessions_stream_at_once_and_nothing_is_lost_doubled_or_crossed(
    start: Callable[..., Server], record_property: Callable[[str, object], None]
) -> None:
    # `make soak` has two hundred sessions, and twenty thousand executes.
    figures = await stream_from_many(start(), sessions=100, executes=1500)
    record_property("seconds", figures)
    print(figures)
