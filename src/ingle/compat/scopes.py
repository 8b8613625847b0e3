"""Scopes that requests of other protocols need."""

from starlette.types import Scope

from ingle.callers import EXECUTE, READ
from ingle.service import Service


def check_scope(scope: Scope) -> Service:
    """Return the service of the caller, if its token allows this request: GET needs `read`, all else `execute`.

    A sandbox acts with the token that made it. So the token of each request is checked here.
    """
    service: Service = scope["ingle.service"]
    service.check(READ if scope.get("method") in ("GET", "HEAD") else EXECUTE)
    return service
