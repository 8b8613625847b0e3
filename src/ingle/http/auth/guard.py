"""Guard of every request and WebSocket: checks Host, Origin, and token or cookie before any route is found.

Only `/healthz` and signing in need no token. A cookie counts for requests of this server's own pages alone. A read-only
link counts for the routes that it shows. A web page of another site is refused before its token is checked, also when
its host name was made to resolve to this machine (DNS rebinding).
"""

import asyncio
import functools
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingle import errors
from ingle.callers import DEFAULT_TENANT, OWNER, Meter
from ingle.callers import SERVICE as SERVICE
from ingle.http.auth import shares
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.principals import Principal
from ingle.http.auth.sender import sent
from ingle.http.auth.sign_in_page import SIGN_IN, SIGN_IN_LINK, ended_link_page, sign_in_page, wants_page
from ingle.http.auth.sign_ins import BrowserRequest
from ingle.http.translations import NO_TRANSLATIONS, PRINCIPAL, Translations
from ingle.service import Service

PEER = "ingle.peer"
"""Key of the scope for the connection's `Peer`, where the server has put one."""

OPEN_PATH = "/healthz"

OPEN_PATHS = (OPEN_PATH, SIGN_IN, SIGN_IN_LINK)
"""Paths that need no token."""

WILDCARDS = ("", "0.0.0.0", "::")
"""Addresses to listen on that no client can connect to."""

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]{0,5})?")
_ORIGIN = re.compile(r"https?://(?P<authority>[^/?#]+)", re.IGNORECASE)


