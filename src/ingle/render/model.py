"""A cell's result for a model: short, in order, and with the call that reads each omitted part.

Printed text comes first, then displays, the value, the error, and a status line. All text shares a character budget.
An error has its own share, so that no amount of output hides it. Base64 is never cut: an image is whole or described.
"""

from dataclasses import dataclass

from ingle.events import Excerpt, MimeBundle, OutputPage, Result
from ingle.files import FileChanges
from ingle.render.image_info import Picture
from ingle.render.mime import described, lines_of, names_parts_of_a_picture, picture_of
from ingle.render.phrases import counted, duration, left_out_notices
from ingle.render.terminal_text import Row, clean, rows, trimmed
from ingle.render.truncate import HEAD_SHARE, Omitted, Passage, cut, passage, shares

TEXT_LIMIT = 10_000
"""Characters of all text together."""

ERROR_CHARS = 4_000
"""Characters of these that are reserved for the error."""

MAX_PICTURES = 4
MAX_PICTURE_CHARS = 700_000
"""Base64 of all images: the whole answer stays below 1 MiB."""

MAX_PICTURE_SIDE = 1568
"""Models scale larger images down, so they are not sent."""

MAX_PROCESSED_CHARS = 100_000
"""Characters of all displays, and of an error, that are processed: many times what is shown."""

MAX_NOTICES = 10
NOTICE_CHARS = 500

MAX_FILES = 6
FILE_CHARS = 80
"""Changed files that are named, and characters of each."""

QUICK_SECONDS = 1.0
"""Shorter cells are shown without their duration."""


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
    """Phrases that name the next call, here with the MCP tools. Other APIs override them.

    With a `default_session`, the status line and the calls name any other session.
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
    """Return the characters to process; a busy event loop renders large results in a thread."""
    bundles = [*result.displays, *([result.result] if result.result is not None else [])]
    texts = sum(len(text) for bundle in bundles for mime, text in bundle.items() if not mime.startswith("image/"))
    error = len(result.error.traceback) if result.error is not None else 0
    return len(result.stdout) + len(result.stderr) + texts + error + sum(map(len, result.notices))


def view(result: Result, hints: Hints | None = None, limit: int = TEXT_LIMIT) -> list[Part]:
    """Return the result in reading order. It always has at least one text."""
    return _View(result, hints or Hints(), limit).parts()


def text(parts: list[Part]) -> str:
    """Return the texts alone."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


