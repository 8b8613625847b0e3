"""Paths with their links resolved, as far as the server may look at them. Every function blocks."""

import os
from collections.abc import Callable
from dataclasses import dataclass

MAX_PATH_PARTS = 1000
"""Maximum number of parts of a path to resolve, because links may be circular."""


@dataclass(frozen=True)
class Resolved:
    """Where a path leads, and the links on the way, by their real locations."""

    path: str
    links: tuple[str, ...] = ()


def resolve(path: str, looks_at: Callable[[str], bool] | None = None) -> Resolved | None:
    """Follow an absolute path, or return None if its links are circular.

    Parts for which `looks_at` is false are taken as they are written: nothing in the answer depends on whether they
    exist. A link that cannot be read counts as a name; `os.path.realpath` raises there.
    """
    real, todo = "/", path.split("/")
    links: list[str] = []
    for _ in range(MAX_PATH_PARTS):
        if not todo:
            return Resolved(real, tuple(links))
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            real = os.path.dirname(real)
            continue
        at = os.path.join(real, part)
        target = _target(at) if looks_at is None or looks_at(at) else None
        if target is None:
            real = at
        else:
            links.append(at)
            real = "/" if target.startswith("/") else real
            todo = target.split("/") + todo
    return None


def real_path(path: str) -> str:
    """Return where an absolute path leads, like `os.path.realpath`, and also where a link cannot be read."""
    resolved = resolve(path)
    return os.path.normpath(path) if resolved is None else resolved.path


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def is_missing(path: str) -> bool:
    """Return whether nothing has this path, as far as this user may look."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass
    return False
