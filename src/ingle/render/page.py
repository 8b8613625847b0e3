"""A page of output for a model: lines, numbered if some are missing between them, and the call that continues."""

from ingle.events import Line, OutputPage
from ingle.render.model import TEXT_LIMIT, Hints
from ingle.render.phrases import counted
from ingle.render.truncate import Omitted

STATUS_CHARS = 300
"""Characters reserved for the last lines."""


def page_text(page: OutputPage, hints: Hints | None = None, limit: int = TEXT_LIMIT) -> str:
    """Return the page in `limit` characters. The last line names the call that reads the rest."""
    hints = hints or Hints()
    budget = limit - STATUS_CHARS
    shown: list[str] = []
    numbers: list[int] = []
    following = page.next_line
    for line in page.lines:
        text = _numbered(line) if page.matches is not None else line.text
        left, offset = line.left, line.next_offset
        if len(text) > budget:
            if shown:
                following = line.number
                break
            # Cleaning never lengthens a text, so the hidden part starts here or later in the raw line.
            left, offset = left + len(text) - budget, line.offset + budget - (len(text) - len(line.text))
            text = text[:budget]
        shown.append(text)
        numbers.append(line.number)
        budget -= len(text) + 1
        if left:
            call = hints.read_output(page, page.stream, Omitted(line.number, 0, left, offset))
            shown.append(f"… {counted(left, 'more character')} on line {line.number}: {call} …")
            budget -= len(shown[-1]) + 1
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
