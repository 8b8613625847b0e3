"""Sender of a request: the interface it came through, and what the client calls itself.

Cells name both, beside the token, so that people can tell their own cells from those of an agent with the same token.
"""

import functools
import re

from starlette.types import Scope

from ingle.service import Service

CONSOLE, HTTP = "console", "http"

_PRODUCT = re.compile(rb"[^/(\x00-\x1f\x7f-\xff]+")
"""Start of a `User-Agent`, before its version and its comments."""


def sent(service: Service, scope: Scope) -> Service:
    """Return the service for requests of this sender."""
    headers = dict(scope["headers"])
    from_browser = b"origin" in headers or b"sec-fetch-site" in headers
    if from_browser and b"authorization" not in headers:
        return service.sent_by(CONSOLE)
    return service.sent_by(HTTP, client_name(headers.get(b"user-agent", b"")))


@functools.lru_cache(maxsize=256)
def client_name(agent: bytes) -> str:
    """Return the name in a `User-Agent` header; empty if it has none."""
    found = _PRODUCT.match(agent)
    return "" if found is None else found[0].decode().strip()
