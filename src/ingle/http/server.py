"""The HTTP server: uvicorn in our own process and event loop, and its graceful shutdown.

The server binds its port before it starts anything. At SIGINT, SIGTERM or SIGHUP it accepts no more connections, ends
every session, which answers the requests that wait for a cell, and exits.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ingle import __version__, errors
from ingle.http.app import MAX_BODY_BESIDE_CODE, make_app, make_local_app, make_open_app
from ingle.http.auth import codes, tokens_file
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.guard import check_bind
from ingle.http.auth.principals import Principals
from ingle.http.auth.server_token import VARIABLE, Token, find_token
from ingle.http.auth.sign_in_page import SIGN_IN_LINK
from ingle.http.limits import ConnectionLimit, HttpProtocol, WebSocketProtocol
from ingle.http.translations import Protocols
from ingle.render.phrases import counted
from ingle.service import Service
from ingle.service.access import Shared
from ingle.settings import Settings
from ingle.support.background import run_forever
from ingle.support.browser import open_page
from ingle.support.process_memory import leave_loaded, return_freed_memory
from ingle.support.running_servers import Announcement

BACKLOG = 2048

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

KEEP_ALIVE_SECONDS = 75
"""Time that a connection may stay open between two requests."""

DRAIN_STEP_SECONDS = 0.02

DATE_SECONDS = 1.0
"""Time after which answers have a new `Date` header. It counts whole seconds."""

OPEN_HOST = "127.0.0.1"
MAX_OPEN = 256
"""Address of the ports that need no token, and the connections of each."""

LAST_ANSWER_SECONDS = 1.0
"""Time for connections to deliver their last answers after all sessions have ended."""

logger = logging.getLogger(__name__)

# Below the level of an error uvicorn logs what clients send, such as URLs that may hold secrets.
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


class CannotListen(Exception):
    """The server cannot bind its address. The message says why and what to do."""


Mounts = Callable[[Service], AbstractAsyncContextManager[Mapping[str, ASGIApp]]]
"""Makes the apps of other interfaces by path. They are served behind the same guard while the context lasts."""


def serve(
    settings: Settings,
    home: Path,
    until_eof: bool = False,
    mounts: Mounts | None = None,
    protocols: Callable[[Service], Protocols] | None = None,
    opens: bool = False,
) -> int:
    """Serve until a signal, or until the end of standard input if asked. Return the exit code.

    `opens`: open the page in this user's browser, where there is one.
    """
    return_freed_memory()
    check_bind(settings.host, settings.allowed_hosts, open=settings.auth == "none")
    token = find_token(home) if settings.auth == "token" else None
    try:
        listener = listen(settings.host, settings.port)
    except CannotListen as error:
        print(f"ingle: {error}", file=sys.stderr)
        return 1
    make_protocols = protocols or (lambda service: Protocols())
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, home, token, listener, until_eof, mounts or _no_mounts, make_protocols, opens))
    except CannotListen as error:
        print(f"ingle: {error}", file=sys.stderr)
        return 1
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
        # Two sockets can be bound to one port until one of them listens.
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


async def _serve(
    settings: Settings,
    home: Path,
    token: Token | None,
    listener: socket.socket,
    until_eof: bool,
    mounts: Mounts,
    make_protocols: Callable[[Service], Protocols],
    opens: bool,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        threading.Thread(target=_read_to_eof, args=(loop, stop), name="until-eof", daemon=True).start()
    # Other commands do not use a service that ends with the program that started it.
    kind = "client" if until_eof else "serve"
    service = await _make_service(settings, home, kind)
    protocols = make_protocols(service)
    open_listeners = {port: listen(OPEN_HOST, port) for port in protocols.open_ports}
    await service.start()
    shown = url(settings.host, listener)
    principals = Principals(service, None) if token is None else Principals(service, token.value, home)
    credentials = Credentials(principals)
    try:
        async with local_listener(service, home, kind, shown, credentials), mounts(service) as mounted:
            if token is not None:
                principals.take(await asyncio.to_thread(tokens_file.read, home))
            app = make_app(service, credentials, settings.allowed_hosts, mounted, protocols.translations)
            connections = (await service.capacity()).connections
            tcp = Listener(service, app, listener, ConnectionLimit(connections))
            without_token = [
                Listener(service, make_open_app(service, translation), open_listeners[port], ConnectionLimit(MAX_OPEN))
                for port, translation in protocols.open_ports.items()
            ]
            for each in (tcp, *without_token):
                each.open()
                await each.opened()
            held, files = (await service.isolation()).sentence, (await service.reach()).files
            # After the isolation, because it decides about the network, and so about the number of sessions.
            capacity = (await service.capacity()).sentence
            page = shown + sign_in_path(credentials)
            print(banner(shown, token, held, files, capacity, page), file=sys.stderr, flush=True)
            if opens:
                await asyncio.to_thread(open_page, page)
            leave_loaded()
            stopping = loop.create_task(stop.wait())
            chores = [loop.create_task(_warm(service))]
            if token is not None:
                chores.append(loop.create_task(run_forever("following the file of tokens", principals.follow)))
            await asyncio.wait({tcp.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stop.clear()
            for each in (tcp, *without_token):
                each.close()
            await _drain(service, settings.stop_grace, stop)
            for task in (stopping, *chores):
                task.cancel()
            await asyncio.wait({stopping, *chores})
            await service.stop()
            for each in (tcp, *without_token):
                await each.task
    finally:
        if not service.stopping:
            await service.stop()


async def _make_service(settings: Settings, home: Path, kind: str) -> Service:
    """Return the service of this machine, or with the setting `cluster` a gateway to the agents of others."""
    if not settings.cluster:
        return Service.local(settings, home, kind)
    from ingle.cluster.gateway import cluster_node

    node = await cluster_node(settings, home)
    return Service(settings, node, shared=Shared(node.key_store))


def _read_to_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Read standard input in a thread: an event loop cannot watch every kind of file descriptor."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
        loop.call_soon_threadsafe(stop.set)


async def _drain(service: Service, seconds: float, stop: asyncio.Event) -> None:
    """Wait until running cells have ended, for at most `seconds` or until a second signal. Print how many are left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (left := await service.drain()) and loop.time() < deadline and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_STEP_SECONDS):
                await stop.wait()
    cells = f"; {counted(left, 'cell')} still ran" if left else ""
    print(f"ingle: stopping{cells}", file=sys.stderr, flush=True)


