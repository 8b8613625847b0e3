"""The audit log: who did what, when, at which level, as JSON lines in `audit.log` of the data folder, mode 0600.

Code and commands appear as hash and size only; text, output and tokens never. Lines are ASCII with control characters
escaped, so that a terminal can show them safely. A thread writes them in order, a moment later. Full files are
rotated and the oldest removed. Several servers may share the log.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from pathlib import Path

FILE = "audit.log"
MAX_FILE_BYTES = 16 * 1024 * 1024
ROTATED_FILES = 4
"""Rotated files to retain."""

WRITE_DELAY_SECONDS = 0.2
"""Time between a note and its write."""

MAX_WAITING = 50_000
"""Maximum number of unwritten notes; more are only counted."""

logger = logging.getLogger(__name__)


class Audit:
    def __init__(self, home: Path) -> None:
        self._file = home / FILE
        self._waiting: list[str] = []
        self._left_out = 0
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[None] | None = None

    def note(
        self,
        action: str,
        *,
        caller: str | None = None,
        tenant: str = "",
        session: str | None = None,
        code: str | None = None,
        **more: object,
    ) -> None:
        """Record an action. Fields that are None are left out."""
        if len(self._waiting) >= MAX_WAITING:
            self._left_out += 1
            return
        about: dict[str, object] = {"time": round(time.time(), 3), "action": action, "tenant": tenant}
        given = {"caller": caller, "session": session, **more}
        about |= {name: value for name, value in given.items() if value is not None}
        if code is not None:
            data = code.encode("utf-8", "surrogatepass")
            about["sha256"] = hashlib.sha256(data).hexdigest()
            about["size"] = len(data)
        self._waiting.append(json.dumps(about, default=str).replace("\x7f", "\\u007f"))
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write_soon())

    async def _write_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(WRITE_DELAY_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        lines, self._waiting = self._waiting, []
        if self._left_out:
            lines.append(json.dumps({"time": round(time.time(), 3), "action": "left_out", "count": self._left_out}))
            self._left_out = 0
        try:
            await asyncio.to_thread(self._append, lines)
        except OSError as error:
            logger.error("%d lines of the audit log were lost: %s", len(lines), error)

    def _append(self, lines: list[str]) -> None:
        data = ("\n".join(lines) + "\n").encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._file, flags, 0o600)
        try:
            # The lock keeps lines whole, and lets only one server rotate the file.
            fcntl.flock(fd, fcntl.LOCK_EX)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if os.fstat(fd).st_size > MAX_FILE_BYTES:
                self._rotate(fd)
        finally:
            os.close(fd)

    def _rotate(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(fd), os.stat(self._file)):
                return  # another server has rotated it
            for number in range(ROTATED_FILES - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._file}.{number}", f"{self._file}.{number + 1}")
            os.replace(self._file, f"{self._file}.1")

    async def close(self) -> None:
        """Wait until everything is written."""
        if self._writing is not None:
            # Not cancelled, because unwritten lines would be lost.
            await asyncio.wait({self._writing})
