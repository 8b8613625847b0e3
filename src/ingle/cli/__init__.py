"""The command line: a command a verb. What is slow to load is loaded by the command that needs it."""

import click

from ingle import __version__
from ingle.cli.doctoring import doctor
from ingle.cli.installing import install
from ingle.cli.mcp import mcp
from ingle.cli.running import run
from ingle.cli.serving import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: ingle run 'print(6 * 7)'")
@click.version_option(__version__, "-V", "--version", prog_name="ingle", message="%(prog)s %(version)s")
def main() -> None:
    """Live Python sessions: run code in one, or serve many."""


main.add_command(doctor)
main.add_command(install)
main.add_command(mcp)
main.add_command(run)
main.add_command(serve)
