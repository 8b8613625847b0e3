"""Requests of all translations: their headers, the rights of their token, and the end of their connection."""

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.callers import EXECUTE, READ, SERVICE
from ingle.service import Service


def check_scope(scope: Scope) -> Service:
    """Return the service of the caller, if its token allows this request: GET needs `read`, all else `execute`.

    A sandbox acts with the token that made it. So the token of each request is checked here.
    """
    service: Service = scope[SERVICE]
    service.check(READ if scope.get("method") in ("GET", "HEAD") else EXECUTE)
    return service


def header(scope: Scope, wanted: bytes) -> str:
    """Return the value of a header; empty if there is none."""
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return ""


def authorization(scope: Scope) -> tuple[str, bytes]:
    """Return the scheme of the header `Authorization` in lower case, and what follows it; both empty without one."""
    scheme, _, credentials = header(scope, b"authorization").partition(" ")
    return scheme.lower(), credentials.strip().encode("latin-1")


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request whose path means nothing."""
    raise errors.NotFound(f"there is no route {scope['path'][:200]!r}")


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has gone."""
    while not (await receive())["type"].endswith(".disconnect"):
        pass


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run the work until its end, or until the client has gone. Return whether it has ended; its failure is raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if working.cancelled():
        return False
    working.result()
    return True


def moment(when: datetime) -> str:
    """Return a time in UTC as these protocols write it."""
    return when.isoformat().replace("+00:00", "Z")
