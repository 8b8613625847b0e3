"""Pictures on a terminal: inline where it can show them, or else saved, and named by the path of the file."""

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

from ingle.events import MimeBundle
from ingle.render.image_info import Picture
from ingle.render.mime import SUFFIXES, described, picture_of

KITTY, ITERM, SIXEL = "kitty", "iterm2", "sixel"

KITTY_CHUNK = 4096
"""Characters of one escape sequence; kitty takes no more."""

SIXEL_PROGRAM = "img2sixel"
SIXEL_SECONDS = 5.0

SVG = "image/svg+xml"


def way_to_show(environ: Mapping[str, str]) -> str | None:
    """Return how this terminal shows pictures; None if it does not, or a multiplexer stands between."""
    if "TMUX" in environ or environ.get("TERM", "").startswith("screen"):
        return None
    if "KITTY_WINDOW_ID" in environ or environ.get("TERM") == "xterm-kitty" or environ.get("TERM_PROGRAM") == "ghostty":
        return KITTY
    if environ.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm"):
        return ITERM
    if environ.get("TERM", "").startswith(("foot", "mlterm", "contour")) and shutil.which(SIXEL_PROGRAM):
        return SIXEL
    return None


class Pictures:
    """Pictures of one attachment. Files stay after it, since their paths are on the screen."""

    def __init__(self, way: str | None) -> None:
        self._way = way
        self._folder: str | None = None
        self._count = 0

    def show(self, bundle: MimeBundle) -> str | None:
        """Return the text that shows the picture of a bundle; None if it has none. Blocks."""
        picture = picture_of(bundle)
        if picture is None:
            svg = bundle.get(SVG)
            return None if svg is None else f"[{SVG}: {self._save(svg.encode('utf-8', 'replace'), SUFFIXES[SVG])}]\n"
        inline = self._inline(picture)
        if inline is not None:
            return inline
        path = self._save(base64.b64decode(picture.data), SUFFIXES[picture.mime])
        return f"[{described(picture)}: {path}]\n"

    def _save(self, data: bytes, suffix: str) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="ingle-figures-")
        self._count += 1
        path = os.path.join(self._folder, f"figure-{self._count}.{suffix}")
        with open(path, "xb") as file:
            file.write(data)
        return path

    def _inline(self, picture: Picture) -> str | None:
        # The data is base64 of a picture that was recognised, so that it holds no control characters.
        if self._way == KITTY and picture.mime == "image/png":
            return _kitty(picture.data)
        if self._way == ITERM:
            return f"\x1b]1337;File=inline=1;size={len(picture.data) * 3 // 4}:{picture.data}\x07\n"
        if self._way == SIXEL:
            return _sixel(base64.b64decode(picture.data))
        return None


def _kitty(data: str) -> str:
    chunks = [data[at : at + KITTY_CHUNK] for at in range(0, len(data), KITTY_CHUNK)]
    parts = []
    for place, chunk in enumerate(chunks):
        more = int(place < len(chunks) - 1)
        head = f"f=100,a=T,m={more}" if place == 0 else f"m={more}"
        parts.append(f"\x1b_G{head};{chunk}\x1b\\")
    return "".join(parts) + "\n"


def _sixel(data: bytes) -> str | None:
    try:
        made = subprocess.run([SIXEL_PROGRAM, "-"], input=data, capture_output=True, timeout=SIXEL_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return made.stdout.decode("ascii", "replace") + "\n"
