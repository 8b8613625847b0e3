"""The session's own folder. Its files are saved with the session, so paths below it are saved relative to it.

A session that is loaded has a folder of its own, and must not use the files of the session that was saved.
"""

import os

from ingle_worker.wire.constants import HOMES

_paths: "list[str]" = []
"""Paths of the folder: the one in use first, then those that it had in the sessions this one descends from."""


def start(folder: str) -> None:
    """Set the folder of a new session."""
    _paths[:] = [folder] if folder else []


def move(folder: str) -> None:
    """Set the folder of a copy. Files keep the names that they were opened with, in the folder of the original."""
    _paths[:] = [folder, *(each for each in _paths if each != folder)]


def relative(path: str) -> str:
    """Return a path below the folder as a relative one, and any other as it is."""
    for folder in (*_paths, *(home for home in HOMES if _is_shown_at(home))):
        if path == folder or path.startswith(f"{folder}/"):
            return os.path.relpath(path, folder)
    return path


def absolute(path: str) -> str:
    """Return a path that `relative` returned, as one of this session."""
    return os.path.normpath(os.path.join(_paths[0], path)) if _paths else path


def _is_shown_at(home: str) -> bool:
    """Return whether a sandbox shows the folder at this path too."""
    try:
        return bool(_paths) and os.path.samefile(home, _paths[0])
    except OSError:
        return False
