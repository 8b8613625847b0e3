"""`ingle logs`: the output of a session, cell by cell."""

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ingle.cli.completion import session_argument
from ingle.cli.echo import TextPieces, echo
from ingle.cli.services import Choice, Target, find_session, service_options

if TYPE_CHECKING:
    from ingle.client import Client, Event, Session

INTERRUPTED = 130
BROKEN_PIPE = 141

MILLISECONDS_BELOW = 0.1
"""Times below this number of seconds are shown in milliseconds."""


@click.command(epilog="Example: ingle logs -f main")
@session_argument
@service_options
@click.option("-f", "--follow", is_flag=True, help="Continue with new output until the session ends or Ctrl-C.")
@click.option("-n", "--last", type=click.IntRange(0), metavar="N", help="Show only the last N cells; 0 shows none.")
@click.option("--json", "as_json", is_flag=True, help="Print the events, one JSON object per line.")
def logs(session: str, choice: Choice, follow: bool, last: int | None, as_json: bool) -> None:
    """Show the output of a session, cell by cell.

    Each cell starts with its number and its code and ends with its status. Standard error of the session goes to
    standard error of this command.
    """
    # Nothing must be undone, so Ctrl-C exits at once, even while a connection waits.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    target = find_session(choice, session)
    try:
        with make_client(target) as client:
            _show(client.session(session), follow, last, as_json)
    except BrokenPipeError:
        # The reader has closed its end. Buffered output goes to /dev/null, because flushing it would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None


def make_client(target: Target) -> "Client":
    from ingle.client import Client

    return Client(str(target.address), target.address.token, start=False)


def _show(session: "Session", follow: bool, last: int | None, as_json: bool) -> None:
    count = session.info().execution_count
    first = 1 if last is None else session.first_event(count - last + 1) if last <= count else 1
    until = None
    if not follow:
        if count == 0:
            return
        # The number of the next event marks the end of the output so far.
        until = session.first_event(count + 1) - 1
        if first > until:
            return
    printer = Printer()
    for event in session.events(first, until):
        if as_json:
            echo(_encoded(event))
        else:
            printer.print(event)


def _encoded(event: "Event") -> bytes:
    import msgspec

    from ingle.client import OtherEvent

    return msgspec.json.encode(event.fields if isinstance(event, OtherEvent) else event)


def _time(seconds: float) -> str:
    from ingle.render.phrases import duration

    return duration(seconds) if seconds >= MILLISECONDS_BELOW else f"{seconds * 1000:.1f} ms"


class Printer:
    """Prints events as text, each thing that is not output on lines of its own."""

    def __init__(self) -> None:
        self._open = {"stdout": False, "stderr": False}
        """Streams whose last line has no end yet: a prompt, or text printed with `end=""`."""
        self._streams = {"stdout": TextPieces(1), "stderr": TextPieces(2)}

    def print(self, event: "Event") -> None:
        from ingle.client import kind_of
        from ingle.client.decode import bundle_of

        kind, told = kind_of(event), event
        if kind in ("stdout", "stderr"):
            text = getattr(told, "text", "")
            self._streams[kind].echo(text)
            if text:
                self._open[kind] = not text.endswith("\n")
            return
        if kind == "state" and getattr(told, "code", None) is None:
            return
        # The answer to a prompt, which ends its line on a terminal, is not in the log.
        self._end_lines()
        if kind == "state":
            at = time.strftime("%H:%M:%S", time.localtime(event.time))
            echo(f"── cell {event.cell} ── {at}")
            for line in str(getattr(told, "code", "")).rstrip("\n").split("\n"):
                echo(f"│ {line}")
        elif kind in ("result", "display"):
            echo(bundle_of(event).get("text/plain", ""))
        elif kind == "error":
            echo(str(getattr(told, "traceback", "")).rstrip("\n"), err=True)
        elif kind == "notice":
            echo(f"ingle: {getattr(told, 'text', '')}", err=True)
        elif kind == "done":
            result: Any = getattr(told, "result", None)
            echo(f"── cell {event.cell}: {result.status} after {_time(result.execution_time)}")

    def _end_lines(self) -> None:
        for stream, unfinished in self._open.items():
            if unfinished:
                echo("", err=stream == "stderr")
                self._open[stream] = False
