"""A proxy in front of an object store. It answers with errors, resets connections, or holds requests on demand."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing a connection resets it."""

ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{code}</Code><Message>a test asked for it</Message><Resource>{path}</Resource></Error>"""

Fault = Callable[["Handler"], bool]
"""Deals with a request instead of the store. Returns False to let the store answer."""


def refuse(status: int, code: str) -> Fault:
    """Answer as S3 does when it has failed."""

    def fault(request: Handler) -> bool:
        request.answer(status, ERROR.format(code=code, path=request.path).encode())
        return True

    return fault


def reset(request: Handler) -> bool:
    """Break the connection before an answer."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    request.close_connection = True
    return True


def writes(fault: Fault, part: str = "") -> Fault:
    """Let a fault meet the writes of objects whose path has this part, and nothing else."""
    return lambda request: request.command in ("PUT", "POST") and part in request.path and fault(request)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyStore

    def do_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.server.fault
        if fault is None or not fault(self):
            self._pass_on()
        else:
            self.server.met += 1

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any

    def _pass_on(self) -> None:
        store = http.client.HTTPConnection(*self.server.target, timeout=60)
        with contextlib.closing(store):
            store.request(self.command, self.path, self.body, dict(self.headers))
            answer = store.getresponse()
            body = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in SINGLE_HOP}
        length = answer.headers.get("content-length") if self.command == "HEAD" else None
        self.answer(answer.status, body, headers, length)

    def answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: str | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in (headers or {"Content-Type": "application/xml"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


SINGLE_HOP = {"connection", "content-length", "transfer-encoding"}


class FaultyStore(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        parts = urlsplit(store)
        self.target = (parts.hostname or "", parts.port or 0)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.fault: Fault | None = None
        self.met = 0
        """Requests that a fault has dealt with."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that a client has closed."""

    @contextlib.contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Let requests meet a fault."""
        self.met, self.fault = 0, fault
        try:
            yield
        finally:
            self.fault = None

    @contextlib.contextmanager
    def held(self, which: Callable[[Handler], bool] = lambda request: True) -> Iterator[None]:
        """Hold requests until the end, as a very slow store does."""
        answer = threading.Event()

        def hold(request: Handler) -> bool:
            if which(request):
                self.met += 1
                answer.wait()
            return False

        with self.failing(hold):
            try:
                yield
            finally:
                answer.set()


@contextlib.contextmanager
def faulty_store(store: str) -> Iterator[FaultyStore]:
    """Provide a proxy in front of the object store at a URL."""
    with FaultyStore(store) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
