"""Timeline of an earlier server, found again on disk.

A server that stops writes an index beside the file of events. Without one the server was killed: then the file is
read once, up to the last line that is whole. Every function blocks and is called in a thread.
"""

import os
from array import array
from pathlib import Path

import msgspec
from msgspec import Struct

from ingle.output.disk_log import INDEX_BYTES, INDEX_STEP, number_of

INDEX = ".index"
"""End of the name of the index."""

FORGOTTEN = ".forgotten"
"""End of the name of a file with the number of the last cell whose code is not shown."""

KEPT_SHARE = 0.5
"""Share of its disk limit that a timeline may fill at the start of a server. Older events are removed."""

COPY_BYTES = 16 * 1024 * 1024

MAX_CELL = 10_000_000
"""A larger number of a cell is not believed."""

_RUNNING = "running"


class Found(Struct):
    """What is known of the events in a file."""

    last: int = 0
    """Number of the last event."""
    size: int = 0
    complete: bool = False
    """Whether the file has all events of its server."""
    firsts: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    """Number of the first event of each block, and in `starts` its position."""
    starts: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    first_events: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    """By cell, from 1 on: number of its first event, and in `done_events` of its last one; 0 for none."""
    done_events: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    forgotten: int = 0
    """The code of cells up to this one is not shown any more."""


class _Line(Struct):
    """The part of an event that is needed to find the cells."""

    seq: int
    type: str
    cell: int | None = None
    state: str = ""


class _Index(Struct):
    last: int
    size: int
    arrays: list[bytes]


_decoder = msgspec.json.Decoder(_Line)
_index_decoder = msgspec.msgpack.Decoder(_Index)


def write_index(path: str, found: Found) -> None:
    """Write the index of a file that is complete."""
    arrays = [each.tobytes() for each in (found.firsts, found.starts, found.first_events, found.done_events)]
    draft = Path(f"{path}{INDEX}.part")
    draft.write_bytes(msgspec.msgpack.encode(_Index(found.last, found.size, arrays)))
    draft.rename(f"{path}{INDEX}")


def find(path: str, limit: int) -> Found:
    """Return what is in the file, and remove the oldest events of one that has used much of its limit."""
    try:
        found = _read_index(path) or _scan(path)
        if found.size > limit * KEPT_SHARE:
            _trim(path, found, int(limit * KEPT_SHARE))
        elif found.size < os.stat(path).st_size:
            os.truncate(path, found.size)
    except OSError:
        found = Found()
    found.forgotten = read_forgotten(path)
    return found


def read_forgotten(path: str) -> int:
    """Return the number of the last cell whose code is not shown any more."""
    try:
        return int(Path(f"{path}{FORGOTTEN}").read_text())
    except (OSError, ValueError):
        return 0


def write_forgotten(path: str, cell: int) -> None:
    """Write down that the code of cells up to this one is not shown any more, even if the server is killed."""
    draft = Path(f"{path}{FORGOTTEN}.part")
    draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft.write_text(str(cell))
    draft.rename(f"{path}{FORGOTTEN}")


def _read_index(path: str) -> Found | None:
    index = Path(f"{path}{INDEX}")
    try:
        read = _index_decoder.decode(index.read_bytes())
        # The file grows from now on, and the index is true of it no more.
        index.unlink()
        arrays = []
        for data in read.arrays:
            arrays.append(array("Q"))
            arrays[-1].frombytes(data)
        firsts, starts, first_events, done_events = arrays
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    if os.stat(path).st_size != read.size or len(firsts) != len(starts) or len(first_events) != len(done_events):
        return None
    return Found(read.last, read.size, True, firsts, starts, first_events, done_events)


def _scan(path: str) -> Found:
    found = Found()
    in_block = INDEX_STEP
    with open(path, "rb") as file:
        for line in file:
            number = number_of(line)
            if number <= found.last or not line.endswith(b"\n"):
                break
            try:
                event = _decoder.decode(line)
            except msgspec.MsgspecError:
                break
            if in_block >= INDEX_STEP or found.size - found.starts[-1] >= INDEX_BYTES:
                found.firsts.append(number)
                found.starts.append(found.size)
                in_block = 0
            in_block += 1
            found.last, found.size = number, found.size + len(line)
            _note_cell(found, event)
    return found


def _note_cell(found: Found, event: _Line) -> None:
    cell = event.cell
    begins = event.type == "state" and event.state == _RUNNING
    if cell is None or not 0 < cell < MAX_CELL or not (begins or event.type == "done"):
        return
    missing = cell - len(found.first_events)
    if missing > 0:
        found.first_events.extend([0] * missing)
        found.done_events.extend([0] * missing)
    if event.type == "done":
        found.done_events[cell - 1] = event.seq
    elif not found.first_events[cell - 1]:
        found.first_events[cell - 1] = event.seq


def _trim(path: str, found: Found, keep: int) -> None:
    """Remove the oldest blocks, so that about `keep` bytes stay."""
    block = next((each for each, start in enumerate(found.starts) if found.size - start <= keep), len(found.starts) - 1)
    start = found.starts[block]
    draft = f"{path}.part"
    with open(path, "rb") as old, open(draft, "wb", opener=_private) as new:
        old.seek(start)
        left = found.size - start
        while left and (data := old.read(min(COPY_BYTES, left))):
            new.write(data)
            left -= len(data)
    os.replace(draft, path)
    found.firsts = found.firsts[block:]
    found.starts = array("Q", (each - start for each in found.starts[block:]))
    found.size -= start
    for cell, first in enumerate(found.first_events):
        if first < found.firsts[0]:
            found.first_events[cell] = found.done_events[cell] = 0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
