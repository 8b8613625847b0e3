"""What a model sees of a cell: short, in order, with nothing lost that it cannot ask for.

Printed text first, then displays, the value, the error, and one line of status last. All text together keeps to a
budget; what does not fit is named with the call that reads it, in the words of the door that asks (`Hints`). An error
has a share of its own, so that no flood of output hides it. Base64 is never cut: a picture is there whole or described.
"""

from dataclasses import dataclass

from ingle.events import Excerpt, MimeBundle, OutputPage, Result
from ingle.render.image_info import Picture
from ingle.render.mime import described, lines_of, names_parts_of_a_picture, picture_of
from ingle.render.phrases import counted, duration, left_out_notices
from ingle.render.terminal_text import Row, clean, rows, trimmed
from ingle.render.truncate import HEAD_SHARE, Omitted, Passage, cut, passage, shares

TEXT_LIMIT = 10_000
"""Characters of text in all."""

ERROR_SHARE = 4_000
"""Of these, for the error before all else."""

PICTURES = 4
PICTURE_CHARS = 700_000
"""Base64 in all: with it a whole answer stays below 1 MiB."""

PICTURE_SIDE = 1568
"""Longer sides are scaled down by those who look, so they are not sent."""

LOOKED_AT = 100_000
"""Characters of all displays together that are looked at, and of an error: of what is shown, many times as much."""

NOTICES = 10
NOTICE_CHARS = 500

QUICK = 1.0
"""A cell below so many seconds is not worth saying how long it took."""


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Image:
    mime: str
    data: str
    width: int
    height: int


Part = Text | Image


@dataclass(frozen=True)
class Hints:
    """How a door says what can be done next; these are the words of the MCP tools. Another door overrides them.

    Where a `default_session` is given, any other is named in the status line and in the calls.
    """

    default_session: str | None = None

    def read_output(self, result: Result | OutputPage, stream: str, omitted: Omitted) -> str:
        arguments = [f"cell={result.cell}", f"from_line={omitted.from_line}"]
        if omitted.lines:
            arguments.append("grep=…")
        elif omitted.offset is not None:
            arguments.append(f"offset={omitted.offset}")
        if stream != "stdout":
            arguments.append(f'stream="{stream}"')
        return f"read_output({', '.join(self._session(result) + arguments)})"

    def wait(self, result: Result) -> str:
        return f"wait({', '.join([*self._session(result), f'cell={result.cell}'])})"

    def interrupt(self, result: Result) -> str:
        return f"interrupt({', '.join(self._session(result))})"

    def send_input(self, result: Result) -> str:
        return f"send_input({', '.join([*self._session(result), 'text=…'])})"

    def is_default(self, result: Result | OutputPage) -> bool:
        return self.default_session is None or result.session_id == self.default_session

    def _session(self, result: Result | OutputPage) -> list[str]:
        return [] if self.is_default(result) else [f'session_id="{result.session_id}"']


def weight(result: Result) -> int:
    """Characters that are looked at to show it: who has others to serve does not clean many of them in between."""
    bundles = [*result.displays, *([result.result] if result.result is not None else [])]
    texts = sum(len(text) for bundle in bundles for mime, text in bundle.items() if not mime.startswith("image/"))
    error = len(result.error.traceback) if result.error is not None else 0
    return len(result.stdout) + len(result.stderr) + texts + error + sum(map(len, result.notices))


def view(result: Result, hints: Hints | None = None, limit: int = TEXT_LIMIT) -> list[Part]:
    """The result in the order in which it is read. There is always at least one text."""
    return _View(result, hints or Hints(), limit).parts()


