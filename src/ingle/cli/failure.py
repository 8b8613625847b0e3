"""Errors of ingle on the command line: one plain sentence, and exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from ingle.cli.echo import echo
from ingle.errors import IngleError


class Failure(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        echo(f"ingle: {self.message}", err=True)


@contextmanager
def plain_failures() -> Iterator[None]:
    try:
        yield
    except IngleError as error:
        raise Failure(error.message) from None
    except OSError as error:
        # For example an unwritable data folder or a deleted current folder; the message names the path.
        raise Failure(str(error)) from None
