"""The data folder: for one user only; and what the system says of it, full, read-only, broken, as an error of ours."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ingle import errors


def make_folder(folder: Path) -> None:
    """For this user alone, as are those on the way that are new."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def failing_plainly(what: str) -> Iterator[None]:
    """`what` is the thing that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise errors.DataFolderFailed(
            f"{what} cannot be read or written: {error.strerror or error}; see to the disk, and try again"
        ) from None
