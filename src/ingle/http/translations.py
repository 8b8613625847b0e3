"""Protocols of other servers, served on the same port behind the same guard.

A translation answers the requests below its paths with the verbs of the service. It reads the caller's token where its
protocol puts it, and it answers errors in the form of its protocol, those of the guard included.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.http.auth.principals import Principal, Principals

PRINCIPAL = "ingle.principal"
"""Key of the scope at which the guard stores the `Principal` that makes a request."""

_FOUND = "ingle.translation"


class Translation(Protocol):
    """One protocol of another server, as an ASGI app. `scope["ingle.service"]` acts for the caller."""

    @property
    def name(self) -> str: ...

    @property
    def paths(self) -> Sequence[str]:
        """Paths that belong to it, each with all that lies below it. Of two translations the longer path wins."""
        ...

    async def authenticate(self, scope: Scope, principals: Principals) -> Principal | None:
        """Return the caller whose token the request has; None without a valid one."""
        ...

    def refuse(self, scope: Scope, error: errors.IngleError) -> Response:
        """Return the error in the form of this protocol."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True)
class Protocols:
    """Translations of a server, and ports of the loopback interface on which one of them needs no token."""

    translations: tuple[Translation, ...] = ()
    open_ports: Mapping[int, Translation] = field(default_factory=dict)


class Translations:
    """Finds the translation that a request belongs to."""

    def __init__(self, translations: Sequence[Translation] = ()) -> None:
        self._by_path = {path: each for each in translations for path in each.paths}
        # The first alternative that matches counts, so that a path comes before those that lead to it.
        longest_first = sorted(self._by_path, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})(?:/.*)?", re.DOTALL)

    def find(self, scope: Scope) -> Translation | None:
        """Return the translation of a request; None for a request to ingle's own API."""
        if not self._by_path or scope["type"] not in ("http", "websocket"):
            return None
        if _FOUND not in scope:
            match = self._pattern.fullmatch(scope["path"])
            scope[_FOUND] = None if match is None else self._by_path[match[1]]
        found: Translation | None = scope[_FOUND]
        return found


NO_TRANSLATIONS = Translations()
