"""`ingle mcp`: the server that hosts such as Claude, Cursor or VS Code start."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingle.cli.commands.serve import option_of
from ingle.cli.echo import echo
from ingle.cli.options import GroupedCommand, load_settings
from ingle.settings import Settings, data_folder

if TYPE_CHECKING:
    from ingle.service import Service

NOT_FOR_STDIO = ("host", "port", "allowed_hosts", "auth", "max_connections", "compat", "e2b_debug", "stop_grace")
"""Settings of the HTTP server."""


def session_options(command: Any) -> Any:
    """Add the settings that concern sessions as options."""
    for setting in reversed(fields(Settings)):
        if setting.name not in NOT_FOR_STDIO:
            command = option_of(setting)(command)
    return command


@asynccontextmanager
async def local_socket(service: "Service", home: Path, kind: str) -> AsyncIterator[Path]:
    """Open the socket in `run/`, through which `ps`, `logs` and others find this server."""
    from ingle.mcp.stdio import lazy_import

    # In a thread, because the event loop has to answer the host's first requests.
    server = await lazy_import.load("ingle.http.server")
    async with server.local_listener(service, home, kind) as path:
        yield path


@click.command(cls=GroupedCommand, epilog="Example: ingle mcp --tools core")
@session_options
def mcp(**given: Any) -> None:
    """Serve one MCP host over standard input and output.

    Hosts start this command themselves; configure them with `ingle install HOST`. Sessions start in the first --folder,
    or else in the folder in which it was started, and end with it. The root, the home folder and a folder that overlaps
    ingle's data are not granted by themselves: there each session starts in a folder of its own.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        echo("ingle mcp waits for messages of a host; configure one with `ingle install HOST`.", err=True)
        echo("Ctrl-D ends it.", err=True)
    from ingle.mcp.stdio.main import run
    from ingle.mcp.tools import chosen

    settings = load_settings(given)
    run(settings, data_folder(), chosen(settings.tools), local_socket)
