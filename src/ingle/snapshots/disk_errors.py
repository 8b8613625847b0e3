"""Errors of the data folder (full, read-only, broken) as errors of ingle, and private folders on the disk."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ingle import errors


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents for this user alone."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Turn an OSError into DataFolderFailed. `what` cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise errors.DataFolderFailed(
            f"{what} cannot be read or written: {error.strerror or error}; check the disk, and retry"
        ) from None


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
