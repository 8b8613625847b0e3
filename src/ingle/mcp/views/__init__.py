"""Views of MCP Apps: pages that a host shows beside the result of a tool.

A view is one file without requests to anywhere. It gets the arguments and the result from its host, and puts text into
the page as text. HTML of a cell is in a frame without rights.
"""

from dataclasses import dataclass
from functools import cache

MIME = "text/html;profile=mcp-app"

EXTENSION = "io.modelcontextprotocol/ui"
"""Name of the extension in the capabilities of a host."""


@dataclass(frozen=True)
class View:
    name: str
    title: str
    tools: tuple[str, ...]
    """Tools whose results it shows."""

    @property
    def uri(self) -> str:
        return f"ui://ingle/{self.name}"


VIEWS = (
    View("cell", "Cell", ("python_session", "python", "wait", "send_input", "interrupt")),
    View("variables", "Variables", ("get_session_namespace",)),
)

BY_TOOL = {tool: view for view in VIEWS for tool in view.tools}


@cache
def page(name: str) -> str:
    """Return the page of a view."""
    # Imported here, because the start of `ingle mcp` needs no view.
    from importlib.resources import files

    names = ("view.css", "bridge.js", f"{name}.js")
    style, bridge, script = (files(__name__).joinpath(each).read_text("utf-8") for each in names)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>ingle</title>\n'
        f'<style>\n{style}</style>\n</head>\n<body>\n<main id="view"></main>\n'
        f"<script>\n{bridge}{script}</script>\n</body>\n</html>\n"
    )
