"""The generated pages: whole pages, and sections of pages that people write.

A section stands between two comments. The text around them is written by hand and stays:

    <!-- generated: http-operations -->
    …
    <!-- end of generated -->
"""

import re
from collections.abc import Callable
from pathlib import Path

from reference import cli, client, errors, events, http, mcp, states, system_calls

DOCS = Path(__file__).resolve().parents[2] / "docs"

WHOLE: dict[str, Callable[[], str]] = {
    "reference/errors.md": errors.page,
    "reference/events.md": events.page,
    "reference/settings.md": cli.settings_page,
    "reference/states.md": states.page,
    "reference/system-calls.md": system_calls.page,
}

SECTIONS: dict[str, Callable[[], str]] = {
    "client-names": client.names,
    "http-fields": http.fields,
    "http-operations": http.operations_table,
    "http-problems": errors.problems_table,
    "mcp-tools": mcp.tools_section,
}

WITH_SECTIONS = ("reference/client.md", "reference/http.md", "reference/mcp.md")

WITH_HELP = ("reference/cli.md",)
"""Pages with blocks of `$ ingle … --help`."""

_SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def renewed_pages() -> dict[str, str]:
    """Return the text that each generated page should have, by its path in `docs`."""
    pages = {name: make() for name, make in WHOLE.items()}
    pages |= {name: _with_sections(_read(name)) for name in WITH_SECTIONS}
    pages |= {name: cli.with_help(_read(name)) for name in WITH_HELP}
    return pages


def _read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def _with_sections(page: str) -> str:
    return _SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", page)
