"""`ingle run`: runs code, a file, or standard input in a fresh session."""

import os
import sys
import tokenize

import click

from ingle.cli.failure import Failure, plain_failures
from ingle.cli.options import Quantity
from ingle.cli.services import Choice, find_or_choose, service_options
from ingle.quantities import SECONDS


def parse_assignments(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    env = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        env[name] = value
    return env


env_option = click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_assignments,
    help="Set an environment variable; may be repeated.",
)


def read_code(source: str) -> str:
    """Return the code of the argument: of a file if it exists, of standard input for `-`, or else itself."""
    if source == "-":
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    # os.path returns False for text that cannot be a path, however long.
    if not os.path.exists(source) or os.path.isdir(source):
        if source.endswith(".py") and not source.split()[1:]:
            raise Failure(f"there is no file {source}; name an existing one, or pass the code itself")
        return source
    try:
        with tokenize.open(source) as file:  # respects the declared encoding
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise Failure(f"{source} cannot be read as Python: {error}") from None


@click.command(epilog="Example: ingle run --timeout 10 'import math; math.pi'")
@click.argument("source", metavar="CODE|FILE|-")
@click.option(
    "-s",
    "--session",
    metavar="NAME",
    help="Run in this live session of a running service; it is created if missing, and kept.",
)
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document; stream nothing.")
@click.option("--python", metavar="PATH", help="Use this interpreter, CPython 3.10 or later.")
@click.option("--timeout", type=Quantity(SECONDS), help="Stop the code after this time, with exit code 124.")
@env_option
def run(
    source: str,
    session: str | None,
    choice: Choice,
    as_json: bool,
    python: str | None,
    timeout: float | None,
    env: dict[str, str],
) -> None:
    """Run code in a fresh session and show its output as it comes.

    The argument is code or the name of a file; with - the code is read from standard input. The session starts in this
    folder. The last value is printed, and input() reads this command's standard input. Ctrl-C interrupts the code; a
    second one within 2 s ends the command.

    With -s the code runs in an existing or new session that is kept: of `ingle serve` on this machine, or at --url.

    Exit code: 0 ok, 1 the code raised, 124 timeout, 130 interrupted, 2 ingle could not run it; N after sys.exit(N),
    128 + N after a crash by signal N.
    """
    if session is None and choice.pid is not None:
        raise click.UsageError("--pid needs -s NAME; without it the code runs in a new session of this command")
    with plain_failures():
        code = read_code(source)
        from ingle.cli.run_local import Job, run_job

        job = Job(code, python=python, timeout=timeout, env=env, as_json=as_json, takes_stdin=source != "-")
        if session is None:
            exit_code = run_job(job)
        else:
            from ingle.cli.run_in_session import run_in_session

            exit_code = run_in_session(job, find_or_choose(choice, session), session)
    raise SystemExit(exit_code)
