"""`ingle mcp`: the door on standard input and output, from the first byte to the last process ended.

Whatever ends it, the host closing its end, a signal, the death of the parent, everything it started is gone within
`STOP_PATIENCE`. Meanwhile its stdout carries JSON-RPC and nothing else.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle import errors
from ingle.mcp import descriptors
from ingle.mcp.door import Door
from ingle.mcp.tools import Tool
from ingle.service import Service
from ingle.settings import Settings

if TYPE_CHECKING:
    from ingle.mcp.pipe import Pipe

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STOP_PATIENCE = 1.0
"""For ending every session. What is not over by then is killed: our processes do not outlive us."""

EXIT_GRACE = 0.7
"""For the exit handlers of sessions when the server ends: inside of the patience."""

FLUSH_PATIENCE = 0.1

logger = logging.getLogger(__name__)


def run(settings: Settings, home: Path, listed: tuple[Tool, ...]) -> None:
    """Serve until the end. It does not return: a thread that still imports would hold the process up."""
    wire = descriptors.claim()
    folder = os.getcwd()
    code = 1
    try:
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_serve(settings, home, listed, wire, folder))
        code = 0
    except Exception:
        logger.exception("ingle mcp ends by a failure of its own")
    finally:
        os._exit(code)


async def _serve(settings: Settings, home: Path, listed: tuple[Tool, ...], wire: descriptors.Wire, folder: str) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    _watch_parent(loop, stop.set)
    settings = dataclasses.replace(settings, exit_grace=min(settings.exit_grace, EXIT_GRACE))
    service = Service.local(settings, home)
    await service.start()
    try:
        # The zygote loads the user's libraries in its own process while this one loads the SDK.
        warming = loop.create_task(_warm(service))
        door = Door(service, listed, cwd=folder)
        working = loop.create_task(_talk(door, wire))
        stopping = loop.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        warming.cancel()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE):
                await service.stop()
    if working.done():
        working.result()


async def _talk(door: Door, wire: descriptors.Wire) -> None:
    """Until the host has gone."""
    make_server, pipe_type = await _load()
    server = make_server(door)
    pipe = await pipe_type.open(wire)
    serving = asyncio.get_running_loop().create_task(server.run(pipe, pipe, server.create_initialization_options()))
    over = asyncio.get_running_loop().create_task(pipe.over.wait())
    await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
    await pipe.flush(FLUSH_PATIENCE)


async def _load() -> tuple[Callable[[Door], Any], "type[Pipe]"]:
    """The SDK, imported in a thread: signals are heard meanwhile, and the zygote is started."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[tuple[Any, Any]] = loop.create_future()

    def load() -> None:
        from ingle.mcp.pipe import Pipe
        from ingle.mcp.server import make_server

        with contextlib.suppress(RuntimeError):  # the loop is closed: the end came first
            loop.call_soon_threadsafe(_settle, loaded, (make_server, Pipe))

    threading.Thread(target=load, daemon=True).start()
    return await loaded


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


async def _warm(service: Service) -> None:
    try:
        await service.warm()
    except errors.IngleError as error:
        # Whoever creates a session is told the same, as an answer.
        logger.warning("no worker could be prepared: %s", error.message)


def _watch_parent(loop: asyncio.AbstractEventLoop, on_death: Callable[[], None]) -> None:
    """A host that is killed may leave its end of the pipe to a child of its own; its death is told by the kernel."""
    parent = os.getppid()
    if parent <= 1 or not hasattr(os, "pidfd_open"):
        return
    try:
        fd = os.pidfd_open(parent)
    except OSError:
        on_death()
        return
    if os.getppid() != parent:
        on_death()
    loop.add_reader(fd, on_death)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
