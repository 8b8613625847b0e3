"""`ingle run`: runs code, a file, a module, a notebook or standard input."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ingle.cli.completion import complete_sessions
from ingle.cli.options import Quantity
from ingle.cli.services import Choice, find_or_choose, service_options
from ingle.quantities import SECONDS
from ingle.settings import LEVELS

if TYPE_CHECKING:
    from ingle.cli.job import Job


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


folder_option = click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="DIR",
    help="Let the code use this folder, DIR, or DIR:ro for reading only, and start in the first; may be repeated. "
    "With -s it is granted to all your sessions of that server, as by `ingle grant`.",
)


class ProgramCommand(click.Command):
    """Command whose options end at the program that it runs, as those of `python` do.

    After code and notebooks, which take no options of their own, its options may follow.
    """

    ENDING = ("-m", "-c")
    """Options whose value is the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in (*param.opts, *param.secondary_opts)
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-", "--"):
            if args[place] in self.ENDING:
                args = [*args[: place + 2], "--", *args[place + 2 :]]
                return super().parse_args(ctx, args)
            place += 2 if args[place] in with_value else 1
        source = args[place] if place < len(args) else "-"
        ctx.allow_interspersed_args = source != "-" and (source.endswith(".ipynb") or not os.path.isfile(source))
        return super().parse_args(ctx, args)


def make_job(source: str | None, arguments: list[str], module: str | None, code: str | None) -> "Job":
    """Return the job that the arguments of the command name."""
    from ingle.cli import job

    if module is not None and code is not None:
        raise click.UsageError("-m and -c each name what to run; use only one of them")
    given = [*([] if source is None else [source]), *arguments]
    if module is not None:
        return job.of_module(module, given)
    if code is not None:
        return job.of_code(code, given)
    if source is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("name a file or pass code, or pipe code into standard input")
        return job.of_standard_input([])
    return job.of_argument(source, arguments)


@click.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="Example: ingle run --timeout 10s 'import math; math.pi'; ingle run script.py --verbose data.csv; "
    "ingle run notebook.ipynb -o out.ipynb",
)
@click.argument("source", metavar="[CODE|FILE|NOTEBOOK|-]", required=False)
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE", help="Run a module as a program, as `python -m` does.")
@click.option("-c", "code", metavar="CODE", help="Run this code, even if a file has its name.")
@click.option(
    "-s",
    "--session",
    metavar="NAME",
    shell_complete=complete_sessions,
    help="Run in this live session of a running service; it is created if missing, and kept.",
)
@service_options
@click.option("-o", "--output", metavar="FILE", help="Write the executed notebook with its outputs to this file.")
@click.option("--keep-going", is_flag=True, help="Run all cells of a notebook, also after an error.")
@click.option("--figures", metavar="DIR", help="Save the images that the code shows in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document; stream nothing.")
@click.option("--durable", is_flag=True, help="With -s: save a new session after each cell, for a restart.")
@folder_option
@click.option("--python", metavar="PATH", help="Use this interpreter, CPython 3.10 or later.")
@click.option("--environment", metavar="NAME", help="Use this environment, made by `ingle env create`.")
@click.option(
    "--isolation",
    type=click.Choice(LEVELS),
    help="Confine the code at this level. Default: $INGLE_ISOLATION, else none; with -s, the level of the service.",
)
@click.option(
    "--timeout",
    type=Quantity(SECONDS),
    help="Stop the code, or each cell of a notebook, after this time, with exit code 124.",
)
@env_option
def run(
    source: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    code: str | None,
    session: str | None,
    choice: Choice,
    output: str | None,
    keep_going: bool,
    figures: str | None,
    as_json: bool,
    durable: bool,
    folders: tuple[str, ...],
    python: str | None,
    environment: str | None,
    isolation: str | None,
    timeout: float | None,
    env: dict[str, str],
) -> None:
    """Run code in a fresh session and show its output as it comes.

    The first argument is a file, a notebook or code; with -, or from a pipe, the code is read from standard input. A
    file runs as with `python`: the arguments after it are its own (sys.argv), and sys.exit() ends it. A notebook runs
    cell by cell until an error. The session starts in this folder, or in the first --folder. The value of the
    last expression of code is printed, and input() reads this command's standard input. Ctrl-C interrupts the code; a
    second one within 2 s ends the command. Options go before the file.

    The code is not confined: like `python`, it has all your files and your network. --isolation sandbox confines it to
    this folder, or to the folders of --folder, and to the package index. The variable INGLE_ISOLATION does that for
    every run.

    With -s the code runs in an existing or new session that is kept: of `ingle serve` on this machine, or at --url. The
    service confines it.

    Exit code: 0 ok, 1 the code raised, 124 timeout, 130 interrupted, 2 ingle could not run it; N after sys.exit(N),
    128 + N after a crash by signal N.
    """
    if session is None and choice.pid is not None:
        raise click.UsageError("--pid needs -s NAME; without it the code runs in a new session of this command")
    if session is None and durable:
        raise click.UsageError("--durable needs -s NAME; without it the session ends with this command")
    job = make_job(source, list(arguments), module, code)
    if job.notebook is None and (output is not None or keep_going):
        raise click.UsageError("-o and --keep-going are for notebooks")
    job = replace(
        job,
        python=python,
        environment=environment,
        isolation=isolation,
        timeout=timeout,
        env=env,
        as_json=as_json,
        figures=figures,
        keep_going=keep_going,
        output=output,
        durable=durable,
        folders=folders,
    )
    if session is None:
        from ingle.cli.run_local import run_job

        exit_code = run_job(job)
    else:
        from ingle.cli.run_in_session import run_in_session

        exit_code = run_in_session(job, find_or_choose(choice, session), session)
    raise SystemExit(exit_code)
