"""Hints about files that exist on the host, and that a session may not use.

Only the owner's sessions get them: another tenant must not learn which files exist. Hidden files and files of the
system are never named.
"""

import ast
import asyncio
import os
import re
import shlex
from pathlib import Path

from ingle.grants import OPEN_LEVELS
from ingle.isolation.paths import real_path
from ingle.isolation.policy import Mount, can_be_granted
from ingle.sessions.cells.hints import Failure, Hint

QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
MAX_TEXT_CHARS = 5000
"""Characters of an exception's text in which a path is looked for."""

SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Folders that are never shared with sessions."""

TEMPORARY = ("/tmp", "/var/tmp")
"""A session has its own. Folders in them can be granted, and they themselves not."""

NAMES = ("FileNotFoundError", "PermissionError", "NotADirectoryError")


class PathHints:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = os.getcwd()
        """The folder that the server was started in."""

    async def find(self, failure: Failure) -> str | None:
        """Return a sentence about the file that the exception names, if it exists outside of the grants."""
        if failure.tenant:
            return None
        return await asyncio.to_thread(self._look, failure)

    def _look(self, failure: Failure) -> str | None:
        path = named_path(failure.value)
        if path is None:
            return None
        if os.path.isabs(path):
            return None if failure.isolation in OPEN_LEVELS else self._outside(path, failure)
        here = os.path.join(self._folder, path)
        if self._folder == failure.cwd or not os.path.exists(here) or self._is_private(real_path(here)):
            return None
        if failure.isolation not in OPEN_LEVELS and not _holds(failure.granted, real_path(here)):
            return self._outside(here, failure)
        return (
            f"{path!r} is in {self._folder}, where the server was started, and this session started in {failure.cwd}; "
            f"use {here!r}, or start sessions there with cwd or `--folder {self._folder}`"
        )

    def _outside(self, path: str, failure: Failure) -> str | None:
        """Return a sentence about a file that a confined session does not see."""
        real = real_path(path)
        created = not os.path.exists(real)
        if created:
            # Then the folder is what matters.
            real = os.path.dirname(real)
        if not os.path.exists(real) or self._is_private(real) or _holds(failure.granted, real):
            return None
        if _holds(failure.later, real):
            return (
                f"{real!r} was granted after this session's process had started; new sessions have it, and this one "
                "from its next process on, which `exit()` starts, without the variables"
            )
        folder = real if os.path.isdir(real) else os.path.dirname(real)
        text = f"{real!r} exists on this machine, but it is in no folder that this session may use"
        if not can_be_granted(folder, self._home) or folder in TEMPORARY:
            return (
                None
                if created
                else f"{text}, and {folder} cannot be granted; move it into a folder of its own, and grant that"
            )
        shown = shlex.quote(folder)
        return (
            f"{text}; in a terminal, `ingle grant {shown}` grants its folder, `ingle grant {shown}:ro` for reading only"
            f" (at the start: --folder {shown}, or Client(folder={folder!r}) in Python); "
            "new sessions have it at once, this one from its next process on"
        )

    def _is_private(self, real: str) -> bool:
        """Return whether nothing is told about this file."""
        if any(Mount(each).holds(real) for each in (*SYSTEM, os.path.realpath(self._home))):
            return True
        return real == "/" or any(part.startswith(".") for part in real.split("/"))


def by_name(home: Path) -> dict[str, Hint]:
    """Return the hints for exceptions about files."""
    return dict.fromkeys(NAMES, PathHints(home).find)


def _holds(granted: tuple[tuple[str, bool], ...], real: str) -> bool:
    return any(Mount(folder).holds(real) for folder, _ in granted)


def named_path(text: str) -> str | None:
    """Return the first path in quotes in an exception's text: `[Errno 2] No such file or directory: 'x'`."""
    found = QUOTED.search(text[:MAX_TEXT_CHARS])
    if found is None:
        return None
    try:
        path = ast.literal_eval(found[0])
    except (ValueError, SyntaxError):
        return None
    return path if isinstance(path, str) and path and "\0" not in path else None
