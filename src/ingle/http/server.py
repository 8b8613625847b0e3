"""The server: uvicorn in our own process and loop, from the first signal handler to the last process ended.

It binds before it starts anything, so that a port in use costs nothing. At SIGINT, SIGTERM or SIGHUP it takes no more
connections, ends every session (which answers those who wait on a cell), and goes.
"""

import asyncio
import errno
import logging
import math
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ingle import __version__, errors
from ingle.http.app import BODY_SPARE, make_app, make_local_app
from ingle.http.guard import check_bind
from ingle.http.protocols import LocalProtocol, Protocol, WatchProtocol
from ingle.http.token import VARIABLE, Token, find_token
from ingle.servers import Announcement
from ingle.service import Service
from ingle.settings import Settings

BACKLOG = 2048

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ANSWER_PATIENCE = 1.0
"""After all sessions have ended, how long connections may take to carry their last answers away."""

Mounts = Callable[[Service], AbstractAsyncContextManager[Mapping[str, ASGIApp]]]
"""Other doors' apps by path, behind the same guard, for as long as the context lasts."""

logger = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address cannot be had; the message says why, and what to do."""


def serve(settings: Settings, home: Path, mounts: Mounts | None = None) -> int:
    """Run until a signal comes. The exit code."""
    check_bind(settings.host, settings.allowed_hosts)
    token = find_token(home)
    try:
        listener = listen(settings.host, settings.port)
    except CannotListen as error:
        print(f"ingle: {error}", file=sys.stderr)
        return 1
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, home, token, listener, mounts or _no_mounts))
    return 0


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise CannotListen(f"cannot listen on {host!r} port {port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may be bound to one port as long as neither listens.
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} of {host} is in use; stop what listens there, or choose another port with --port "
                "(0 takes any free one)"
            ) from None
        raise CannotListen(f"cannot listen on {host} port {port}: {error}") from None
    return listener


async def _serve(settings: Settings, home: Path, token: Token, listener: socket.socket, mounts: Mounts) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    service = Service.local(settings, home)
    await service.start()
    shown = url(settings.host, listener)
    try:
        async with local_door(service, home, "serve", shown), mounts(service) as mounted:
            door = Door(service, make_app(service, token.value, settings.allowed_hosts, mounted), listener)
            door.open()
            await door.opened()
            print(banner(shown, token), file=sys.stderr, flush=True)
            tasks = [loop.create_task(_warm(service)), loop.create_task(stop.wait())]
            await asyncio.wait({door.task, tasks[1]}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            door.close()
            await service.stop()
            await door.task
    finally:
        if not service.stopping:
            await service.stop()


class Door:
    """One listener and whoever comes in by it."""

    def __init__(
        self,
        service: Service,
        app: ASGIApp,
        listener: socket.socket,
        protocol: type[Protocol] = Protocol,
    ) -> None:
        settings = service.settings
        self._listener = listener
        self._server = Server(
            uvicorn.Config(
                app,
                http=protocol,
                ws=WatchProtocol,
                ws_max_size=settings.max_code + BODY_SPARE,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=math.ceil(settings.exit_grace + ANSWER_PATIENCE),
            ),
        )

    def open(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener]))

    async def opened(self) -> None:
        """Until it listens, or has failed to."""
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({listening, self.task}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self.task.done():
            self.task.result()

    def close(self) -> None:
        """Take no more connections; `task` ends when those that are open have ended."""
        self._server.should_exit = True


@asynccontextmanager
async def local_door(service: Service, home: Path, kind: str, url: str | None = None) -> AsyncIterator[Path]:
    """The socket under `run/` by which this user's other commands reach the service; its path.

    Every kind of server opens one. Leaving the context takes the socket away; who is connected still gets the last
    answers if the service is stopped inside of it.
    """
    announcement = await asyncio.to_thread(Announcement, home, kind)
    try:
        door = Door(service, make_local_app(service), announcement.listener, LocalProtocol)
        door.open()
        await door.opened()
        await asyncio.to_thread(announcement.tell, url)
        try:
            yield announcement.path
        finally:
            await asyncio.to_thread(announcement.close)
            door.close()
            await door.task
    finally:
        announcement.close()


@asynccontextmanager
async def _no_mounts(service: Service) -> AsyncIterator[Mapping[str, ASGIApp]]:
    yield {}


async def _warm(service: Service) -> None:
    try:
        await service.warm()
    except errors.IngleError as error:
        # Whoever creates a session is told the same, as an answer.
        logger.warning("no worker could be prepared: %s", error.message)


class Server(uvicorn.Server):
    """uvicorn, but for signals, which are ours."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    return f"http://{shown}:{listener.getsockname()[1]}"


def banner(url: str, token: Token) -> str:
    """What is told at the start: where, how to sign in, how to stop. Never the token itself."""
    # curl reads the header from its standard input: on its command line everybody could see the token.
    if token.file is not None:
        where = str(token.file)
        header = f"sed 's/^/Authorization: Bearer /' {shlex.quote(where)}"
    else:
        where = f"the one in {VARIABLE}"
        header = f"printf 'Authorization: Bearer %s' \"${VARIABLE}\""
    return (
        f"ingle {__version__} listens on {url}\n"
        f"  token   {where}\n"
        f'  try     {header} | curl -sH @- {url}/v1/sessions -d \'{{"session_id": "main"}}\'\n'
        f"  stop    Ctrl-C"
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
