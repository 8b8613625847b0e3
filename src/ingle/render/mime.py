"""Text of a mime bundle, for readers of text.

`text/plain` is used unless it is only an object's default repr and a better text exists. HTML and images are described
in one line.
"""

import re

from ingle.events import MimeBundle, Result
from ingle.render.image_info import MIMES, Picture, first_picture
from ingle.render.phrases import size

SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", "image/svg+xml": "svg"}
"""Endings of the names of files with images, by mime type."""

_NAMELESS = re.compile(r"<[\w.]+ (?:object|Figure)(?: at 0x[0-9a-fA-F]+)?>")
"""The default `object.__repr__`."""

_OBJECT = (
    r"<[\w.]+ object at 0x[0-9a-fA-F]+>|<\w+ object of \d+ artists>"
    r"|<Figure size [^<>]*>|<\w*Axes\w*: [^<>]*>"
    r"|Text\([^()']*, (?:'[^'\n]*'|\"[^\"\n]*\")\)"
)
_OBJECTS = re.compile(rf"(?:{_OBJECT}|array\(|dtype=object|[\[\](),\s])+")
"""Values of plotting calls: parts of the figure by name, alone or in lists."""

_OBJECTS_LONGEST = 2_000

_WORDS = ("text/markdown", "text/latex", "application/json")
"""Used as text if there is no better `text/plain`."""


def picture_of(bundle: MimeBundle) -> Picture | None:
    return first_picture(bundle[mime] for mime in MIMES if mime in bundle)


def described(picture: Picture) -> str:
    return f"{picture.mime} {picture.width} by {picture.height}, {size(len(picture.data) * 3 // 4)}"


def names_parts_of_a_picture(bundle: MimeBundle) -> bool:
    """Return whether the text only names objects, which says nothing beside the picture of them."""
    plain = bundle.get("text/plain", "")
    return len(bundle) == 1 and len(plain) <= _OBJECTS_LONGEST and _OBJECTS.fullmatch(plain) is not None


def text_of(bundle: MimeBundle) -> str:
    """Return the readable text of a bundle."""
    plain = bundle.get("text/plain", "")
    nameless = not plain or _NAMELESS.fullmatch(plain.strip()) is not None
    if nameless:
        for mime in _WORDS:
            if mime in bundle:
                return bundle[mime]
    unreadable = [
        f"{mime}, {size(len(data.encode('utf-8', 'replace')))}"
        for mime, data in bundle.items()
        if mime == "image/svg+xml" or (nameless and mime == "text/html")
    ]
    if not unreadable:
        return plain
    note = f"[{'; '.join(unreadable)}: shown to people]"
    return note if nameless else f"{plain}\n{note}"


def lines_of(bundle: MimeBundle) -> str:
    """Return a bundle as text alone, with its image described."""
    picture = picture_of(bundle)
    return text_of(bundle) if picture is None else f"[{described(picture)}]"


def shown_texts(result: Result, stream: str) -> list[str]:
    """Return the texts of a cell's `displays`, `result` or `error`, to be read by line."""
    if stream == "error":
        return [] if result.error is None else [result.error.traceback.rstrip("\n")]
    bundles = result.displays if stream == "displays" else [result.result] if result.result is not None else []
    return [lines_of(bundle) for bundle in bundles]
