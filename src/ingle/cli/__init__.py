"""The command line. What is slow to load is loaded by the command that needs it."""

import click

from ingle import __version__
from ingle.cli.acting import interrupt, stop
from ingle.cli.doctoring import doctor
from ingle.cli.following import logs
from ingle.cli.forking import fork
from ingle.cli.installing import install
from ingle.cli.keeping import load, save
from ingle.cli.looking import config, ps, variables
from ingle.cli.mcp import mcp
from ingle.cli.running import run
from ingle.cli.serving import serve
from ingle.cli.shelling import sh
from ingle.cli.tokens import token


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: ingle run 'print(6 * 7)'")
@click.version_option(__version__, "-V", "--version", prog_name="ingle", message="%(prog)s %(version)s")
def main() -> None:
    """Live Python sessions: run code in one, or serve many."""


for command in (
    config,
    doctor,
    fork,
    install,
    interrupt,
    load,
    logs,
    mcp,
    ps,
    run,
    save,
    serve,
    sh,
    stop,
    token,
    variables,
):
    main.add_command(command)
