"""`ingle batch`: runs code once for each line of a file of inputs."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from ingle.cli.echo import clear_line, echo, echo_json
from ingle.cli.failure import Failure
from ingle.cli.options import Quantity
from ingle.cli.services import read_token
from ingle.quantities import BYTES, SECONDS
from ingle.settings import LEVELS, NETWORKS

if TYPE_CHECKING:
    from ingle.client import Item, ItemResult

ITEM_FIELDS = {"id", "input", "stdin", "files", "env"}

PROGRESS_SECONDS = 0.1
"""Least time between two updates of the progress."""


@click.command(
    epilog="Example: ingle batch score.py --inputs cases.jsonl --timeout 10s --memory 512M --json > results.jsonl"
)
@click.argument("source", metavar="CODE|FILE")
@click.option(
    "--inputs",
    type=click.File("r", "utf-8", "surrogateescape"),
    metavar="FILE",
    help="Read one input from each line, as JSON.",
)
@click.option(
    "--items",
    type=click.File("r", "utf-8", "surrogateescape"),
    metavar="FILE",
    help="Read one item from each line: a JSON object with input, stdin, files, env and id.",
)
@click.option("--concurrency", type=click.IntRange(1), help="Run so many at once. Default: two for each core.")
@click.option("--timeout", type=Quantity(SECONDS), default=300.0, show_default="5m", help="Stop each after this time.")
@click.option("--memory", type=Quantity(BYTES), help="Stop each that uses more memory than this.")
@click.option("--json", "as_json", is_flag=True, help="Print each result as a line of JSON as soon as it comes.")
@click.option(
    "--url", envvar="INGLE_URL", help="Use the service at this URL, not the one on this machine. Default: $INGLE_URL."
)
@click.option("--token-file", metavar="FILE", help="Read the token for --url from this file. Default: $INGLE_TOKEN.")
@click.option("--python", metavar="PATH", help="Use this interpreter, CPython 3.10 or later.")
@click.option("--environment", metavar="NAME", help="Use this environment, made by `ingle env create`.")
@click.option("--isolation", type=click.Choice(LEVELS), help="Isolate each at least this much.")
@click.option("--network", type=click.Choice(NETWORKS), help="Give each at most this network.")
def batch(
    source: str,
    inputs: TextIO | None,
    items: TextIO | None,
    concurrency: int | None,
    timeout: float,
    memory: float | None,
    as_json: bool,
    url: str | None,
    token_file: str | None,
    python: str | None,
    environment: str | None,
    isolation: str | None,
    network: str | None,
) -> None:
    """Run code once for each input, each time in a fresh session, and show the results in order.

    The code has its input as the variable `item`. Each line of --inputs is one input, and each line of --items one
    item, which can also have standard input, files and environment variables; - reads them from standard input. The
    sessions run in `ingle serve` on this machine, at --url, or in a service of this command. Each starts in an empty
    folder of its own. Ctrl-C ends all of them.

    Exit code: 0 all are ok, 1 some are not, 130 interrupted, 2 ingle could not run them.
    """
    given = inputs if inputs is not None else items
    if given is None or (inputs is not None and items is not None):
        raise click.UsageError("name the inputs with --inputs FILE, or whole items with --items FILE")
    if token_file is not None and url is None:
        raise click.UsageError("--token-file needs --url; a service on this machine needs no token")
    from ingle.client import Client

    report = Report(as_json)
    counted = Counted(_read_items(given, whole=items is not None))
    with Client(url, None if token_file is None else read_token(token_file)) as client:
        results = client.map(
            _read_code(source),
            counted,
            concurrency=concurrency,
            timeout=timeout,
            limits=None if memory is None else {"memory": int(memory)},
            ordered=not as_json,
            python=python,
            environment=environment,
            isolation=isolation,
            network=network,
        )
        try:
            for result in results:
                report.add(result)
        except KeyboardInterrupt:
            results.close()
            report.finish(counted)
            raise SystemExit(130) from None
    report.finish()
    raise SystemExit(0 if report.is_ok else 1)


def _read_code(source: str) -> str:
    from ingle.cli.job import names_file

    if not names_file(source):
        return source
    try:
        with open(source, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{source} cannot be read: {error}; name another file") from None


def _read_items(lines: TextIO, *, whole: bool) -> "Iterator[Item]":
    """Yield the items of a file with one JSON value on each line. Empty lines count for nothing."""
    from ingle.client import Item

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line.encode("utf-8", "surrogateescape"))
        except ValueError as error:
            raise Failure(f"line {number} of {lines.name} is not JSON: {error}; correct the line") from None
        if not whole:
            yield Item(value)
        elif isinstance(value, dict) and value.keys() <= ITEM_FIELDS:
            yield Item(**value)
        else:
            fields = ", ".join(sorted(ITEM_FIELDS))
            raise Failure(f"line {number} of {lines.name} is not an item: an object with some of {fields}")


class Counted:
    """Items that are counted as they are read. One more is read ahead, to know the last of them."""

    def __init__(self, items: "Iterator[Item]") -> None:
        self._items = items
        self._read = 0
        self._ended = False

    def __iter__(self) -> "Iterator[Item]":
        following = next(self._items, None)
        while following is not None:
            each, following = following, next(self._items, None)
            self._read += 1
            self._ended = following is None
            yield each

    def __str__(self) -> str:
        return str(self._read) if self._ended else f"{self._read} or more"


class Report:
    """Results on standard output, and the progress on standard error if that is a terminal."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: Counter[str] = Counter()
        self._began = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    @property
    def is_ok(self) -> bool:
        return set(self._counts) <= {"ok"}

    def add(self, result: "ItemResult") -> None:
        self._counts[_outcome(result)] += 1
        self._clear()
        if self._as_json:
            echo_json(result)
        else:
            echo(_text(result))
        now = time.monotonic()
        if self._terminal and now - self._shown > PROGRESS_SECONDS:
            self._shown = now
            echo(f"\r{self._summary()}", err=True, nl=False)

    def finish(self, interrupted: Counted | None = None) -> None:
        """Print what has come of the items, or of those that were given until the interrupt."""
        self._clear()
        end = " in" if interrupted is None else ", interrupted after"
        echo(f"{self._summary(interrupted)}{end} {time.monotonic() - self._began:.1f} s", err=True)

    def _summary(self, given: Counted | None = None) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self._counts.items()))
        total = sum(self._counts.values())
        whole = f"{total} item{'' if total == 1 else 's'}" if given is None else f"{total} of {given} items"
        return f"{whole}{f': {outcomes}' if outcomes else ''}"

    def _clear(self) -> None:
        if self._terminal:
            clear_line()


def _outcome(result: "ItemResult") -> str:
    """Return one word about the end of an item: a limit that it met, or else its status."""
    return result.limit or result.status


def _text(result: "ItemResult") -> str:
    """Return the item's name, its outcome and its text. Further lines are indented."""
    text = result.text if result.problem is None else result.problem.detail
    first, *others = text.splitlines() or [""]
    head = f"{result.id}  {_outcome(result)}  {first}".rstrip()
    return "\n".join([head, *(f"    {line}" for line in others)])
