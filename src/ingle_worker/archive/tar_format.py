"""The tar format without I/O: headers from entries, and entries from bytes as they come.

Written are ustar headers, with a pax header where a value does not fit. Read are also the long names of GNU tar. All
lengths are bounded, so a hostile archive cannot make the reader store more than one extended header. Sparse files,
devices and pipes are refused.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 512
END = bytes(2 * BLOCK)

FILE, FOLDER, LINK, HARD_LINK = "file", "folder", "link", "hard_link"

MAX_EXTENDED_BYTES = 64 * 1024
"""Maximum size of a pax header or a long name."""

MAX_SIZE = 1 << 60

_TYPES = {FILE: b"0", FOLDER: b"5", LINK: b"2", HARD_LINK: b"1"}
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"5": FOLDER, b"2": LINK, b"1": HARD_LINK}
_REFUSED = {b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file"}


class Malformed(Exception):
    """The bytes are no archive, or one with something that is refused. The message says what."""


class Entry(NamedTuple):
    path: str
    kind: str
    mode: int = 0o644
    size: int = 0
    modified: float = 0.0
    target: str = ""
    """Of a link."""
    comment: str = ""


# --- writing ---


def encode_entry(entry: Entry) -> bytes:
    """Return the header of an entry. For a file, `size` bytes of content and `encode_padding` follow."""
    name = os.fsencode(entry.path) + (b"/" if entry.kind == FOLDER and not entry.path.endswith("/") else b"")
    target = os.fsencode(entry.target)
    records: dict[str, bytes] = {}
    if len(name) > 100:
        records["path"] = name
    if len(target) > 100:
        records["linkpath"] = target
    if entry.comment:
        records["comment"] = entry.comment.encode("utf-8", "backslashreplace")
    if entry.size >= 8**11:
        records["size"] = str(entry.size).encode()
    extended = _encode_extended(records) if records else b""
    size = 0 if "size" in records else entry.size
    modified = int(entry.modified) if 0 <= entry.modified < 8**11 else 0
    return extended + _header(name, entry.mode & 0o7777, size, modified, _TYPES[entry.kind], target)


def encode_padding(size: int) -> bytes:
    """Return what fills the last block of a file of this size."""
    return bytes(-size % BLOCK)


def _encode_extended(records: dict[str, bytes]) -> bytes:
    data = b"".join(_record(key.encode(), value) for key, value in records.items())
    return _header(b"pax", 0o644, len(data), 0, b"x", b"") + data + encode_padding(len(data))


def _record(key: bytes, value: bytes) -> bytes:
    """Return `length key=value`, where the length includes its own digits."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _header(name: bytes, mode: int, size: int, modified: int, kind: bytes, target: bytes) -> bytes:
    fields = (
        name[:100].ljust(100, b"\0")
        + b"%07o\0" % mode
        + b"0000000\0" * 2
        + b"%011o\0" % size
        + b"%011o\0" % modified
        + b" " * 8
        + kind
        + target[:100].ljust(100, b"\0")
        + b"ustar\x0000"
    ).ljust(BLOCK, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


# --- reading ---


class TarReader:
    """Entries and contents from the bytes of an archive, which may come in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        """Bytes of content that are still to come."""
        self._padding = 0
        self._extended: tuple[bytes, int] | None = None
        """Kind and size of an extended header whose content is to come."""
        self._given: dict[str, bytes] = {}
        """Values of extended headers for the next entry."""
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        """Yield each entry, and after a file's entry its content in pieces. Raise Malformed."""
        if self.ended:
            return
        self._buffer += data
        while not self.ended:
            if self._left:
                if not self._buffer:
                    return
                piece = bytes(self._buffer[: self._left])
                del self._buffer[: len(piece)]
                self._left -= len(piece)
                yield piece
            elif self._padding:
                skipped = min(self._padding, len(self._buffer))
                if not skipped:
                    return
                del self._buffer[:skipped]
                self._padding -= skipped
            elif self._extended is not None:
                kind, size = self._extended
                if len(self._buffer) < size:
                    return
                content = bytes(self._buffer[:size])
                del self._buffer[:size]
                self._padding = -size % BLOCK
                self._extended = None
                self._take_extended(kind, content)
            else:
                if len(self._buffer) < BLOCK:
                    return
                block = bytes(self._buffer[:BLOCK])
                del self._buffer[:BLOCK]
                entry = self._take_header(block)
                if entry is not None:
                    yield entry

    def close(self) -> None:
        """Raise Malformed if the archive has not ended."""
        if not self.ended:
            raise Malformed("it ends in the middle")

    def _take_header(self, block: bytes) -> Entry | None:
        if not any(block):
            self.ended = True
            return None
        _check_sum(block)
        kind = block[156:157]
        size = _number(block[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if size > MAX_EXTENDED_BYTES:
                raise Malformed(f"it has a header of {size} bytes; {MAX_EXTENDED_BYTES} are allowed")
            self._extended = (kind, size)
            return None
        given, self._given = self._given, {}
        if any(key.startswith("GNU.sparse") for key in given):
            kind = b"S"
        path = _text(given.get("path") or _path(block))
        if kind in _REFUSED:
            raise Malformed(f"{path[:200]!r} is {_REFUSED[kind]}")
        if kind not in _KINDS:
            raise Malformed(f"{path[:200]!r} has the unknown type {kind!r}")
        found = FOLDER if _KINDS[kind] == FILE and path.endswith("/") else _KINDS[kind]
        if "size" in given:
            size = _decimal(given["size"])
        if found != FILE:
            size = 0
        self._left, self._padding = size, -size % BLOCK
        target = _text(given.get("linkpath") or block[157:257].split(b"\0")[0])
        comment = given.get("comment", b"").decode("utf-8", "replace")
        mode, modified = _number(block[100:108]) & 0o777, float(_number(block[136:148]))
        return Entry(path, found, mode, size, modified, target, comment)

    def _take_extended(self, kind: bytes, content: bytes) -> None:
        if kind == b"L":
            self._given["path"] = content.split(b"\0")[0]
        elif kind == b"K":
            self._given["linkpath"] = content.split(b"\0")[0]
        elif kind == b"x":
            self._given.update(_records(content))


def _records(content: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while content.strip(b"\0"):
        digits, space, _ = content.partition(b" ")
        length = _decimal(digits)
        if not space or not len(digits) + 2 < length <= len(content):
            raise Malformed("it has a damaged header")
        key, _, value = content[len(digits) + 1 : length - 1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value
        content = content[length:]
    return found


def _check_sum(block: bytes) -> None:
    told = block[148:156].strip(b" \0")
    if not told.isdigit() or len(told) > 7 or int(told, 8) != sum(block[:148]) + 256 + sum(block[156:]):
        raise Malformed("it is no tar archive, or damaged; send it uncompressed")


def _path(block: bytes) -> bytes:
    name = block[:100].split(b"\0")[0]
    # The prefix is part of POSIX archives only: GNU tar keeps times there.
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or for large ones binary."""
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
    else:
        digits = field.strip(b" \0")
        if digits.strip(b"01234567"):
            raise Malformed("it has a damaged header")
        value = int(digits or b"0", 8)
    if value > MAX_SIZE:
        raise Malformed("it has an impossible size")
    return value


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19 or int(digits) > MAX_SIZE:
        raise Malformed("it has an impossible size")
    return int(digits)


def _text(path: bytes) -> str:
    return os.fsdecode(path)
