"""The number of the last cell that began in a durable session, where it outlives the server.

Eight bytes of a file, written in place: the kernel has them at once, and the next server reads them though this one is
killed in the same moment. The registry would take as long to be told, in its thread, as a short cell takes to run. A
power cut may lose the last ones; the number of a cell that was saved is in the registry.
"""

import contextlib
import os
import struct
from pathlib import Path

NAME = "cells"

HIGHEST = 2**53
"""A number above it was not written here."""

_pack = struct.Struct("<Q").pack


class CellCount:
    """Making one blocks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        found = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        self.last = found if found <= HIGHEST else 0
        """As earlier servers left it."""

    def begun(self, cell: int) -> None:
        # Not mapped into memory: on a full disk a write that is a call fails, and one that is none ends the server.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _pack(cell), 0)

    def close(self) -> None:
        os.close(self._fd)