class Listener:
    """One listening socket with its uvicorn server and connections."""

    def __init__(
        self,
        service: Service,
        app: ASGIApp,
        listener: socket.socket,
        limit: ConnectionLimit,
    ) -> None:
        settings = service.settings
        self._listener = listener
        self._limit = limit
        http: Any = partial(HttpProtocol, limit=limit)
        self._server = Server(
            uvicorn.Config(
                app,
                http=http,
                ws=WebSocketProtocol,
                ws_max_size=settings.max_code + MAX_BODY_BESIDE_CODE,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(settings.stop_grace + settings.exit_grace + LAST_ANSWER_SECONDS),
            ),
        )

    def open(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        sweep = partial(self._limit.sweep, self._server.server_state)
        sweeping = asyncio.get_running_loop().create_task(run_forever("looking after connections", sweep))
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            sweeping.cancel()

    async def opened(self) -> None:
        """Wait until it listens. Raise what made it fail."""
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({listening, self.task}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self.task.done():
            self.task.result()

    def close(self) -> None:
        """Accept no more connections. `task` ends when the open ones have ended."""
        self._server.close()


@asynccontextmanager
async def _no_mounts(service: Service) -> AsyncIterator[Mapping[str, ASGIApp]]:
    yield {}


@asynccontextmanager
async def local_listener(
    service: Service, home: Path, kind: str, url: str | None = None, credentials: Credentials | None = None
) -> AsyncIterator[Path]:
    """Open the socket under `run/` by which this user's other commands reach the service. Yield its path.

    Every kind of server opens one. Leaving the context removes the socket. Clients that are connected still get their
    last answers if the service is stopped inside the context.
    """
    making = asyncio.get_running_loop().run_in_executor(None, Announcement, home, kind)
    try:
        announcement = await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread goes on, and nothing else would close what it makes.
        (await making).close()
        raise
    try:
        app = make_local_app(service, credentials)
        local = Listener(service, app, announcement.listener, ConnectionLimit(0, local=True))
        local.open()
        await local.opened()
        await asyncio.to_thread(announcement.announce, url)
        try:
            yield announcement.path
        finally:
            await asyncio.to_thread(announcement.close)
            local.close()
            await local.task
    finally:
        announcement.close()


async def _warm(service: Service) -> None:
    try:
        await service.warm()
    except errors.IngleError as error:
        # Creating a session reports the same error to its caller.
        logger.warning("no worker could be prepared: %s", error.message)


class Server(uvicorn.Server):
    """uvicorn without its signal handlers and without its ten looks a second, each of which delays the end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._closing = asyncio.Event()

    def close(self) -> None:
        self.should_exit = True
        self._closing.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Renew the `Date` header of answers until the server is closed."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._closing.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, then each connection once it has sent its last answer."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # uvicorn has no event for the end of the last one.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_STEP_SECONDS)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    return f"http://{shown}:{listener.getsockname()[1]}"


def sign_in_path(credentials: Credentials) -> str:
    """Return the path that signs the owner's browser in, with a code that works once."""
    if credentials.principals.anybody is not None:
        return "/"
    return f"{SIGN_IN_LINK}?code={credentials.codes.make(credentials.principals.owner)}"


def banner(url: str, token: Token | None, held: str, files: str, holds: str, page: str) -> str:
    """Return the text shown at the start: the address, how to sign in, how to stop. It never holds the token.

    `held` says how code is confined, `files` which folders it may use, and `holds` how many sessions there may be.
    `page` is the address for a browser, with a code that works once.
    """
    if token is None:
        where = "none needed, by anybody on this machine"
    else:
        where = f"the one in {VARIABLE}" if token.file is None else str(token.file)
    return (
        f"ingle {__version__} listens on {url}\n"
        f"  open    {page}  (once, within {codes.LIFETIME_SECONDS // 60} minutes; later: ingle open)\n"
        f"  token   {where}\n"
        f"  try     {_command()} run -s main '6 * 7'\n"
        f"  code    {held}\n"
        f"  files   {files}\n"
        f"  holds   {holds}\n"
        f"  stop    Ctrl-C"
    )


def _command() -> str:
    """Return the name of this program, or its path where a shell does not find the name."""
    beside = os.path.join(os.path.dirname(sys.executable), "ingle")
    return shlex.quote(beside) if shutil.which("ingle") is None and os.path.exists(beside) else "ingle"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
