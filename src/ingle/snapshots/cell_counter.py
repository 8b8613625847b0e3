"""The number of the last cell that started in a durable session, on disk.

It is eight bytes of a file, written in place. The next server reads them even if this one is killed right after. The
registry's thread would take as long as a short cell. A power cut may lose the latest numbers, but not those of saves.
"""

import contextlib
import os
import struct
from pathlib import Path

NAME = "cells"

MAX_CELL = 2**53
"""A larger number was not written by this class."""

_pack = struct.Struct("<Q").pack


class CellCounter:
    """File with the number of the last cell. The constructor blocks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        found = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        self.last = found if found <= MAX_CELL else 0
        """The number that earlier servers left."""

    def begun(self, cell: int) -> None:
        # Not mapped into memory: on a full disk, writing to mapped memory would kill the server.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _pack(cell), 0)

    def close(self) -> None:
        os.close(self._fd)
