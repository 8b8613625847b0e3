"""The HTTP application: error middleware, guard, and the routes of every subject.

A request never owns a cell. When its client goes away, the cell goes on.
"""

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ingle import errors
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.guard import SERVICE, Guard, Owner
from ingle.http.auth.principals import Principals
from ingle.http.console import overview
from ingle.http.console.administration import Administration
from ingle.http.console.pages import Pages
from ingle.http.console.shares import ShareRoutes
from ingle.http.function_socket import FunctionSocket
from ingle.http.problems import ProblemMiddleware
from ingle.http.routes import (
    bodies,
    cells,
    environments,
    execute,
    files,
    forks,
    grants,
    sessions,
    shell,
    snapshots,
    tools,
)
from ingle.http.routes.browser import SignIn
from ingle.http.routes.events import Watch
from ingle.http.routes.server import Reference, ServerState
from ingle.http.routes.table import Operation, make_router
from ingle.http.translations import Translation, Translations
from ingle.service import Service

MAX_BODY_BESIDE_CODE = 1024 * 1024
"""Bytes that a body may hold beside a cell's source."""

EVENTS = re.compile(r"/v1/sessions/(?P<session_id>[^/]+)/events")
FUNCTIONS = re.compile(r"/v1/sessions/(?P<session_id>[^/]+)/functions")


def make_app(
    service: Service,
    credentials: Credentials,
    allowed_hosts: Iterable[str] = (),
    mounted: Mapping[str, ASGIApp] | None = None,
    translations: Sequence[Translation] = (),
) -> ASGIApp:
    """Make the whole application, with the apps that others mount by path. It starts and stops nothing."""
    own = make_routes(service, credentials, mounted)
    others = Translations(translations)
    guard = Guard(_translated(own, others), credentials, allowed_hosts, others)
    return ProblemMiddleware(guard, others)


def make_open_app(service: Service, translation: Translation) -> ASGIApp:
    """Make an application of one translation alone, for a port of the loopback interface that needs no token."""
    others = Translations([translation])
    guard = Guard(_translated(_nothing, others), Credentials(Principals(service, None)), (), others)
    return ProblemMiddleware(guard, others)


def _translated(own: ASGIApp, translations: Translations) -> ASGIApp:
    """Return an app that hands each request to the translation that it belongs to, and all others to `own`."""

    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (translations.find(scope) or own)(scope, receive, send)

    return dispatch


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise errors.NotFound(f"there is no route {scope['path'][:200]!r} on this port")


def make_local_app(service: Service, credentials: Credentials | None = None) -> ASGIApp:
    """Make the application for a unix socket: the kernel tells who connects, and no web page can.

    `credentials` are those of the pages of the same server, if it has pages.
    """
    owner = credentials.principals.owner if credentials is not None else None
    return ProblemMiddleware(Owner(make_routes(service, credentials), service, owner))


def make_routes(
    service: Service, credentials: Credentials | None, mounted: Mapping[str, ASGIApp] | None = None
) -> ASGIApp:
    others = mounted or {}
    limit = service.settings.max_code + MAX_BODY_BESIDE_CODE
    router = make_router(operations(service, credentials), limit)
    overviews = overview.Overviews()

    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "websocket":
            if scope["path"] == overview.PATH:
                return overviews.follow(scope[SERVICE], receive, send)
            return watch(scope, receive, send)
        if (session_id := execute.session_of(scope)) is not None:
            return execute.execute(session_id, limit, scope, receive, send)
        if (app := others.get(scope["path"])) is not None:
            return app(scope, receive, send)
        # Routes that need no token are answered with the service itself, which acts for no caller.
        scope.setdefault(SERVICE, service)
        return router(scope, receive, send)

    return dispatch


async def watch(scope: Scope, receive: Receive, send: Send) -> None:
    if (functions := FUNCTIONS.fullmatch(scope["path"])) is not None:
        await FunctionSocket(scope[SERVICE], functions["session_id"]).run(scope, receive, send)
        return
    found = EVENTS.fullmatch(scope["path"])
    if found is None:
        known = f"/v1/sessions/{{id}}/events?from=N, /v1/sessions/{{id}}/functions and {overview.PATH}"
        raise errors.NotFound(f"the WebSockets are {known}")
    query = bodies.read_query(Request({**scope, "type": "http"}), bodies.EventsQuery)
    await Watch(scope[SERVICE], found["session_id"], query.first).run(scope, receive, send)


def operations(service: Service, credentials: Credentials | None = None) -> list[Operation]:
    """Return every operation, in the order of the reference. Without credentials nobody can sign in."""
    rows = [
        *ServerState(service).operations(),
        *Pages().operations(),
        *SignIn(credentials).operations(),
        *ShareRoutes(credentials).operations(),
        *Administration(credentials).operations(),
        *sessions.operations(),
        *forks.operations(),
        *cells.operations(),
        *cells.help_operations(),
        *cells.batch_operations(service.settings.max_batch),
        *sessions.notebook_operations(service.settings.max_batch),
        *files.operations(),
        *snapshots.operations(),
        *shell.operations(),
        *snapshots.library_operations(),
        *grants.operations(),
        *tools.operations(),
        *environments.operations(),
        *cells.interpreter_operations(),
    ]
    return [*rows, *Reference(rows).operations()]
