"""`ingle mcp`: for a host such as Claude, Cursor or VS Code, which starts it and speaks to it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingle.cli.commands.serve import option_of, split_words
from ingle.cli.failure import plain_failures
from ingle.settings import Settings, data_folder, load

if TYPE_CHECKING:
    from ingle.service import Service

NOT_FOR_STDIO = ("host", "port", "allowed_hosts")


def session_options(command: Any) -> Any:
    """The settings that concern sessions."""
    for setting in reversed(fields(Settings)):
        if setting.name not in NOT_FOR_STDIO:
            command = option_of(setting)(command)
    return command


@asynccontextmanager
async def local_socket(service: "Service", home: Path, kind: str) -> AsyncIterator[Path]:
    """The socket under `run/`, by which `ps`, `logs` and the others find this server too."""
    from ingle.mcp.stdio import lazy_import

    # Not in the loop, which has the host's first requests to answer at this time.
    server = await lazy_import.load("ingle.http.server")
    async with server.local_listener(service, home, kind) as path:
        yield path


@click.command(epilog="Example: ingle mcp --tools core")
@click.option(
    "--tools",
    metavar="A,B,...",
    callback=split_words,
    help="List these tools only; `core` means the eight most used.  [default: all]",
)
@session_options
def mcp(tools: list[str] | None, **given: Any) -> None:
    """Serve one MCP host over standard input and output.

    Hosts start this command by themselves: `ingle install HOST` tells them to. Sessions start in the folder in which
    it was started, and end with it.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("ingle mcp waits for a host's messages here: `ingle install HOST` tells one to start it.", err=True)
        click.echo("Ctrl-D ends it.", err=True)
    with plain_failures():
        from ingle.mcp.stdio.main import run
        from ingle.mcp.tools import chosen

        run(load(given), data_folder(), chosen(tools or ()), local_socket)
