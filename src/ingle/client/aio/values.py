"""Values of a session."""

from ingle.client.aio.attached import AsyncAttached


class AsyncValues(AsyncAttached):
    """Methods for values of variables."""
