# Generated from ../aio/values.py by tools/unasync.py: edit that file, and run the script.
"""Values of a session's variables. The client never unpickles anything."""

import io
from typing import Any

from ingle import errors
from ingle.client.address import file_path
from ingle.client.sync.attached import Attached
from ingle.client.sync.io import in_thread
from ingle_worker.wire import values

VALUE_SECONDS = 120.0
"""Maximum time of one exchange: the session packs or unpacks the value."""


class Values(Attached):
    """Methods for values of variables."""

    def get(self, name: str) -> Any:
        """Return the value of a variable of the session.

        None, bool, int, float, str, list and dict come as they are, tuples as lists. Bytes, arrays of numpy, and tables
        of pandas, polars and pyarrow come as such; tables need pyarrow on both sides. Other values are refused: nothing
        is unpickled here.
        """
        self._attach()
        path = f"{self._path}/variables/{file_path(name)}/value"
        media_type, data = self._connection.exchange("GET", path, wait=VALUE_SECONDS, repeatable=True)
        kind = values.kind_of_media(media_type)
        if kind is None:
            raise errors.Unreachable(f"the server sent a value of the unknown type {media_type[:80]!r}; check the URL")
        return in_thread(_read, kind, data)

    def set(self, name: str, value: Any) -> None:
        """Set a variable of the session to a value of a kind that `get` returns."""
        kind, data = in_thread(_write, value)
        path = f"/variables/{file_path(name)}/value"
        headers = {"Content-Type": values.MEDIA_TYPES[kind]}
        self._request("PUT", path, content=data, headers=headers, wait=VALUE_SECONDS, repeatable=True)


def _read(kind: str, data: bytes) -> Any:
    try:
        return values.read(kind, io.BytesIO(data))
    except (values.Unsuitable, ValueError) as error:
        raise errors.InvalidRequest(f"this program cannot take the value: {error}") from None


def _write(value: Any) -> tuple[str, bytes]:
    file = io.BytesIO()
    try:
        kind = values.write(value, file)
    except values.Unsuitable as error:
        raise errors.InvalidRequest(f"this program cannot send the value: {error}") from None
    return kind, file.getvalue()