def text(parts: list[Part]) -> str:
    """The texts alone."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


@dataclass(frozen=True)
class _Section:
    """A passage, and what names it: the stream by which it is read, and a line before it."""

    stream: str
    passage: Passage
    title: str | None = None

    @property
    def length(self) -> int:
        return self.passage.length + (len(self.title) + 1 if self.title else 0)


class _View:
    def __init__(self, result: Result, hints: Hints, limit: int) -> None:
        self._result = result
        self._hints = hints
        self._limit = limit
        self._pictures = 0
        self._shown: list[Image] = []

    def parts(self) -> list[Part]:
        result = self._result
        body: list[_Section | Image] = []
        body += self._stream("stdout", result.stdout, None)
        body += self._stream("stderr", result.stderr, "[stderr]")
        body += self._bundles("displays", result.displays)
        value = result.result
        if value is not None and not (self._pictures and names_parts_of_a_picture(value)):
            body += self._bundles("result", [value])
        error = None
        if result.error is not None:
            told = result.error.traceback
            if len(told) <= LOOKED_AT:
                error = _Section("error", passage(told, fold=False))
            else:
                error = _Section("error", Passage(trimmed(self._rows("error", told, 1, LOOKED_AT)), exact=False))
            body.append(error)
        last = self._notices()
        status = self._status(something=bool(body or last))
        last += [status] if status else []
        sections = [part for part in body if isinstance(part, _Section) and part is not error]
        room = self._limit - sum(len(line) + 1 for line in last)
        if error is not None:
            error_room = min(error.length, max(ERROR_SHARE, room - sum(each.length for each in sections)))
            room -= error_room
        given = dict(zip(map(id, sections), shares([each.length for each in sections], room), strict=True))
        if error is not None:
            given[id(error)] = error_room
        lines: list[str] = []
        parts: list[Part] = []
        for part in body:
            if isinstance(part, Image):
                if lines:
                    parts.append(Text("\n".join(lines)))
                parts.append(part)
                lines = []
            else:
                lines += self._cut(part, given[id(part)])
        lines += last
        return [*parts, Text("\n".join(lines))] if lines else parts

    def _cut(self, section: _Section, room: int) -> list[str]:
        def say(omitted: Omitted) -> str:
            if omitted.lines:
                what = f"{counted(omitted.lines, 'line')} omitted"
            else:
                what = f"{counted(omitted.characters, 'character')} of line {omitted.from_line} omitted"
            return f"… {what}: {self._hints.read_output(self._result, section.stream, omitted)} …"

        title = [section.title] if section.title else []
        return title + cut(section.passage, room - sum(len(line) + 1 for line in title), say)

    # --- the body ---

    def _stream(self, stream: str, text: str, title: str | None) -> list[_Section]:
        if not text:
            return []
        part = self._result.excerpts.get(stream, Excerpt())
        gap = (part.head, part.left_out, part.left_out_lines) if part.left_out else None
        prompt = self._result.prompt
        if prompt and text.endswith(prompt) and "\n" not in prompt:
            # It stands in the status line; `getpass` writes it to stderr.
            text = text[: -len(prompt)]
        shown = passage(text, part.first_line, gap)
        return [_Section(stream, shown, title)] if shown.head else []

    def _bundles(self, stream: str, bundles: list[MimeBundle]) -> list[_Section | Image]:
        """Texts that follow one another are one section; their lines are counted through, pictures as one line."""
        body: list[_Section | Image] = []
        some: list[Row] = []
        line = 1
        texts = [lines_of(bundle) for bundle in bundles]
        rooms = shares([len(text) for text in texts], LOOKED_AT)
        for bundle, raw, room in zip(bundles, texts, rooms, strict=True):
            picture = picture_of(bundle)
            if picture is None:
                some += trimmed(self._rows(stream, raw, line, room))
            elif (image := self._inline(picture)) is not None:
                if some:
                    body.append(_Section(stream, Passage(some)))
                body.append(image)
                some = []
            else:
                label = f"[figure {self._pictures} of cell {self._result.cell}: {described(picture)}, not shown here]"
                some.append((label, line))
            line += raw.count("\n") + 1
        if some:
            body.append(_Section(stream, Passage(some)))
        return body

    def _rows(self, stream: str, text: str, line: int, room: int) -> list[Row]:
        """As a terminal shows them; of a text that is longer than the room, its head and its tail."""
        if len(text) <= room:
            return rows(text, line)
        head = int(room * HEAD_SHARE)
        tail = len(text) - (room - head)
        at, after = line + text.count("\n", 0, head), line + text.count("\n", 0, tail)
        call = self._hints.read_output(self._result, stream, Omitted(at, 0, tail - head))
        mark = f"… {counted(tail - head, 'character')} omitted: {call} …"
        return [*rows(text[:head], line), (mark, at), *rows(text[tail:], after)]

    def _inline(self, picture: Picture) -> Image | None:
        self._pictures += 1
        used = sum(len(image.data) for image in self._shown)
        if len(self._shown) == PICTURES or used + len(picture.data) > PICTURE_CHARS:
            return None
        if max(picture.width, picture.height) > PICTURE_SIDE:
            return None
        image = Image(picture.mime, picture.data, picture.width, picture.height)
        self._shown.append(image)
        return image

    # --- the last lines ---

    def _notices(self) -> list[str]:
        told = left_out_notices(self._result)
        notices = [clean(notice) for notice in self._result.notices if notice not in told]
        lines = [f"[note: {notice[:NOTICE_CHARS]}{'…' * (len(notice) > NOTICE_CHARS)}]" for notice in notices[:NOTICES]]
        if len(notices) > NOTICES:
            lines.append(f"[{counted(len(notices) - NOTICES, 'more note')}]")
        return lines

    def _status(self, something: bool) -> str | None:
        """One line, or none where it would say nothing: ok, quick, something to read, no picture, the usual session."""
        result, hints = self._result, self._hints
        slow = result.execution_time >= QUICK
        usual = hints.is_default(result)
        if result.status == "ok" and something and usual and not slow and not self._pictures:
            return None
        words = [f"cell {result.cell}", self._ending()]
        if slow:
            words.append(duration(result.execution_time))
        if self._pictures:
            words.append(counted(self._pictures, "figure"))
        if not usual:
            words.append(f"session {result.session_id}")
        if result.status == "running":
            words.append(f"{hints.wait(result)} goes on, {hints.interrupt(result)} stops it")
        elif result.status == "waiting_for_input":
            words.append(f"answer with {hints.send_input(result)}")
        return f"[{' · '.join(words)}]"

    def _ending(self) -> str:
        result = self._result
        if result.timed_out:
            return f"{result.status} at its timeout"
        if result.status == "waiting_for_input":
            prompt = clean(result.prompt or "").strip()
            kind = "secret input" if result.prompt_secret else "input"
            return f"waiting for {kind}: {prompt[-NOTICE_CHARS:]!r}" if prompt else f"waiting for {kind}"
        if result.exit is not None:
            code, message = result.exit.code, result.exit.message or ""
            words = [result.status, result.exit.signal or ("" if code is None else f"code {code}")]
            # Python prints the message of SystemExit, and a crash is told in a note.
            if message != f"exit({code})" and not any(message in told for told in [*result.notices, result.stderr]):
                words.append(clean(message)[:NOTICE_CHARS])
            return ": ".join(word for word in words if word)
        return result.status
