"""Events of a session as lines of a terminal: cells of this terminal as they are, those of others dimmed."""

import asyncio

from ingle.cli.echo import RESET, colours_only
from ingle.cli.live.pictures import Pictures
from ingle.client.decode import Event
from ingle.events import (
    DisplayShown,
    Done,
    ErrorRaised,
    MimeBundle,
    Note,
    Notice,
    ResultShown,
    StateChanged,
    Stderr,
    Stdout,
)
from ingle.render.export import author_text
from ingle.render.mime import text_of
from ingle.render.phrases import duration

DIM = "\x1b[2m"

MAX_OPEN_CHARS = 10_000
"""Longest line that waits for its end."""


class Screen:
    """Text of events. A line without an end is held back as `open_line`, since the prompt shows it."""

    def __init__(self, pictures: Pictures, *, colours: bool = True) -> None:
        self._pictures = pictures
        self._colours = colours
        self.open_line = ""
        """The last line of output so far: a progress bar, or the prompt of `input()`."""

    async def text(self, event: Event, *, own: bool) -> str:
        """Return what to print for an event. All of it ends with a line end."""
        shown = await self._text(event, own)
        if not own and shown and self._colours:
            shown = "".join(f"{DIM}{line}{RESET}\n" for line in shown.splitlines())
        return shown

    async def _text(self, event: Event, own: bool) -> str:
        match event:
            case Stdout() | Stderr():
                return self._lines(event.text)
            case StateChanged(state="running") if event.code is not None and not own:
                code = "".join(f"│ {line}\n" for line in colours_only(event.code).rstrip("\n").split("\n"))
                return f"{self.end_line()}── cell {event.cell} ── {colours_only(author_text(event.author))}\n{code}"
            case ResultShown() | DisplayShown():
                return self.end_line() + await self._bundle(event.data)
            case ErrorRaised():
                return self.end_line() + colours_only(event.traceback).rstrip("\n") + RESET + "\n"
            case Notice() | Note():
                return f"{self.end_line()}ingle: {colours_only(event.text)}\n"
            case Done():
                return self.end_line() + self._ended(event, own)
        return ""

    def _lines(self, text: str) -> str:
        """Return the lines that have ended. A carriage return begins the open line anew."""
        *whole, rest = colours_only(self.open_line + text).replace("\r\n", "\n").split("\n")
        if len(rest) > MAX_OPEN_CHARS:
            whole, rest = [*whole, rest], ""
        self.open_line = rest.rpartition("\r")[2] if not rest.endswith("\r") else rest[:-1].rpartition("\r")[2]
        return "".join(f"{line.rpartition(chr(13))[2]}{RESET if chr(27) in line else ''}\n" for line in whole)

    def end_line(self) -> str:
        """Return the open line with an end."""
        line, self.open_line = self.open_line, ""
        return f"{line}\n" if line else ""

    async def _bundle(self, bundle: MimeBundle) -> str:
        picture = await asyncio.to_thread(self._pictures.show, bundle)
        return picture if picture is not None else colours_only(text_of(bundle)).rstrip("\n") + "\n"

    def _ended(self, event: Done, own: bool) -> str:
        result = event.result
        lines = [f"ingle: {colours_only(notice)}\n" for notice in result.notices]
        if result.exit is not None:
            lines.append(f"ingle: the cell ended the process: {colours_only(result.exit.message or '')}\n")
        if not own:
            lines.append(f"── cell {event.cell}: {result.status} after {duration(result.execution_time)}\n")
        return "".join(lines)
