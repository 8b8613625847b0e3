"""`ingle serve`, started by the interpreter that has ingle."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

INGLE_PYTHON = "INGLE_COMPAT_PYTHON"
"""Environment variable with the interpreter that has ingle."""

PATIENCE = 30.0


@dataclass(frozen=True)
class Server:
    url: str
    token: str
    other_token: str
    """Token of another tenant."""
    home: Path


class running:
    """`ingle serve` on a data folder, while the context lasts. It gives the URL."""

    def __init__(self, home: Path, *flags: str) -> None:
        command = [os.environ[INGLE_PYTHON], "-m", "ingle", "serve", "--port", "0", *flags]
        env = {**os.environ, "INGLE_HOME": str(home)}
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> str:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if line.startswith("  stop"):
                break
        found = re.search(r"http://\S+", "".join(said))
        assert found, "".join(said)
        # A full pipe would hold up the server.
        self._reading = threading.Thread(target=self._process.stderr.read)
        self._reading.start()
        return found[0]

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0
        self._reading.join(PATIENCE)


def ingle(home: Path, *arguments: str) -> str:
    """Run a command of ingle on a data folder. Return what it prints."""
    command = [os.environ[INGLE_PYTHON], "-m", "ingle", *arguments]
    env = {**os.environ, "INGLE_HOME": str(home)}
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_token(home: Path, name: str, *options: str) -> str:
    """Make a token of a tenant of that name."""
    return ingle(home, "token", "new", name, *options).split()[0]
