"""Text of commands on standard output and standard error.

Sessions write much of that text. A terminal would take some of it as orders: to set its title, to fill the clipboard,
to clear the screen, to answer as if the user typed. So a terminal gets colours, and no other control sequence. Files
and pipes get the text as it is.
"""

import os
import re
import sys
from typing import Any

import click

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")

_CONTROL = re.compile(
    r"(\x1b\[[0-9;:]*m)"
    # Any other control sequence, also one that is broken off.
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"
    # Titles, links, clipboards, images: up to their terminator, or else to the end of the line.
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # 8-bit forms. Text that was decoded wrongly has these characters too, so one that is broken off is one character.
    r"|\x9b[0-?]*[ -/]*[@-~]|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c\n\x90\x98\x9d-\x9f]*(?:\x07|\x1b\\|\x9c)"
    # Short sequences, and single control characters. Progress bars need the carriage return and the backspace.
    r"|\x1b[ -/]*[0-~]?|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)

_BROKEN_OFF = re.compile(r"\x1b(?:\[[0-9;:]{0,30})?\Z")
"""Start of a colour that the next piece of a stream may complete."""

RESET = "\x1b[0m"


def colours_only(text: str) -> str:
    """Return the text without control sequences and characters, except colours and those of simple layout."""
    return _CONTROL.sub(lambda found: found[1] or "", text)


def echo(text: str | bytes = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that a session may have written, whole or as a line."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None and stream.isatty():
        text = colours_only(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
        if _COLOUR.search(text):
            # Or the text after this one, of the user's own shell too, would have the last colour.
            text += RESET
        text = text.encode("utf-8", "replace").decode()
    click.echo(text, nl=nl, err=err)


def echo_json(value: Any) -> None:
    """Print one JSON document on a line."""
    import msgspec

    echo(msgspec.json.encode(value))


def tell(value: Any, sentence: str, as_json: bool) -> None:
    """Print an answer: as a sentence for people, or as JSON for programs."""
    if as_json:
        echo_json(value)
    else:
        echo(sentence)


def show(text: str, end: str = "\n") -> None:
    """Print text beside a prompt, which has put a stream of its own in the place of standard output."""
    print(text, end=end, flush=True)


def order(sequence: str) -> None:
    """Give the terminal on standard output an order of the command itself."""
    sys.stdout.write(sequence)
    sys.stdout.flush()


def clear_line() -> None:
    """Clear the line of progress on standard error, which must be a terminal."""
    click.echo("\r\x1b[K", err=True, nl=False)


class TextPieces:
    """Output of a session that comes in pieces, for one of the command's descriptors."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._terminal = os.isatty(fd)
        self._held = ""

    def echo(self, text: str) -> None:
        """Print a piece."""
        click.echo(self.encode(text), nl=False, err=self._fd == 2)

    def encode(self, text: str) -> bytes:
        """Return what may be written now. A colour that is broken off waits for the next piece."""
        if not self._terminal:
            return text.encode("utf-8", "surrogateescape")
        text = self._held + text
        broken = _BROKEN_OFF.search(text)
        self._held = broken[0] if broken else ""
        # Bytes that are no text are not passed on: together with those of another stream they could make an escape.
        return colours_only(text[: len(text) - len(self._held)]).encode("utf-8", "replace")


def echo_change(said: dict[str, Any]) -> None:
    """Print the notice of a rollback, commit or adoption, and which files that changed."""
    import msgspec

    from ingle.files import FileChanges
    from ingle.render.model import files_line

    echo(said["notice"])
    files = files_line(msgspec.convert(said["files"], FileChanges | None))
    if files:
        echo(files)
