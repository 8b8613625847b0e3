"""Requests to a sandbox: which one a request is about, and whether it may go on."""

from starlette.requests import Request
from starlette.types import Scope

from ingle.compat.e2b.sandboxes import PAUSED, Sandbox, SandboxNotRunning

SANDBOX = "ingle.e2b.sandbox"
"""Key of the scope at which the translation stores the sandbox of a request."""

ID_HEADER = b"e2b-sandbox-id"
PORT_HEADER = b"e2b-sandbox-port"
TRAFFIC_HEADER = b"e2b-traffic-access-token"
ACCESS_HEADER = b"x-access-token"
KEY_HEADER = b"x-api-key"


def header(scope: Scope, wanted: bytes) -> str:
    """Return the value of a header; empty if there is none."""
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return ""


def sandbox_of(request: Request) -> Sandbox:
    """Return the sandbox of a request. Raise SandboxNotRunning if it is paused."""
    sandbox: Sandbox = request.scope[SANDBOX]
    if sandbox.paused:
        raise SandboxNotRunning(PAUSED)
    return sandbox
