"""Who did what, when, and how confined: one JSON object a line, in `audit.log` of the data folder, mode 0600.

Of code and commands only the hash and the size are kept; never their text, output, or a token. A line has only ASCII,
with control characters escaped, so that reading it in a terminal does nothing. To note costs microseconds; what was
noted is written by a thread, a moment later and in order. A file that is full is put aside, and the oldest go: the log
is bounded. Several servers may share it.
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
FULL = 16 * 1024 * 1024
KEPT = 4
"""Full files that are kept."""

DELAY = 0.2
"""Between a note and its line on the disk."""

MOST_WAITING = 50_000
"""Notes that wait for the disk; past it they are counted only."""

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
        """What happened. Whatever is None is left out."""
        if len(self._waiting) >= MOST_WAITING:
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
            await asyncio.sleep(DELAY)
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
            # Servers take turns, so that lines stay whole and one of them puts a full file aside.
            fcntl.flock(fd, fcntl.LOCK_EX)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if os.fstat(fd).st_size > FULL:
                self._put_aside(fd)
        finally:
            os.close(fd)

    def _put_aside(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(fd), os.stat(self._file)):
                return  # another server has done it
            for number in range(KEPT - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._file}.{number}", f"{self._file}.{number + 1}")
            os.replace(self._file, f"{self._file}.1")

    async def close(self) -> None:
        """Until everything noted is written."""
        if self._writing is not None:
            # Not called off: lines that wait for a thread would be lost.
            await asyncio.wait({self._writing})
