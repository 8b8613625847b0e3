"""Hints about connections of a session that has no network."""

import re

from ingle.sessions.cells.hints import Failure, Hint

NAMES = (
    *("OSError", "ConnectionRefusedError", "gaierror", "URLError", "MaxRetryError", "ConnectionError", "ConnectError"),
    *("ClientConnectorError", "ClientConnectorDNSError"),
)
"""Exceptions of the standard library, urllib3, requests, httpx and aiohttp."""

MAX_TEXT_CHARS = 5000

UNREACHABLE = re.compile(r"Network is unreachable|Connection refused|name resolution|Name or service not known")

NO_NETWORK = (
    "this session has no network, only its own 127.0.0.1; create a session with network='allowlist', or ask the "
    "operator for --network allowlist"
)


async def find(failure: Failure) -> str | None:
    """Return a sentence if the session has no network, and the exception is about a host that it did not reach."""
    if failure.network != "none" or UNREACHABLE.search(failure.value[:MAX_TEXT_CHARS]) is None:
        return None
    return NO_NETWORK


def by_name() -> dict[str, Hint]:
    """Return the hints for exceptions about connections."""
    return dict.fromkeys(NAMES, find)
