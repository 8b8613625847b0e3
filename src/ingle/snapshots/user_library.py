"""The user's library on disk: one file for each tenant, read when it changes, and written atomically.

It is never parsed, compiled or run here. Its text goes to sessions, and a fresh session compiles it. The compiled code
is cached by content and Python version.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from pathlib import Path

from ingle.events import Stdlib
from ingle.snapshots.disk_errors import sync_folder, system_errors

MAX_BYTES = 1024 * 1024
"""Maximum size: a library is hand-written code, not data."""

SETTLED_SECONDS = 0.1
"""Age at which another change is sure to change the modification time, because file system clocks are coarse."""


class Library:
    """Contents of the file at one moment. A session keeps the library it started with."""

    def __init__(self, text: bytes, problem: str = "") -> None:
        self.text = text
        self.problem = problem
        """Why it cannot be given to a session."""
        self.digest = hashlib.sha256(text).hexdigest()
        self.codes: dict[str, bytes] = {}
        """Compiled code by Python version."""
        self.listing: Stdlib | None = None


class StdlibFile:
    """The library file of one tenant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._library: Library | None = None
        self._mark: tuple[int, ...] = ()
        self.adding = asyncio.Lock()
        """Held during an addition; changes by other servers are noticed at the write."""

    async def read(self) -> Library | None:
        """Return the current library, or None if it is empty. Checking the file takes microseconds."""
        try:
            # Usually there is no file, and raising an exception takes longer than this check.
            status = os.stat(self._name) if os.access(self._name, os.F_OK) else None
        except OSError:
            status = None
        if status is None:
            self._library, self._mark = None, ()
            return None
        mark = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if mark != self._mark:
            text, problem = await asyncio.to_thread(_read, self.path)
            if self._library is None or self._library.text != text or self._library.problem != problem:
                self._library = Library(text, problem) if text.strip() or problem else None
            self._mark = mark if time.time() - status.st_ctime > SETTLED_SECONDS else ()
        return self._library

    async def write(self, before: Library | None, text: bytes) -> bool:
        """Replace the text `before` by this one. Return False if the file has changed meanwhile."""

        def work() -> bool:
            with system_errors(f"the library, {self.path.name} in the data folder,"):
                return self._write(before.text if before is not None else b"", text)

        return await asyncio.to_thread(work)

    def _write(self, before: bytes, text: bytes) -> bool:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                now = self.path.read_bytes()
            except FileNotFoundError:
                now = b""
            if now != before and (now.strip() or before.strip()):
                return False
            _write_whole(self.path, text)
        finally:
            os.close(lock)
        return True


def _read(path: Path) -> tuple[bytes, str]:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        return b"", f"it cannot be read ({error.strerror})"
    if len(text) > MAX_BYTES:
        return b"", f"it is larger than {MAX_BYTES} bytes"
    return text, ""


def _write_whole(path: Path, text: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # If the file is a link, its target is replaced.
        os.replace(draft, os.path.realpath(path))
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
