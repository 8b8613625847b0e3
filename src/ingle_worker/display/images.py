"""Images for a reader: no longer than a reader can use on either side; what is larger is shrunk, and kept as it was.

Sizes are read from the first bytes of a PNG, JPEG, GIF or WebP. Shrinking needs Pillow in the session's own
environment; where it is missing the image is kept on disk only. Nothing here decodes an image without a look at how
many pixels it claims to have.
"""

import hashlib
import io
import struct
from importlib import import_module
from typing import Any, NamedTuple

LONG_SIDE = 1568
"""Pixels of the longer side that a reader can make use of."""

MAX_FILE = 32 * 1024 * 1024
"""Bytes of one image that are kept on disk."""

MAX_PIXELS = 100_000_000
"""An image with more is not decoded: it would take half a gigabyte."""


class Fitted(NamedTuple):
    """An image as it is shown. `full` is what it was made from, where that is larger."""

    inline: bytes | None
    size: tuple[int, int] | None = None
    full: bytes | None = None
    full_size: tuple[int, int] | None = None
    notice: str | None = None


def name_of(data: bytes) -> str:
    """Under this name the host keeps these bytes; it makes the name itself, of what it got."""
    return hashlib.sha256(data).hexdigest()


def fit(data: bytes) -> Fitted:
    if len(data) > MAX_FILE:
        return Fitted(None, notice=f"the image was left out: {len(data)} bytes are more than {MAX_FILE}")
    size = measure(data)
    if size is None or max(size) <= LONG_SIDE:
        return Fitted(data, size)
    if size[0] * size[1] > MAX_PIXELS:
        return Fitted(None, None, data, size, f"the image has {size[0]} x {size[1]} pixels; only the file was kept")
    try:
        return Fitted(*_shrink(data), data, size)
    except ImportError:
        why = "Pillow is not installed in this environment"
    except Exception as error:  # the border to the library, and to whatever bytes these are
        why = f"{type(error).__name__}: {error}"[:300]
    notice = f"the image of {size[0]} x {size[1]} pixels could not be made smaller ({why}); only the file was kept"
    return Fitted(None, None, data, size, notice)


def _shrink(data: bytes) -> tuple[bytes, tuple[int, int]]:
    library: Any = import_module("PIL.Image")
    image = library.open(io.BytesIO(data))
    form = image.format
    if image.mode == "P":
        image = image.convert("RGBA")
    image.thumbnail((LONG_SIDE, LONG_SIDE))
    out = io.BytesIO()
    image.save(out, format=form)
    return out.getvalue(), image.size


def measure(data: bytes) -> tuple[int, int] | None:
    """Width and height, or None where that is not known."""
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return struct.unpack(">II", data[16:24])
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return struct.unpack("<HH", data[6:10])
        if data[:2] == b"\xff\xd8":
            return _measure_jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _measure_webp(data)
    except (struct.error, IndexError):
        return None
    return None


def _measure_jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while data[at] == 0xFF:
        kind = data[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None


def _measure_webp(data: bytes) -> tuple[int, int] | None:
    form = data[12:16]
    if form == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if form == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    if form == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return None
