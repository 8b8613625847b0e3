"""Output of a worker on its way into the timeline: decoded, in pieces, within the session's share of the disk."""

import codecs
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ingle import events
from ingle.events import AnyEvent
from ingle.output.image_store import ImageStore
from ingle.output.timeline import Timeline
from ingle.sessions.cells.cell import RunningCell
from ingle.sessions.cells.crash_text import CrashText
from ingle.workers.io.output_order import STDERR, STDOUT
from ingle_worker.wire import messages

CHUNK = 65536
"""Most characters of text in one event."""

PROMPT_LENGTH = 1000

ALWAYS_KEPT = 10_000
"""Characters that a cell may still print when its session's share of the disk is used up."""

MAX_WAITING = 64 * 1024 * 1024
"""Bytes of images that may wait for the disk. With more, the worker is not read."""

MAX_METADATA = 100_000
"""Bytes of a display's metadata. An honest worker sends less."""


_Decoder = codecs.getincrementaldecoder("utf-8")


class OutputDecoder:
    def __init__(self, session_id: str, timeline: Timeline, figures: ImageStore) -> None:
        self._session_id = session_id
        self._timeline = timeline
        self._figures = figures
        # Cells and the background have decoders of their own: half a character of one must not begin text of the other.
        self._decoders: dict[bool, list[codecs.IncrementalDecoder]] = {}
        self.undecided = {False: False, True: False}
        """Whether there was output since the last flush, so that a decoder may hold half a character."""
        self._crash = {False: CrashText(), True: CrashText()}

    @property
    def behind(self) -> bool:
        """Return whether more has come than the disk has taken, so that the worker has to wait."""
        return self._timeline.full or self._figures.waiting > MAX_WAITING

    def output(self, running: RunningCell | None, stream: int, data: bytes, background: bool) -> None:
        """Add bytes that were written while this cell ran."""
        self.undecided[background] = True
        try:
            decoders = self._decoders[background]
        except KeyError:
            decoders = self._decoders[background] = [_Decoder("backslashreplace"), _Decoder("backslashreplace")]
        text = decoders[stream].decode(data)
        if stream != STDOUT:
            text = self._crash[background].filter(text)
        if text:
            self._add(running, stream, text, background)

    def flush(self, running: RunningCell | None, *, background: bool) -> None:
        """Show the rest of an incomplete character as it is: no more output follows."""
        self.undecided[background] = False
        for number, decoder in enumerate(self._decoders.get(background, ())):
            if decoder.getstate()[0]:
                self._add(running, number, decoder.decode(b"", final=True), background)
                decoder.reset()
        if held := self._crash[background].flush():
            self._add(running, STDERR, held, background)

    def _add(self, running: RunningCell | None, stream: int, text: str, background: bool) -> None:
        if "\0" in text:
            text = text.replace("\0", "␀")
        cell = None if background else running
        if cell is not None and stream == STDOUT:
            cell.last_line = (cell.last_line + text[-PROMPT_LENGTH:]).rpartition("\n")[2][-PROMPT_LENGTH:]
        for start in range(0, len(text), CHUNK):
            piece = text[start : start + CHUNK]
            if self._timeline.exhausted and (cell is None or cell.kept_text > ALWAYS_KEPT):
                if cell is not None:
                    cell.dropped_text += len(piece)
                continue
            if cell is not None:
                cell.count("stdout" if stream == STDOUT else "stderr", piece)
            self._append(running, events.Stdout if stream == STDOUT else events.Stderr, piece, background)

    def result(self, running: RunningCell, shown: messages.Result) -> None:
        """Add a value that was shown before the cell's end. The last one is the cell's result."""
        metadata = bounded(shown.metadata)
        running.show_value(self._timeline.next_seq, shown.data, metadata)
        if not self._timeline.exhausted:
            self._append(running, events.ResultShown, shown.data, metadata)

    def display(self, running: RunningCell | None, shown: messages.Display) -> None:
        background = shown.background or running is None
        data, metadata, name = shown.data, bounded(shown.metadata), shown.display_id
        if self._timeline.exhausted:
            if running is None or running.displays.left_out:
                return
            running.dropped_displays += 1
            data, metadata = {"text/plain": data.get("text/plain", "")[:PROMPT_LENGTH]}, {}
        if running is not None and not background:
            running.displays.add(self._timeline.next_seq, data, metadata, name, shown.update)
        self._append(running, events.DisplayShown, data, metadata, name, shown.update, background)

    def _append(self, running: RunningCell | None, kind: Callable[..., AnyEvent], *content: Any) -> None:
        number = running.number if running is not None else None
        self._timeline.append(kind(self._timeline.next_seq, time.time(), self._session_id, number, *content))


def bounded(metadata: events.Metadata) -> events.Metadata:
    return metadata if not metadata or len(msgspec.json.encode(metadata)) <= MAX_METADATA else {}
