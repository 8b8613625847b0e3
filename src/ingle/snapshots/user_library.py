"""The user's own library on disk: one file for each tenant, read when it has changed, written whole or not at all.

Nothing in it is parsed, compiled or run here: its text goes to sessions, and its code comes from a session that had
run nothing yet. It is kept by what is in the file and by the version of Python, for the sessions to come.
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
from ingle.snapshots.disk_errors import failing_plainly

MAX_SIZE = 1024 * 1024
"""Bytes of a library; it is code that somebody wrote, not data."""

SETTLED = 0.1
"""Seconds after which a file that was changed again would have another time of change: clocks of file systems are
coarse."""


class Library:
    """What stood in the file at one moment. Sessions keep the one they began with."""

    def __init__(self, text: bytes, problem: str = "") -> None:
        self.text = text
        self.problem = problem
        """Why it cannot even be given to a session."""
        self.digest = hashlib.sha256(text).hexdigest()
        self.codes: dict[str, bytes] = {}
        """By version of Python."""
        self.listing: Stdlib | None = None


class StdlibFile:
    """The file of one tenant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._library: Library | None = None
        self._mark: tuple[int, ...] = ()
        self.adding = asyncio.Lock()
        """One addition at a time; those of other servers are noticed when it is written."""

    async def read(self) -> Library | None:
        """What is in it now; None when there is nothing. A look at the file takes a few microseconds."""
        try:
            # Most often there is none; an exception takes longer to make than it takes to ask.
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
            self._mark = mark if time.time() - status.st_ctime > SETTLED else ()
        return self._library

    async def write(self, before: Library | None, text: bytes) -> bool:
        """Put this text in place of what was there before; False when that has changed meanwhile."""

        def work() -> bool:
            with failing_plainly(f"the library, {self.path.name} in the data folder,"):
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
            text = file.read(MAX_SIZE + 1)
    except OSError as error:
        return b"", f"it cannot be read ({error.strerror})"
    if len(text) > MAX_SIZE:
        return b"", f"it is larger than {MAX_SIZE} bytes"
    return text, ""


def _write_whole(path: Path, text: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link stays one: what it points to is replaced.
        os.replace(draft, os.path.realpath(path))
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
