"""The command line. Slow imports happen in the command that needs them."""

import click

from ingle import __version__
from ingle.cli.commands.control import interrupt, stop
from ingle.cli.commands.doctor import doctor
from ingle.cli.commands.fork import fork
from ingle.cli.commands.grant import grant
from ingle.cli.commands.install import install
from ingle.cli.commands.logs import logs
from ingle.cli.commands.mcp import mcp
from ingle.cli.commands.run import run
from ingle.cli.commands.serve import serve
from ingle.cli.commands.sessions import config, ps, variables
from ingle.cli.commands.sh import sh
from ingle.cli.commands.snapshots import load, save
from ingle.cli.commands.token import token


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: ingle run 'print(6 * 7)'")
@click.version_option(__version__, "-V", "--version", prog_name="ingle", message="%(prog)s %(version)s")
def main() -> None:
    """Run Python in live sessions, or serve many sessions."""


for command in (
    config,
    doctor,
    fork,
    grant,
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
