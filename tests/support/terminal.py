"""A command on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios

from support.server import PATIENCE
from support.waiting import wait_until

COMMAND = [sys.executable, "-m", "ingle"]


class Terminal:
    """A command on a terminal of its own, and what it has shown so far."""

    def __init__(self, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def read(self) -> None:
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the last who had it open is gone
                return
            if not data:
                return
            self.shown += data.decode(errors="surrogateescape")

    def shows(self, text: str) -> bool:
        def seen() -> bool:
            self.read()
            return text in self.shown

        return wait_until(seen, PATIENCE)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self) -> int:
        def over() -> bool:
            self.read()
            return self.process.poll() is not None

        assert wait_until(over, PATIENCE)
        self.read()
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
