"""Images at a size that a reader can use. A larger image is shrunk, and also stored in full.

Sizes are read from the header of a PNG, JPEG, GIF or WebP. Shrinking needs Pillow in the session's environment; without
it the image is only stored. No image is decoded before its number of pixels is checked.
"""

import hashlib
import io
import struct
from importlib import import_module
from typing import Any, NamedTuple

MAX_SIDE_PIXELS = 1568
"""Maximum useful length of the longer side."""

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Maximum size of one stored image."""

MAX_PIXELS = 100_000_000
"""Maximum pixels to decode. More would take half a gigabyte."""


class Fitted(NamedTuple):
    """An image as it is shown. `full` is the original if that is larger."""

    inline: bytes | None
    size: tuple[int, int] | None = None
    full: bytes | None = None
    full_size: tuple[int, int] | None = None
    notice: str | None = None


def name_of(data: bytes) -> str:
    """Return the name under which the host stores these bytes. The host computes it itself."""
    return hashlib.sha256(data).hexdigest()


def fit(data: bytes) -> Fitted:
    if len(data) > MAX_FILE_BYTES:
        return Fitted(None, notice=f"the image was left out: {len(data)} bytes are more than {MAX_FILE_BYTES}")
    size = measure(data)
    if size is None or max(size) <= MAX_SIDE_PIXELS:
        return Fitted(data, size)
    if size[0] * size[1] > MAX_PIXELS:
        return Fitted(None, None, data, size, f"the image has {size[0]} x {size[1]} pixels; only the file was stored")
    try:
        return Fitted(*_shrink(data), data, size)
    except ImportError:
        why = "Pillow is not installed in this environment"
    except Exception as error:  # library code, on arbitrary bytes
        why = f"{type(error).__name__}: {error}"[:300]
    notice = f"the image of {size[0]} x {size[1]} pixels could not be made smaller ({why}); only the file was stored"
    return Fitted(None, None, data, size, notice)


def _shrink(data: bytes) -> tuple[bytes, tuple[int, int]]:
    library: Any = import_module("PIL.Image")
    image = library.open(io.BytesIO(data))
    form = image.format
    if image.mode == "P":
        image = image.convert("RGBA")
    image.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))
    out = io.BytesIO()
    image.save(out, format=form)
    return out.getvalue(), image.size


def measure(data: bytes) -> tuple[int, int] | None:
    """Return width and height, or None if unknown."""
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
