"""Finding a service on this machine, or starting one that ends with its client. Everything here blocks.

A service is found through the data folder: by its socket under `run/`, which only its own user can open, so that no
token is needed. Only what `ingle serve` opened is taken: the server of an assistant, of `ingle run` or of another
client ends with its owner, and the sessions in it would.
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

START_PATIENCE = 60.0
"""How long a service that was started may take to listen; the disk may be cold, the machine busy."""

STOP_PATIENCE = 15.0
"""How long it may take to end its sessions and go; then it is killed, and they end by themselves."""

LOOK = 0.02
"""How often it is looked for meanwhile."""

SAID = 2000
"""Characters of its last words that an error repeats."""

SERVE = "serve"


@dataclass
class Local:
    """A service on this machine, and the child that it is, if this client started it."""

    path: Path
    info: ServerInfo
    child: "Child | None" = None


def find(home: Path) -> Local | None:
    """The service that runs on this data folder; the oldest when there are several."""
    for path, info in find_servers(home):
        if info.kind == SERVE:
            return Local(path, info)
    return None


class Child:
    """`ingle serve` as a child: it ends when its standard input does, so whatever becomes of this process."""

    def __init__(self, home: Path) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "ingle", "serve", "--host", "127.0.0.1", "--port", "0", "--until-eof"]
        try:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "INGLE_HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                # A Ctrl-C on the terminal is for this process, which may have more to say to its sessions.
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            raise Unreachable(f"no service could be started: {error}; start one with `ingle serve`") from None

    def wait_until_found(self, home: Path) -> Local:
        deadline = time.monotonic() + START_PATIENCE
        while time.monotonic() < deadline:
            for path, info in find_servers(home):
                if info.pid == self.process.pid:
                    return Local(path, info, self)
            code = self.process.poll()
            if code is not None:
                raise Unreachable(f"the service that was started ended at once, with exit code {code}: {self.said()}")
            time.sleep(LOOK)
        raise Unreachable(
            f"the service that was started did not listen within {START_PATIENCE:g} s; start one with `ingle serve` "
            f"and see what it says; so far: {self.said() or 'nothing'}"
        )

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()[-SAID:]

    def stop(self) -> None:
        """End it, and all its sessions with it."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()


def start(home: Path) -> Local:
    child = Child(home)
    try:
        return child.wait_until_found(home)
    except BaseException:
        child.stop()
        raise
