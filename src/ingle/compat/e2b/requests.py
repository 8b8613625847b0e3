"""Requests to a sandbox: which one a request is about, and whether it may go on."""

from starlette.requests import Request

from ingle.compat.e2b.sandboxes import PAUSED, Sandbox, SandboxNotRunning

SANDBOX = "ingle.e2b.sandbox"
"""Key of the scope at which the translation stores the sandbox of a request."""

ID_HEADER = b"e2b-sandbox-id"
TRAFFIC_HEADER = b"e2b-traffic-access-token"
ACCESS_HEADER = b"x-access-token"
KEY_HEADER = b"x-api-key"


def sandbox_of(request: Request) -> Sandbox:
    """Return the sandbox of a request. Raise SandboxNotRunning if it is paused."""
    sandbox: Sandbox = request.scope[SANDBOX]
    if sandbox.paused:
        raise SandboxNotRunning(PAUSED)
    return sandbox
