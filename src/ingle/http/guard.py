"""Who may come in: a Host this server answers to, an Origin of such a host if there is one, and the token.

All three are asked of every request and every WebSocket, before any route is looked at. Only `/healthz` needs no
token. A page of a foreign site that reaches this port, by its own name or by one that was bent to point here, is
turned away before the token is looked at.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from ingle import errors

OPEN_PATH = "/healthz"

WILDCARDS = ("", "0.0.0.0", "::")
"""Addresses to listen on that are no address to be reached by."""

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]{0,5})?")
_ORIGIN = re.compile(r"https?://(?P<authority>[^/?#]+)", re.IGNORECASE)


def plain_host(host: str) -> str:
    """A host as it is compared: without case, brackets and the dot of the root."""
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether only this machine can mean itself by that name."""
    name = plain_host(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_bind(host: str, allowed_hosts: Iterable[str]) -> None:
    """Listening where other machines can reach is only done for hosts that were named."""
    named = {plain_host(each) for each in allowed_hosts}
    if is_loopback(host) or plain_host(host) in named or (host in WILDCARDS and named):
        return
    raise errors.InvalidRequest(
        f"other machines can reach {host or 'every address'}; to allow that, name the hosts under which "
        "they will address this server with --allowed-hosts, or listen on 127.0.0.1"
    )


class Guard:
    def __init__(self, app: ASGIApp, token: str, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._digest = _digest(token.encode())
        self._named = frozenset(plain_host(host) for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        asked: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"authorization": []}
        for name, value in scope["headers"]:
            if name in asked:
                asked[name].append(value)
        self._check_host(asked[b"host"])
        self._check_origin(asked[b"origin"])
        if scope["path"] != OPEN_PATH:
            self._check_token(asked[b"authorization"])

    def _check_host(self, values: list[bytes]) -> None:
        if len(values) != 1 or not self._answers_to(values[0].decode("latin-1")):
            raise errors.Misdirected(
                "this server does not answer to that Host; address it as it was started, "
                "or add the name to --allowed-hosts"
            )

    def _check_origin(self, values: list[bytes]) -> None:
        for value in values:
            origin = _ORIGIN.fullmatch(value.decode("latin-1"))
            if origin is None or not self._answers_to(origin["authority"]):
                raise errors.Forbidden(
                    "a page of another origin asks; only pages of this server's own hosts may, "
                    "so add its host to --allowed-hosts if it is yours"
                )

    def _check_token(self, values: list[bytes]) -> None:
        scheme, _, given = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        # Digests are of one length, and are compared in a time that does not depend on where they differ.
        if not hmac.compare_digest(_digest(given.strip()), self._digest) or scheme.lower() != b"bearer":
            raise errors.Unauthorized(
                "a valid token is needed: send the header `Authorization: Bearer TOKEN`; "
                "the server said at its start where its token is"
            )

    def _answers_to(self, authority: str) -> bool:
        match = _AUTHORITY.fullmatch(authority)
        return match is not None and (is_loopback(match["host"]) or plain_host(match["host"]) in self._named)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
