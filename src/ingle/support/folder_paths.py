"""Paths of folders: which of them lie in others, and how files in them are told. Pure."""

from collections.abc import Iterable


def outermost(folders: Iterable[str]) -> list[str]:
    """Return the folders that lie in no other of them, sorted."""
    found = sorted(set(folders))
    return [each for each in found if not any(each.startswith(f"{other}/") for other in found)]


def told_path(start: str, folder: str, path: str) -> str:
    """Return the path of a file in a folder: relative to `start` if it lies there, else in full."""
    whole = f"{folder}/{path}"
    return whole[len(start) + 1 :] if whole.startswith(f"{start}/") else whole