@dataclass(frozen=True)
class _Section:
    """A passage with the stream it is read from, and a title line."""

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
            if len(told) <= MAX_PROCESSED_CHARS:
                error = _Section("error", passage(told, fold=False))
            else:
                error = _Section(
                    "error", Passage(trimmed(self._rows("error", told, 1, MAX_PROCESSED_CHARS)), exact=False)
                )
            body.append(error)
        last = self._notices() + self._files()
        status = self._status(something=bool(body or last))
        last += [status] if status else []
        sections = [part for part in body if isinstance(part, _Section) and part is not error]
        budget = self._limit - sum(len(line) + 1 for line in last)
        if error is not None:
            error_budget = min(error.length, max(ERROR_CHARS, budget - sum(each.length for each in sections)))
            budget -= error_budget
        given = dict(zip(map(id, sections), shares([each.length for each in sections], budget), strict=True))
        if error is not None:
            given[id(error)] = error_budget
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

    def _cut(self, section: _Section, budget: int) -> list[str]:
        def say(omitted: Omitted) -> str:
            if omitted.lines:
                what = f"{counted(omitted.lines, 'line')} omitted"
            else:
                what = f"{counted(omitted.characters, 'character')} of line {omitted.from_line} omitted"
            return f"… {what}: {self._hints.read_output(self._result, section.stream, omitted)} …"

        title = [section.title] if section.title else []
        return title + cut(section.passage, budget - sum(len(line) + 1 for line in title), say)

    # --- the body ---

    def _stream(self, stream: str, text: str, title: str | None) -> list[_Section]:
        if not text:
            return []
        part = self._result.excerpts.get(stream, Excerpt())
        gap = (part.head, part.left_out, part.left_out_lines) if part.left_out else None
        prompt = self._result.prompt
        if prompt and text.endswith(prompt) and "\n" not in prompt:
            # The status line shows the prompt; `getpass` writes it to stderr.
            text = text[: -len(prompt)]
        shown = passage(text, part.first_line, gap)
        return [_Section(stream, shown, title)] if shown.head else []

    def _bundles(self, stream: str, bundles: list[MimeBundle]) -> list[_Section | Image]:
        """Return adjacent texts as one section. Lines are numbered across bundles, an image counts as one line."""
        body: list[_Section | Image] = []
        some: list[Row] = []
        line = 1
        texts = [lines_of(bundle) for bundle in bundles]
        budgets = shares([len(text) for text in texts], MAX_PROCESSED_CHARS)
        for bundle, raw, budget in zip(bundles, texts, budgets, strict=True):
            picture = picture_of(bundle)
            if picture is None:
                some += trimmed(self._rows(stream, raw, line, budget))
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

    def _rows(self, stream: str, text: str, line: int, budget: int) -> list[Row]:
        """Return the lines as a terminal shows them. Of a text longer than `budget`, return head and tail."""
        if len(text) <= budget:
            return rows(text, line)
        head = int(budget * HEAD_SHARE)
        tail = len(text) - (budget - head)
        at, after = line + text.count("\n", 0, head), line + text.count("\n", 0, tail)
        call = self._hints.read_output(self._result, stream, Omitted(at, 0, tail - head))
        mark = f"… {counted(tail - head, 'character')} omitted: {call} …"
        return [*rows(text[:head], line), (mark, at), *rows(text[tail:], after)]

    def _inline(self, picture: Picture) -> Image | None:
        self._pictures += 1
        used = sum(len(image.data) for image in self._shown)
        if len(self._shown) == MAX_PICTURES or used + len(picture.data) > MAX_PICTURE_CHARS:
            return None
        if max(picture.width, picture.height) > MAX_PICTURE_SIDE:
            return None
        image = Image(picture.mime, picture.data, picture.width, picture.height)
        self._shown.append(image)
        return image

    # --- the last lines ---

    def _notices(self) -> list[str]:
        told = left_out_notices(self._result)
        notices = [clean(notice) for notice in self._result.notices if notice not in told]
        lines = [
            f"[note: {notice[:NOTICE_CHARS]}{'…' * (len(notice) > NOTICE_CHARS)}]" for notice in notices[:MAX_NOTICES]
        ]
        if len(notices) > MAX_NOTICES:
            lines.append(f"[{counted(len(notices) - MAX_NOTICES, 'more note')}]")
        return lines

    def _files(self) -> list[str]:
        line = files_line(self._result.files)
        return [f"[{line}]"] if line else []

    def _status(self, something: bool) -> str | None:
        """Return the status line, or None if it has nothing to say."""
        result, hints = self._result, self._hints
        slow = result.execution_time >= QUICK_SECONDS
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
            words.append(f"{hints.wait(result)} waits for it, {hints.interrupt(result)} stops it")
        elif result.status == "waiting_for_approval":
            words.append(f"{hints.wait(result)} waits for it, {hints.interrupt(result)} gives it up")
        elif result.status == "waiting_for_input":
            words.append(f"answer with {hints.send_input(result)}")
        return f"[{' · '.join(words)}]"

    def _ending(self) -> str:
        result = self._result
        if result.timed_out:
            return f"{result.status} at its timeout"
        if result.status == "waiting_for_input":
            prompt = clean(result.prompt or "").strip()
            waits = "waiting for input (secret)" if result.prompt_secret else "waiting for input"
            return f"{waits}: {prompt[-NOTICE_CHARS:]!r}" if prompt else waits
        if result.approval is not None:
            wanted = result.approval
            return f"waiting for approval of {clean(wanted.server)}.{clean(wanted.tool)}: only a person can answer"
        if result.exit is not None:
            code, message = result.exit.code, result.exit.message or ""
            words = [result.status, result.exit.signal or ("" if code is None else f"code {code}")]
            # Python prints the message of SystemExit, and a notice reports a crash.
            if message != f"exit({code})" and not any(message in told for told in [*result.notices, result.stderr]):
                words.append(clean(message)[:NOTICE_CHARS])
            return ": ".join(word for word in words if word)
        return result.status


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))


def files_line(files: FileChanges | None) -> str:
    """Return one line about files that were changed, or nothing. Hidden files and caches are left out."""
    if files is None:
        return ""
    groups = (("created", files.created), ("changed", files.changed), ("deleted", files.deleted))
    shown = [(verb, [path for path in paths if not _is_hidden(path)]) for verb, paths in groups]
    left = MAX_FILES
    words = []
    for verb, paths in shown:
        if paths[:left]:
            words.append(f"{verb} {', '.join(clean(path)[:FILE_CHARS] for path in paths[:left])}")
            left -= len(paths[:left])
    more = sum(len(paths) for _, paths in shown) - (MAX_FILES - left)
    if more:
        words.append(f"and {more} more")
    return f"files: {', '.join(words)}" if words else ""
