"""Static files of the console, in memory. Their address has a digest of all of them, so browsers may keep them."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}

VERSION_CHARS = 16


@dataclass(frozen=True)
class Asset:
    data: bytes
    media_type: str


@dataclass(frozen=True)
class Assets:
    """Files by path, and the digest that stands in their address."""

    files: dict[str, Asset]
    version: str

    @property
    def first_modules(self) -> list[str]:
        """Paths of the modules that every page loads, for a browser to fetch all at once."""
        return [path for path in self.files if path.endswith(".js") and path.startswith(("app/", "vendor/preact"))]


@cache
def load() -> Assets:
    """Read all files. Blocks."""
    files, digest = {}, hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in MEDIA_TYPES:
            name, data = str(path.relative_to(FOLDER)), path.read_bytes()
            files[name] = Asset(data, MEDIA_TYPES[path.suffix])
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return Assets(files, digest.hexdigest()[:VERSION_CHARS])
