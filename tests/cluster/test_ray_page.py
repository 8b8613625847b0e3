"""The page about clusters: a newcomer's run, typed as the page shows it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import doc_blocks
from support.checkout import beside
from support.doc_blocks import Page, Person, blocks_of
from support.processes import own_mark

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

NEEDS = "it needs ingle[ray]"


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    # A cluster takes some seconds to start, more beside other work.
    monkeypatch.setattr(doc_blocks, "COMMAND_SECONDS", 300.0)
    with tempfile.TemporaryDirectory(prefix="ingle-ada-") as folder:
        Path(folder).chmod(0o755)
        yield Person(Path(folder), {**own_mark(), "INGLE_PRELOAD": "", "INGLE_ISOLATION": "none"})


def test_the_page_shows_what_happens(person: Person) -> None:
    blocks = [block for block in blocks_of(beside("docs/how-to/cluster.md").read_text()) if block.reason == NEEDS]
    page = Page(person)
    try:
        for block in blocks:
            page.run(block)
    finally:
        page.run(doc_blocks.Block("console", "$ ingle cluster down 2>/dev/null\n", 0))
        page.close()
    assert len(blocks) == 4
