"""What the tests with real clients share: one `ingle serve`, started by the interpreter that has ingle.

These tests run in the virtual environment of one client, which has neither ingle nor the helpers of other tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, new_token, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ingle-compat-") as folder:
        home = Path(folder) / "home"
        with running(home) as url:
            yield Server(url, (home / "token").read_text().strip(), new_token(home, "other"), home)
