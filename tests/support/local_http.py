"""A door of HTTP in the test's own process, so that its patience can be made short."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ingle.http.app import make_app
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.principals import Principals
from ingle.http.limits import ConnectionLimit
from ingle.http.server import Listener, listen
from ingle.service import Service

TOKEN = "secret"


@asynccontextmanager
async def open_door(service: Service, limit: int = 100) -> AsyncIterator[int]:
    """Serve `service` on a port of its own, with at most `limit` connections. The service ends with it."""
    listener = listen("127.0.0.1", 0)
    running = Listener(
        service, make_app(service, Credentials(Principals(service, TOKEN))), listener, ConnectionLimit(limit)
    )
    running.open()
    await running.opened()
    yield listener.getsockname()[1]
    running.close()
    await service.stop()
    await running.task
