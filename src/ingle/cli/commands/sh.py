"""`ingle sh`: runs one shell command as a task."""

import click

from ingle.cli.commands.run import env_option
from ingle.cli.failure import plain_failures
from ingle.cli.options import Quantity
from ingle.quantities import SECONDS


@click.command(epilog="Example: ingle sh --timeout 10 'make test'")
@click.argument("command")
@click.option("--json", "as_json", is_flag=True, help="Print the task as one JSON document; stream nothing.")
@click.option("--timeout", type=Quantity(SECONDS), help="Stop the command after this time, with exit code 124.")
@click.option("--pty", is_flag=True, help="Give the command a terminal, for programs that need one.")
@env_option
def sh(command: str, as_json: bool, timeout: float | None, pty: bool, env: dict[str, str]) -> None:
    """Run a shell command and show its output as it comes.

    It runs in this folder. Standard input is passed on unless it is a terminal; with --pty it is passed on key by key.
    Ctrl-C interrupts the command; a second one within 2 s ends it. Processes that it leaves running end with it.

    Exit code: that of the command; 124 timeout, 128 + N after signal N, 2 ingle could not run it.
    """
    with plain_failures():
        from ingle.cli.shell_task import Job, run_job

        exit_code = run_job(Job(command, timeout=timeout, env=env, pty=pty, as_json=as_json))
    raise SystemExit(exit_code)
