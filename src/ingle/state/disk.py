"""What the system says of the data folder, as an error of ours: full, read-only, not allowed, broken."""

import contextlib
from collections.abc import Iterator

from ingle import errors


@contextlib.contextmanager
def failing_plainly(what: str) -> Iterator[None]:
    """`what` is the thing that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise errors.DataFolderFailed(
            f"{what} cannot be read or written: {error.strerror or error}; see to the disk, and try again"
        ) from None
