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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingle import __version__, errors
from ingle.http.app import make_app
from ingle.http.guard import check_bind
from ingle.http.problems import MEDIA_TYPE, InvalidHttp, Problem, encode
from ingle.http.token import VARIABLE, Token, find_token
from ingle.service import Service
from ingle.settings import Settings

BACKLOG = 2048

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ANSWER_PATIENCE = 1.0
"""After all sessions have ended, how long connections may take to carry their last answers away."""

logger = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address cannot be had; the message says why, and what to do."""


def serve(settings: Settings, home: Path) -> int:
    """Run until a signal comes. The exit code."""
    check_bind(settings.host, settings.allowed_hosts)
    token = find_token(home)
    try:
        listener = listen(settings.host, settings.port)
    except CannotListen as error:
        print(f"ingle: {error}", file=sys.stderr)
        return 1
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, home, token, listener))
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


async def _serve(settings: Settings, home: Path, token: Token, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    service = Service.local(settings, home)
    await service.start()
    try:
        server = Server(
            uvicorn.Config(
                make_app(service, token.value, settings.allowed_hosts),
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=math.ceil(settings.exit_grace + ANSWER_PATIENCE),
            ),
            lambda: print(banner(settings.host, listener, token), file=sys.stderr, flush=True),
        )
        tasks = [
            loop.create_task(server.serve(sockets=[listener])),
            loop.create_task(_warm(service)),
            loop.create_task(stop.wait()),
        ]
        serving, warming, stopping = tasks
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        for task in (warming, stopping):
            task.cancel()
        await asyncio.wait({warming, stopping})
    finally:
        await service.stop()
    await serving


async def _warm(service: Service) -> None:
    try:
        await service.warm()
    except errors.IngleError as error:
        # Whoever creates a session is told the same, as an answer.
        logger.warning("no worker could be prepared: %s", error.message)


class Server(uvicorn.Server):
    """uvicorn, but for signals, which are ours, and the banner in place of its log."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Protocol(HttpToolsProtocol):
    """HTTP, with a problem also for what is no HTTP."""

    def send_400_response(self, msg: str) -> None:
        error = InvalidHttp("these bytes are not an HTTP/1.1 request; send one to /v1/sessions")
        body = encode(Problem.of(error))
        head = (
            f"HTTP/1.1 {error.status} Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def banner(host: str, listener: socket.socket, token: Token) -> str:
    """What is told at the start: where, how to sign in, how to stop. Never the token itself."""
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    url = f"http://{shown}:{listener.getsockname()[1]}"
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
