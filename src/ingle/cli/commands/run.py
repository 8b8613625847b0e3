"""`ingle run`: code, a file, or standard input, in a fresh session of its own."""

import os
import sys
import tokenize

import click

from ingle.cli.failure import Failure, plain_failures
from ingle.cli.services import Choice, find_or_choose, service_options


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
    help="Environment variable; may be repeated.",
)


def read_code(source: str) -> str:
    """The code meant by the argument: that of a file if there is one, of standard input for `-`, else itself."""
    if source == "-":
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    # By os.path, which answers False for whatever cannot be a path, however long.
    if not os.path.exists(source) or os.path.isdir(source):
        if source.endswith(".py") and not source.split()[1:]:
            raise Failure(f"there is no file {source}; name one that is there, or give the code itself")
        return source
    try:
        with tokenize.open(source) as file:  # minds the declared encoding
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise Failure(f"{source} cannot be read as Python: {error}") from None


@click.command(epilog="Example: ingle run --timeout 10 'import math; math.pi'")
@click.argument("source", metavar="CODE|FILE|-")
@click.option(
    "-s",
    "--session",
    metavar="NAME",
    help="Run it in this live session of a running service; it is made when absent, and kept.",
)
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document; stream nothing.")
@click.option("--python", metavar="PATH", help="Interpreter of the session, CPython 3.10 or later.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop the code after so long; exit code 124.")
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
    """Run code in a fresh session and show what it does, as it does it.

    The argument is code, unless it names a file, which is run then; with - the code is read from standard input. The
    session starts in this folder. Output is passed on as it comes, the last value is printed, and input() reads this
    command's standard input. Ctrl-C interrupts the code; a second one within 2 s ends the command.

    With -s the code runs in a session that is there before and after: of `ingle serve` on this machine, or at --url.

    Exit code: 0 fine, 1 the code raised, 124 timeout, 130 interrupted, 2 ingle could not run it; after sys.exit(N)
    it is N, after a crash by signal N it is 128 + N.
    """
    if session is None and choice.pid is not None:
        raise click.UsageError("--pid goes with -s NAME: without it the code runs in a session of this command")
    with plain_failures():
        code = read_code(source)
        from ingle.cli.run_local import Job, run_job

        job = Job(code, python=python, timeout=timeout, env=env, as_json=as_json, takes_stdin=source != "-")
        if session is None:
            exit_code = run_job(job)
        else:
            from ingle.cli.run_in_session import join_job

            exit_code = join_job(job, find_or_choose(choice, session), session)
    raise SystemExit(exit_code)
