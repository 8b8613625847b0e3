"""Type and size of images, read from their bytes.

Data from a worker is untrusted, and model APIs refuse images with a wrong type or broken base64. So only an image that
is recognised here counts as one.
"""

import binascii
from collections.abc import Iterable
from typing import NamedTuple

MIMES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Image types that models accept, the preferred first."""


class Picture(NamedTuple):
    mime: str
    data: str
    """Base64 without line breaks."""
    width: int
    height: int


def picture(data: str) -> Picture | None:
    """Return the image in this base64, or None."""
    text = "".join(data.split())
    try:
        raw = binascii.a2b_base64(text.encode(), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    found = _recognise(raw)
    return Picture(found[0], text, *found[1]) if found is not None and all(found[1]) else None


def media_type(raw: bytes) -> str:
    """Return the media type of these bytes."""
    found = _recognise(raw)
    return found[0] if found is not None else "application/octet-stream"


def _recognise(raw: bytes) -> tuple[str, tuple[int, int]] | None:
    for mime, measure in (("image/png", _png), ("image/jpeg", _jpeg), ("image/webp", _webp), ("image/gif", _gif)):
        size = measure(raw)
        if size is not None:
            return mime, size
    return None


def first_picture(texts: Iterable[str]) -> Picture | None:
    return next((found for text in texts if (found := picture(text)) is not None), None)


def _png(raw: bytes) -> tuple[int, int] | None:
    if raw[:8] != b"\x89PNG\r\n\x1a\n" or raw[12:16] != b"IHDR" or len(raw) < 24:
        return None
    return int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")


def _gif(raw: bytes) -> tuple[int, int] | None:
    if raw[:6] not in (b"GIF87a", b"GIF89a") or len(raw) < 10:
        return None
    return int.from_bytes(raw[6:8], "little"), int.from_bytes(raw[8:10], "little")


def _webp(raw: bytes) -> tuple[int, int] | None:
    if raw[:4] != b"RIFF" or raw[8:12] != b"WEBP" or len(raw) < 30:
        return None
    kind = raw[12:16]
    if kind == b"VP8X":
        return int.from_bytes(raw[24:27], "little") + 1, int.from_bytes(raw[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(raw[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(raw[26:28], "little") & 0x3FFF, int.from_bytes(raw[28:30], "little") & 0x3FFF
    return None


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    """Return the size from the frame header, which follows any number of other segments."""
    if raw[:3] != b"\xff\xd8\xff":
        return None
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:
        marker, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(raw[at + 7 : at + 9], "big"), int.from_bytes(raw[at + 5 : at + 7], "big")
        at += 1 if marker == 0xFF else 2 + length
    return None
