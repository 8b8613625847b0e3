"""`ingle sh`: runs one shell command as a task."""

import click

from ingle.cli.commands.run import env_option
from ingle.cli.completion import complete_sessions
from ingle.cli.options import Quantity
from ingle.cli.services import Choice, find_session, service_options
from ingle.quantities import SECONDS


@click.command(epilog="Example: ingle sh --timeout 10s 'make test'; ingle sh -s main 'ls -l'")
@click.argument("command")
@click.option(
    "-s",
    "--session",
    metavar="NAME",
    shell_complete=complete_sessions,
    help="Run in the folder, environment and sandbox of this live session.",
)
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print the task as one JSON document; stream nothing.")
@click.option("--timeout", type=Quantity(SECONDS), help="Stop the command after this time, with exit code 124.")
@click.option("--pty", is_flag=True, help="Give the command a terminal, for programs that need one; not with -s.")
@env_option
def sh(
    command: str,
    session: str | None,
    choice: Choice,
    as_json: bool,
    timeout: float | None,
    pty: bool,
    env: dict[str, str],
) -> None:
    """Run a shell command and show its output as it comes.

    It runs in this folder, or with -s in the current folder of a session. Standard input is passed on unless it is a
    terminal; with --pty it is passed on key by key. Ctrl-C interrupts the command; a second one within 2 s ends it.
    Processes that it leaves running end with it. Without -s it is not confined; INGLE_ISOLATION=sandbox confines it.

    Exit code: that of the command; 124 timeout, 128 + N after signal N, 2 ingle could not run it.
    """
    if session is None and choice.pid is not None:
        raise click.UsageError("--pid needs -s NAME; without it the command runs in this folder")
    if session is not None and pty:
        raise click.UsageError("--pty has no effect on a task of a session; leave -s or --pty out")
    from ingle.cli.shell_task import Job, run_job

    job = Job(command, timeout=timeout, env=env, pty=pty, as_json=as_json)
    if session is None:
        exit_code = run_job(job)
    else:
        from ingle.cli.shell_in_session import run_in_session

        exit_code = run_in_session(job, find_session(choice, session), session)
    raise SystemExit(exit_code)
