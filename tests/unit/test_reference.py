"""The reference pages say what the code says."""

import pytest

from ingle.cli import COMMANDS
from reference.pages import DOCS, SECTIONS, WITH_SECTIONS, renewed_pages


def test_every_generated_page_is_current() -> None:
    stale = [name for name, text in renewed_pages().items() if (DOCS / name).read_text("utf-8") != text]
    assert stale == [], "run `python tools/reference`, and read the difference before you commit it"


def test_every_command_stands_in_the_page_of_the_command_line() -> None:
    page = (DOCS / "reference/cli.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"```\n$ ingle {name} --help\n" not in page] == []


def test_every_section_stands_in_a_page() -> None:
    pages = "".join((DOCS / name).read_text("utf-8") for name in WITH_SECTIONS)
    assert [name for name in SECTIONS if f"<!-- generated: {name} -->" not in pages] == []


def test_a_section_that_no_generator_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SECTIONS, "mcp-tools")
    with pytest.raises(KeyError, match="mcp-tools"):
        renewed_pages()
