"""Errors of ingle on the command line: one plain sentence, and exit code 2. Ctrl-C: one line, and exit code 130."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from ingle.cli.echo import echo
from ingle.errors import Busy, CheckpointNotFound, IngleError, SnapshotNotFound, TrialOpen, VariableNotFound

COMMANDS: dict[type[IngleError], str] = {
    TrialOpen: "`ingle commit SESSION`, `ingle discard SESSION`",
    Busy: "`ingle logs -f SESSION` follows it, `ingle interrupt SESSION` stops it",
    CheckpointNotFound: "`ingle checkpoint SESSION NAME` makes one, without a name it lists them",
    SnapshotNotFound: "`ingle load` without a name lists them",
    VariableNotFound: "`ingle vars SESSION` lists them",
}
"""By error: the command for its next step. The messages themselves serve all interfaces. The first that fits counts."""

SHOWN_CHARS = 20
"""Characters shown on each side of what is not UTF-8."""


class Failure(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        echo(f"ingle: {self.message}", err=True)


class Interrupted(click.ClickException):
    """Ctrl-C in a command that does nothing else on it. Exit code 1, which click gives, says that the code raised."""

    exit_code = 128 + signal.SIGINT

    def show(self, file: IO[Any] | None = None) -> None:
        if sys.stderr.isatty():
            echo(err=True)  # the terminal has shown ^C
        echo(f"ingle: {self.message}", err=True)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn errors of ingle and of the system into a plain sentence. `cli.Commands` runs every command in it."""
    try:
        yield
    except IngleError as error:
        command = next((command for kind, command in COMMANDS.items() if isinstance(error, kind)), None)
        raise Failure(f"{error.message} ({command})" if command else error.message) from None
    except (KeyboardInterrupt, click.Abort):
        raise Interrupted("interrupted") from None
    except BrokenPipeError:
        raise  # the reader of the output has closed its end: click ends quietly
    except UnicodeEncodeError as error:
        # Bytes of an argument or of standard input: JSON, paths of requests and Python's compiler take none of them.
        near = error.object[max(0, error.start - SHOWN_CHARS) : error.end + SHOWN_CHARS]
        raise Failure(f"{near!a} is not UTF-8 at character {error.start + 1}; pass text in UTF-8") from None
    except OSError as error:
        # For example an unwritable data folder or a deleted current folder; the message names the path.
        raise Failure(str(error)) from None
