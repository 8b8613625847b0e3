"""A command in a terminal of tmux: keys go in as a person types them, and the screen is read as a person sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from support.waiting import wait_until

MISSING = "tmux is missing; install it with `apt-get install tmux`"

SCREEN_SECONDS = 40.0


def has_tmux() -> bool:
    return shutil.which("tmux") is not None


class Tmux:
    """A server of tmux with one window, in which the command runs."""

    def __init__(self, *command: str, env: dict[str, str], columns: int = 100, rows: int = 50) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ingle-tmux-")
        self._socket = str(Path(self._folder.name) / "socket")
        self._env = {**os.environ, **env, "TERM": "xterm-256color"}
        size = ("-x", str(columns), "-y", str(rows))
        # The window stays after the end of its command, so that the last lines can be read.
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, *command, ";", "set-option", "remain-on-exit", "on")

    def _tmux(self, *args: str) -> str:
        command = ["tmux", "-S", self._socket, *args]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout

    def keys(self, *keys: str) -> None:
        """Press keys: names such as `Enter` and `C-c`, or text after `-l`."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type text and press Enter."""
        self.keys("-l", text)
        self.keys("Enter")

    def paste(self, text: str) -> None:
        """Paste text as a terminal does (bracketed)."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def screen(self, *, escapes: bool = False) -> str:
        """Return all that was shown, also what has scrolled away."""
        return self._tmux("capture-pane", "-p", "-S", "-1000", *(["-e"] if escapes else []))

    def wait_for(self, text: str) -> str:
        """Wait until the screen holds this text. Return the screen."""
        assert wait_until(lambda: text in self.screen(), SCREEN_SECONDS), self.screen()
        return self.screen()

    def wait_ended(self) -> None:
        """Wait until the command has ended."""
        assert wait_until(self._is_dead, SCREEN_SECONDS), self.screen()

    def _is_dead(self) -> bool:
        return self._tmux("display-message", "-p", "#{pane_dead}").strip() == "1"

    def __enter__(self) -> Tmux:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tmux("kill-server")
        self._folder.cleanup()
