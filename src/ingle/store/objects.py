"""Objects of a store by their paths: what a folder and a bucket have in common.

Every method blocks, and is called in a thread. A path has parts of letters, digits, `.`, `-`, `_` and `%` between
slashes. `quoted` turns any text into such a part.
"""

import urllib.parse
from typing import BinaryIO, NamedTuple, Protocol


class Entry(NamedTuple):
    """An object in a listing."""

    path: str
    size: int
    modified: float
    """When it was written, by the clock of the store."""
    version: str
    """Another text after each write of other content."""


class Objects(Protocol):
    resolution: float
    """Seconds by which the time of an object may be too early."""

    def read(self, path: str) -> bytes | None:
        """Return the content of an object, or None if there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Create or replace an object. Readers see the old content or the new one, and nothing between."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create an object unless it exists. Return True for exactly one caller."""
        ...

    def upload(self, path: str, file: BinaryIO) -> None:
        """Create or replace an object with all that a file holds."""
        ...

    def download(self, path: str, file: BinaryIO) -> bool:
        """Write the content of an object to a file. Return False if there is none."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose path begins with a prefix: a folder with its slash, or also a part of a name."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""
        ...


def quoted(text: str) -> str:
    """Return a text as one part of a path. Different texts have different parts."""
    # A part of dots alone is a folder to some stores.
    return urllib.parse.quote(text, safe="").replace(".", "%2E") if text else "%"


def unquoted(part: str) -> str:
    return "" if part == "%" else urllib.parse.unquote(part)
