"""Process of an MCP server on standard input and output, as the streams of the SDK's client.

Lines are bounded, so that no server can fill the memory. The whole process group ends with the connection. What the
server writes to standard error is kept for the message about its end.

Calls of tools go past the SDK's client, which would take longer for one than everything else on its way.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from ingle.support.message_stream import Lines, MessageStream
from ingle.tools.config import expand
from ingle.tools.requests import Requests, meta_of
from ingle.tools.shapes import NewServer

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest message of a server. A longer one ends it."""

MAX_ERRORS_BYTES = 2000
"""Bytes of standard error that are kept."""

END_SECONDS = 1.0
"""Time for a server to end by itself after its input was closed."""

INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
"""Variables of this process that a server gets. Others have to be named in its `env`."""


class ServerProcess(MessageStream, asyncio.SubprocessProtocol):
    """Read and write stream in one. It ends when the process closes its output."""

    def __init__(self, config: NewServer) -> None:
        super().__init__()
        self._config = config
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: Any = None
        self._lines = Lines()
        self._requests = Requests()
        self._errors = bytearray()
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
        try:
            await self._loop.subprocess_exec(
                lambda: self,
                _path(config.command),
                *arguments,
                env=environment,
                cwd=None if config.cwd is None else _path(config.cwd),
                start_new_session=True,
            )
        except OSError as error:
            # The error of uvloop does not name the program.
            raise OSError(error.errno, error.strerror, config.command) from error

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
        for line in self._lines.feed(data):
            if not self._requests.take(line):
                self._take(line)
        if self._lines.waiting > MAX_LINE_BYTES:
            self.problem = f"it sent a message of more than {MAX_LINE_BYTES} bytes"
            self._lines.take()
            assert self._transport is not None
            self._transport.kill()
            self.end()

    def _take(self, line: bytes) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            return  # a server that prints, most often
        self.put(SessionMessage(message))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.end()
        elif fd == 0:
            self._writable.set()

    def process_exited(self) -> None:
        self._exited.set()
        self.end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def end(self) -> None:
        super().end()
        self._writable.set()
        self._requests.close()

    # --- the client's write stream ---

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._requests.meta = meta_of(message.params)
        await self._write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def _write(self, line: bytes) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self.over.is_set() or self._input is None or self._input.is_closing():
            raise anyio.BrokenResourceError
        self._input.write(line)

    # --- calls ---

    async def call(self, tool: str, arguments: dict[str, Any]) -> bytes:
        """Call a tool and return the JSON of its result. Cancelling this tells the server.

        Raises ToolFailed with the server's words, and BrokenResourceError if the server ends before.
        """
        number, line, answer = self._requests.begin("tools/call", {"name": tool, "arguments": arguments})
        try:
            await self._write(line)
            return await answer
        except asyncio.CancelledError:
            if not self.over.is_set():
                self._input.write(self._requests.cancellation(number))
            raise
        finally:
            self._requests.forget(number)


def _path(text: str) -> str:
    return os.path.expanduser(expand(text))
