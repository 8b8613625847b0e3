"""One mime bundle in words, for readers of text.

`text/plain` is what is read, unless it is only the name of an object that has something better to say. HTML is for
people: a reader of text is told that it is there. Pictures are described here; who can show them does.
"""

import re

from ingle.events import MimeBundle, Result
from ingle.render.image_info import MIMES, Picture, first_picture
from ingle.render.phrases import size

_NAMELESS = re.compile(r"<[\w.]+ (?:object|Figure)(?: at 0x[0-9a-fA-F]+)?>")
"""What `object.__repr__` says."""

_OBJECT = (
    r"<[\w.]+ object at 0x[0-9a-fA-F]+>|<\w+ object of \d+ artists>"
    r"|<Figure size [^<>]*>|<\w*Axes\w*: [^<>]*>"
    r"|Text\([^()']*, (?:'[^'\n]*'|\"[^\"\n]*\")\)"
)
_OBJECTS = re.compile(rf"(?:{_OBJECT}|array\(|dtype=object|[\[\](),\s])+")
"""What plotting calls return: parts of the picture by name, alone or in lists."""

_OBJECTS_LONGEST = 2_000

_WORDS = ("text/markdown", "text/latex", "application/json")
"""Read as they are when there is no better `text/plain`."""


def picture_of(bundle: MimeBundle) -> Picture | None:
    return first_picture(bundle[mime] for mime in MIMES if mime in bundle)


def described(picture: Picture) -> str:
    return f"{picture.mime} {picture.width} by {picture.height}, {size(len(picture.data) * 3 // 4)}"


def names_parts_of_a_picture(bundle: MimeBundle) -> bool:
    """Whether all there is to read are names of objects: beside the picture they are in, that says nothing."""
    plain = bundle.get("text/plain", "")
    return len(bundle) == 1 and len(plain) <= _OBJECTS_LONGEST and _OBJECTS.fullmatch(plain) is not None


def text_of(bundle: MimeBundle) -> str:
    """What there is to read in a bundle."""
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
    """A bundle as text alone, its picture described."""
    picture = picture_of(bundle)
    return text_of(bundle) if picture is None else f"[{described(picture)}]"


def shown_texts(result: Result, stream: str) -> list[str]:
    """What a cell has shown, as texts to be read by line: `displays`, `result` or `error`."""
    if stream == "error":
        return [] if result.error is None else [result.error.traceback.rstrip("\n")]
    bundles = result.displays if stream == "displays" else [result.result] if result.result is not None else []
    return [lines_of(bundle) for bundle in bundles]
