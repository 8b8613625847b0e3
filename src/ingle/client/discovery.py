"""Finds a service on this machine, or starts one that ends with its client. Every function blocks.

A service is found by its socket in `run/` of the data folder. Only its user can open it, so no token is needed. Only
services of `ingle serve` are used: others end with their owner, and would end the sessions too.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ingle.errors import Unreachable
from ingle.support.running_servers import ServerInfo, find_servers

START_SECONDS = 60.0
"""Time for a started service to listen; the disk may be slow and the machine busy."""

STOP_SECONDS = 15.0
"""Time for a service to end its sessions; then it is killed, and they end by themselves."""

POLL_SECONDS = 0.02
"""Pause between two checks meanwhile."""

MAX_OUTPUT_CHARS = 2000
"""Characters of the service's last output in an error."""

SERVE = "serve"


@dataclass
class Local:
    """A service on this machine, with its process if this client started it."""

    path: Path
    info: ServerInfo
    child: "Child | None" = None


def find(home: Path) -> Local | None:
    """Return the service of this data folder, the oldest if there are several."""
    for path, info in find_servers(home):
        if info.kind == SERVE:
            return Local(path, info)
    return None


class Child:
    """`ingle serve` as a child process. It ends when its standard input is closed, also by the death of this one."""

    def __init__(self, home: Path, folder: str | None) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "ingle", "serve", "--host", "127.0.0.1", "--port", "0", "--until-eof"]
        if folder is not None:
            command += ["--folder", folder]
        try:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "INGLE_HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                # Ctrl-C on the terminal must reach this process only, which decides what to do with its sessions.
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            raise Unreachable(f"the service could not be started: {error}; start one with `ingle serve`") from None

    def wait_until_found(self, home: Path) -> Local:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for path, info in find_servers(home):
                if info.pid == self.process.pid:
                    return Local(path, info, self)
            code = self.process.poll()
            if code is not None:
                raise Unreachable(f"the started service ended at once, with exit code {code}: {self.said()}")
            time.sleep(POLL_SECONDS)
        raise Unreachable(
            f"the started service did not listen within {START_SECONDS:g} s; run `ingle serve` to see why; "
            f"its output so far: {self.said() or 'nothing'}"
        )

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()[-MAX_OUTPUT_CHARS:]

    def stop(self) -> None:
        """End the service and all its sessions."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()


def start(home: Path, folder: str | None = None) -> Local:
    """Start a service whose sessions may use this folder, DIR or DIR:ro, and start in it."""
    child = Child(home, folder)
    try:
        return child.wait_until_found(home)
    except BaseException:
        child.stop()
        raise
