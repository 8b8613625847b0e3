"""Process of an MCP server on standard input and output, as the streams of the SDK's client.

Lines are bounded, so that no server can fill the memory. The whole process group ends with the connection. What the
server writes to standard error is kept for the message about its end.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from ingle.tools.config import expand
from ingle.tools.shapes import NewServer

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest message of a server. A longer one ends it."""

MAX_ERRORS_BYTES = 2000
"""Bytes of standard error that are kept."""

END_SECONDS = 1.0
"""Time for a server to end by itself after its input was closed."""

INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
"""Variables of this process that a server gets. Others have to be named in its `env`."""


class ServerProcess(asyncio.SubprocessProtocol):
    """Read and write stream in one. It ends when the process closes its output."""

    def __init__(self, config: NewServer) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: Any = None
        self._buffer = bytearray()
        self._searched = 0
        self._errors = bytearray()
        self._messages: deque[SessionMessage] = deque()
        self._woken: asyncio.Future[None] | None = None
        self.ended = asyncio.Event()
        self._exited = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.problem = ""

    @contextlib.asynccontextmanager
    async def transport(self) -> "AsyncIterator[tuple[ServerProcess, ServerProcess]]":
        """Start the process, and end it after use."""
        try:
            await self._start()
            yield self, self
        finally:
            await self._stop()

    async def _start(self) -> None:
        config = self._config
        assert config.command is not None
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment |= {name: expand(value) for name, value in config.env.items()}
        arguments = [expand(each) for each in config.args]
        await self._loop.subprocess_exec(
            lambda: self,
            _path(config.command),
            *arguments,
            env=environment,
            cwd=None if config.cwd is None else _path(config.cwd),
            start_new_session=True,
        )

    async def _stop(self) -> None:
        if self._transport is None:
            return
        pid = self._transport.get_pid()
        if self._input is not None:
            self._input.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._exited.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        await self._exited.wait()
        self._transport.close()

    @property
    def last_words(self) -> str:
        """Last line of standard error, or how the process ended."""
        lines = [line for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        code = None if self._transport is None else self._transport.get_returncode()
        how = self.problem or ("" if code is None else f"it exited with {code}")
        return "; ".join(each for each in (how, lines[-1].strip()[:500] if lines else "") if each)

    # --- the process ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is not a subclass
        self._input = self._transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._errors = (self._errors + data)[-MAX_ERRORS_BYTES:]
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            self._take(line)
        self._searched = len(self._buffer)
        if self._searched > MAX_LINE_BYTES:
            self.problem = f"it sent a message of more than {MAX_LINE_BYTES} bytes"
            self._buffer.clear()
            self._searched = 0
            assert self._transport is not None
            self._transport.kill()
            self._end()

    def _take(self, line: bytes) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            return  # a server that prints, most often
        self._messages.append(SessionMessage(message))
        self._wake()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end()
        elif fd == 0:
            self._writable.set()

    def process_exited(self) -> None:
        self._exited.set()
        self._end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self) -> None:
        self.ended.set()
        self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # --- the client's streams ---

    async def receive(self) -> SessionMessage:
        while not self._messages:
            if self.ended.is_set():
                raise anyio.EndOfStream
            self._woken = self._loop.create_future()
            await self._woken
        return self._messages.popleft()

    def __aiter__(self) -> "ServerProcess":
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send(self, item: SessionMessage, /) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self.ended.is_set() or self._input is None or self._input.is_closing():
            raise anyio.BrokenResourceError
        self._input.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    # The SDK closes its streams after use, but these end with the process.

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> "ServerProcess":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


def _path(text: str) -> str:
    return os.path.expanduser(expand(text))
