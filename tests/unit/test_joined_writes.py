"""Answers of the HTTP server: head and body leave in one write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from ingle.http.joined_writes import MAX_JOINED_BYTES, JoinedWrites
from ingle.http.limits import ConnectionLimit, HttpProtocol

pytestmark = [pytest.mark.req("http.stream")]


class Recording:
    """Transport that only records."""

    def __init__(self) -> None:
        self.said: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def write_eof(self) -> None:
        self.said.append("end")

    def close(self) -> None:
        self.said.append("close")

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0


async def test_writes_of_one_turn_are_joined_and_come_before_an_end() -> None:
    transport: Any = Recording()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"a")
    joined.write(b"b")
    assert (transport.said, joined.get_write_buffer_size()) == ([], 2)
    await asyncio.sleep(0)
    assert transport.said == [b"ab"]
    joined.write(b"c")
    joined.write_now(b"d")
    joined.write(b"e")
    joined.write_eof()
    joined.write(b"f")
    joined.close()
    assert transport.said == [b"ab", b"c", b"d", b"e", "end", b"f", "close"]
    joined.write(bytes(MAX_JOINED_BYTES + 1))
    assert len(transport.said[-1]) == MAX_JOINED_BYTES + 1


async def test_an_answer_is_one_write_and_a_stream_one_for_each_turn() -> None:
    more = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        streams = scope["path"] == "/stream"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if streams:
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await more.wait()
        await send({"type": "http.response.body", "body": b"last"})

    config = Config(app, date_header=False, server_header=False)
    config.load()
    transport: Any = Recording()
    limit = ConnectionLimit(10)
    protocol = HttpProtocol(limit=limit, config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    while not transport.said:
        await asyncio.sleep(0)
    assert transport.said == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n"]
    transport.said.clear()
    protocol.data_received(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    while not transport.said:
        await asyncio.sleep(0)
    assert transport.said == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"]
    more.set()
    while len(transport.said) < 2:
        await asyncio.sleep(0)
    assert transport.said[1:] == [b"4\r\nlast\r\n0\r\n\r\n"]
    protocol.connection_lost(None)
