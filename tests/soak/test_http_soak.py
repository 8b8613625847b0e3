"""The HTTP API at its full load, and against a fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.document import DOCUMENT_FLAGS, assert_document_holds
from support.http_load import stream_from_many
from support.server import Server

pytestmark = pytest.mark.soak


async def test_two_hundred_sessions_and_twenty_thousand_cells(start: Callable[..., Server]) -> None:
    figures = await stream_from_many(start(), sessions=200, executes=20_000)
    print({name: f"{seconds * 1000:.1f} ms" for name, seconds in figures.items()})


@pytest.mark.req("http.problems", "safe.input")
def test_the_server_does_what_its_document_says_whatever_a_fuzzer_makes_up(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    flags = ("--phases", "fuzzing", "--max-examples", "30")
    assert_document_holds(start(*DOCUMENT_FLAGS), tmp_path, *flags, patience=600.0)
