"""What a worker prints and shows, on its way into the timeline: decoded, in pieces, within its share of the disk."""

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
from ingle.sessions.spec import Named
from ingle.workers.io.output_order import STDOUT
from ingle_worker.wire import messages

CHUNK = 65536
"""Characters of text in one event at most."""

PROMPT_LENGTH = 1000

ALWAYS_KEPT = 10_000
"""Characters that a cell may still say when its session's share of the disk is used up."""

MAX_WAITING = 64 * 1024 * 1024
"""Bytes of images that wait for the disk; with more, the worker has to wait."""

MAX_METADATA = 100_000
"""Bytes of a display's metadata; an honest worker sends less."""


_Decoder = codecs.getincrementaldecoder("utf-8")


class Intake:
    def __init__(self, owner: Named, timeline: Timeline, figures: ImageStore) -> None:
        self._owner = owner
        self._timeline = timeline
        self._figures = figures
        # Apart for cells and for the background: half a character of the one must not begin a text of the other.
        self._decoders: dict[bool, list[codecs.IncrementalDecoder]] = {}
        self.undecided = {False: False, True: False}
        """Whether there was output since, so that a decoder may hold half a character."""

    @property
    def behind(self) -> bool:
        """More has come than the disk has taken: whoever writes has to wait."""
        return self._timeline.full or self._figures.waiting > MAX_WAITING

    def output(self, running: RunningCell | None, stream: int, data: bytes, background: bool) -> None:
        """Bytes that were written while this cell ran."""
        self.undecided[background] = True
        try:
            decoders = self._decoders[background]
        except KeyError:
            decoders = self._decoders[background] = [_Decoder("backslashreplace"), _Decoder("backslashreplace")]
        text = decoders[stream].decode(data)
        if text:
            self._add(running, stream, text, background)

    def flush(self, running: RunningCell | None, *, background: bool) -> None:
        """No more is to come: what was left of a character is shown as it is."""
        self.undecided[background] = False
        for number, decoder in enumerate(self._decoders.get(background, ())):
            if decoder.getstate()[0]:
                self._add(running, number, decoder.decode(b"", final=True), background)
                decoder.reset()

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
        """A value that was shown before the cell's end. The last one is the cell's."""
        running.value, running.value_metadata = shown.data, bounded(shown.metadata)
        if not self._timeline.exhausted:
            self._append(running, events.ResultShown, running.value, running.value_metadata)

    def display(self, running: RunningCell | None, shown: messages.Display) -> None:
        background = shown.background or running is None
        data, metadata, name = shown.data, bounded(shown.metadata), shown.display_id
        if self._timeline.exhausted:
            if running is None or running.displays.left_out:
                return
            running.dropped_displays += 1
            data, metadata = {"text/plain": data.get("text/plain", "")[:PROMPT_LENGTH]}, {}
        if running is not None and not background:
            running.show(self._timeline.next_seq, data, metadata, name, shown.update)
        self._append(running, events.DisplayShown, data, metadata, name, shown.update, background)

    def _append(self, running: RunningCell | None, kind: Callable[..., AnyEvent], *content: Any) -> None:
        number = running.number if running is not None else None
        self._timeline.append(kind(self._timeline.next_seq, time.time(), self._owner.id, number, *content))


def bounded(metadata: events.Metadata) -> events.Metadata:
    return metadata if not metadata or len(msgspec.json.encode(metadata)) <= MAX_METADATA else {}
