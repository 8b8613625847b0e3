"""Stores of both kinds: a folder, and a bucket of a server that speaks S3."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ingle.store.store import Store, open_store
from support.object_store import bucket, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    with bucket(request.getfixturevalue("s3"), f"b-{uuid4().hex}") as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()