def plain_host(host: str) -> str:
    """Return a host as it is compared: lower case, without brackets and the trailing dot."""
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def is_loopback(host: str) -> bool:
    """Return whether this name can only mean this machine."""
    name = plain_host(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_bind(host: str, allowed_hosts: Iterable[str], open: bool = False) -> None:
    """Refuse to listen where other machines connect, unless hosts are named and a token is needed."""
    if open and not is_loopback(host):
        raise errors.InvalidRequest(
            f"other machines can reach {host or 'every address'}, so requests must need a token there; "
            "leave out --no-auth, or listen on 127.0.0.1"
        )
    named = {plain_host(each) for each in allowed_hosts}
    if is_loopback(host) or plain_host(host) in named or (host in WILDCARDS and named):
        return
    raise errors.InvalidRequest(
        f"other machines can reach {host or 'every address'}; to allow that, name the hosts under which "
        "they will address this server with --allowed-hosts, or listen on 127.0.0.1"
    )


class Peer:
    """Client at the other end of a connection."""

    def __init__(self, held: Counter[str] | None = None, share: int = 0) -> None:
        """`held` counts the connections of each tenant, and `share` is how many one of them may have."""
        self._held = held if held is not None else Counter()
        self._share = share
        self._tenant: str | None = None

    @property
    def authenticated(self) -> bool:
        """Whether one of its requests had a valid token."""
        return self._tenant is not None

    def authenticate(self, tenant: str) -> None:
        """Count the connection as this tenant's. Raise Unavailable if it has too many; the owner never has."""
        if tenant == self._tenant:
            return
        if tenant != DEFAULT_TENANT and 0 < self._share <= self._held[tenant]:
            raise errors.Unavailable(
                f"this tenant has {self._share} connections, and more would keep others out; close some of them"
            )
        self.leave()
        self._tenant = tenant
        self._held[tenant] += 1

    def leave(self) -> None:
        """Count the connection no more."""
        if self._tenant is not None:
            self._held[self._tenant] -= 1
            if not self._held[self._tenant]:
                del self._held[self._tenant]
            self._tenant = None


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials,
        allowed_hosts: Iterable[str] = (),
        translations: Translations = NO_TRANSLATIONS,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._principals = credentials.principals
        self._translations = translations
        named = frozenset(plain_host(host) for host in allowed_hosts)

        # Clients send the same few hosts again and again.
        @functools.lru_cache(maxsize=256)
        def answers_to(authority: bytes) -> bool:
            match = _AUTHORITY.fullmatch(authority.decode("latin-1"))
            return match is not None and (is_loopback(match["host"]) or plain_host(match["host"]) in named)

        self._answers_to = answers_to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            principal = await self._check(scope)
        except errors.Unauthorized:
            if not wants_page(scope) or self._translations.find(scope) is not None:
                raise
            await sign_in_page(scope["path"])(scope, receive, send)
            return
        except errors.NotFound:
            # A link that has ended, or the session it showed.
            if not wants_page(scope):
                raise
            await ended_link_page()(scope, receive, send)
            return
        if principal is not None:
            scope[SERVICE] = sent(principal.service, scope)
            scope[PRINCIPAL] = principal
            if (peer := scope.get(PEER)) is not None:
                peer.authenticate(principal.caller.tenant)
            if principal.meter is not None:
                receive, send = measured(principal.meter, receive, send)
            if scope["type"] == "http" and principal.caller is not OWNER:
                async with principal.request():
                    await self._app(scope, receive, send)
                return
        # The endpoint of a WebSocket closes it itself when the token is revoked, with a reason.
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> Principal | None:
        """Return the caller; None for a path that needs no token."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        authorizations: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"authorization":
                authorizations.append(value)
            elif name == b"origin":
                origins.append(value)
        if len(hosts) != 1 or not self._answers_to(hosts[0]):
            raise errors.Misdirected(
                "this server does not answer to that Host; address it as it was started, "
                "or add the name to --allowed-hosts"
            )
        for value in origins:
            origin = _ORIGIN.fullmatch(value.decode("latin-1"))
            if origin is None or not self._answers_to(origin["authority"].encode("latin-1")):
                raise errors.Forbidden(
                    "this request comes from a page of another origin; "
                    "add its host to --allowed-hosts if the page is yours"
                )
        if scope["path"] in OPEN_PATHS:
            return None
        if scope["path"].startswith(shares.PREFIX):
            return await self._credentials.shares.open(scope)
        if self._principals.anybody is not None:
            return self._principals.anybody
        if (translation := self._translations.find(scope)) is not None:
            found = await translation.authenticate(scope, self._principals)
            if found is None:
                raise errors.Unauthorized("a valid token is needed: `ingle token new` makes one")
            return found
        if not authorizations and (signed_in := self._signed_in(scope)) is not None:
            return signed_in
        scheme, _, given = authorizations[0].partition(b" ") if len(authorizations) == 1 else (b"", b"", b"")
        token = given.strip()
        principal = self._principals.known(token) or await self._principals.find(token)
        if principal is None or scheme.lower() != b"bearer":
            raise errors.Unauthorized(
                "a valid token is needed: set INGLE_TOKEN, or pass --token-file to `ingle` or token= to the client; "
                "over HTTP send the header `Authorization: Bearer TOKEN`; the server said at its start where its token "
                "is"
            )
        return principal

    def _signed_in(self, scope: Scope) -> Principal | None:
        """Return the caller whose cookie the request has."""
        browser = BrowserRequest(scope)
        principal = self._credentials.sign_ins.find(browser.cookies)
        if principal is not None and not browser.from_own_page:
            raise errors.Forbidden(
                "a cookie counts only for requests from this server's own pages; a proxy must pass on the Host header"
            )
        return principal


class Owner:
    """Replaces the guard on the unix socket, where the kernel has checked that the owner connects."""

    def __init__(self, app: ASGIApp, service: Service, principal: Principal | None = None) -> None:
        """`principal` is the owner as browsers are signed in; None where there is nothing to sign in to."""
        self._app = app
        self._service = service
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVICE] = sent(self._service, scope)
        scope[PRINCIPAL] = self._principal
        await self._app(scope, receive, send)


def measured(meter: Meter, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap both so that every byte counts. Past the rate, a new request is refused and a stream is slowed down."""
    delay = meter.delay()
    if delay:
        raise errors.QuotaExceeded("this token has used up its bytes for now; ask again later", delay)

    async def counted_receive() -> Message:
        message = await receive()
        meter.take(len(message.get("body") or message.get("text") or message.get("bytes") or b""))
        return message

    async def counted_send(message: Message) -> None:
        data = message.get("body") or message.get("text") or message.get("bytes") or b""
        if message.get("more_body") or message["type"] == "websocket.send":
            await asyncio.sleep(meter.delay())
        meter.take(len(data))
        await send(message)

    return counted_receive, counted_send
