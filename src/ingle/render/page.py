"""A page of output as a model reads it: the lines, numbered where some are missing between them, and how to go on."""

from ingle.events import Line, OutputPage
from ingle.render.model import TEXT_LIMIT, Hints
from ingle.render.phrases import counted
from ingle.render.truncate import Omitted

STATUS_ROOM = 300
"""Characters kept for the last lines."""


def page_text(page: OutputPage, hints: Hints | None = None, limit: int = TEXT_LIMIT) -> str:
    """The page in `limit` characters. What does not fit is read with the call that the last line names."""
    hints = hints or Hints()
    room = limit - STATUS_ROOM
    shown: list[str] = []
    numbers: list[int] = []
    following = page.next_line
    for line in page.lines:
        text = _numbered(line) if page.matches is not None else line.text
        left, offset = line.left, line.next_offset
        if len(text) > room:
            if shown:
                following = line.number
                break
            # Cleaning never makes a text longer, so what is not shown begins here or later in the raw line.
            left, offset = left + len(text) - room, line.offset + room - (len(text) - len(line.text))
            text = text[:room]
        shown.append(text)
        numbers.append(line.number)
        room -= len(text) + 1
        if left:
            call = hints.read_output(page, page.stream, Omitted(line.number, 0, left, offset))
            shown.append(f"… {counted(left, 'more character')} on line {line.number}: {call} …")
            room -= len(shown[-1]) + 1
    return "\n".join([*shown, _status(page, hints, numbers, following)])


def _numbered(line: Line) -> str:
    return f"{line.number}{'-' if line.context else ':'} {line.text}"


def _status(page: OutputPage, hints: Hints, numbers: list[int], following: int | None) -> str:
    words = [f"cell {page.cell}", page.stream]
    if page.matches is not None and not numbers:
        words.append("no match")
    elif not numbers:
        words.append("no more lines" if page.follow_line > 1 else "no lines")
    else:
        words.append(f"lines {numbers[0]} to {numbers[-1]}" if numbers[0] != numbers[-1] else f"line {numbers[0]}")
    if following is not None:
        call = hints.read_output(page, page.stream, Omitted(following, int(page.matches is not None)))
        words.append(f"more: {call}")
    elif numbers:
        words.append("the end")
    if not hints.is_default(page):
        words.append(f"session {page.session_id}")
    return f"[{' · '.join(words)}]"
