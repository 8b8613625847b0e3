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
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ingle import __version__, errors
from ingle.mcp.handlers import Door
from ingle.mcp.stdio import descriptors
from ingle.mcp.stdio.lazy_import import load
from ingle.mcp.tools import Tool
from ingle.service import Service
from ingle.settings import Settings

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STOP_PATIENCE = 1.3
"""For ending every session. What is not over by then is killed, as our processes do not outlive us, and the next server
clears the data folder of what is left there."""

EXIT_GRACE = 0.5
"""For the exit handlers of sessions when the server ends: inside of the patience."""

FLUSH_PATIENCE = 0.1

Beside = Callable[[Service, Path, str], AbstractAsyncContextManager[object]]
"""Another way in to the same service, open while the context lasts: the socket under `run/`."""

logger = logging.getLogger(__name__)


def run(settings: Settings, home: Path, listed: tuple[Tool, ...], beside: Beside | None = None) -> None:
    """Serve until the end. It does not return: a thread that still imports would hold the process up."""
    wire = descriptors.claim()
    folder = os.getcwd()
    code = 1
    try:
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_serve(settings, home, listed, beside, wire, folder))
        code = 0
    except errors.IngleError as error:
        logger.error("ingle mcp ends: %s", error.message)
    except Exception:
        logger.exception("ingle mcp ends by a failure of its own")
    finally:
        os._exit(code)


async def _serve(
    settings: Settings,
    home: Path,
    listed: tuple[Tool, ...],
    beside: Beside | None,
    wire: descriptors.Wire,
    folder: str,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    _watch_parent(loop, stop.set)
    settings = dataclasses.replace(settings, exit_grace=min(settings.exit_grace, EXIT_GRACE))
    service, start = Service.beginning_in(folder, settings, home, "mcp")
    if start is None:
        logger.warning(
            "sessions begin in folders of their own, as they cannot have %s: start it in a project's", folder
        )
    starting = loop.create_task(service.start())
    loaded = asyncio.Event()
    door = Door(service, listed, cwd=start, durable=settings.durable_size > 0)
    # The zygote loads the user's libraries in its own process, and the level of isolation is found out, while this one
    # loads the SDK.
    tasks = [loop.create_task(_talk(door, wire, starting, loaded)), loop.create_task(stop.wait())]
    helpers = [starting, loop.create_task(_warm(service, starting))]
    if beside is not None:
        helpers.append(loop.create_task(_beside(beside, service, home, loaded)))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in helpers:
        task.cancel()
    await asyncio.wait([loop.create_task(service.stop()), *helpers], timeout=STOP_PATIENCE)
    if tasks[0].done():
        tasks[0].result()


async def _talk(door: Door, wire: descriptors.Wire, starting: "asyncio.Task[None]", loaded: asyncio.Event) -> None:
    """Until the host has gone."""
    loop = asyncio.get_running_loop()
    server = (await load("ingle.mcp.server")).make_server(door)
    await starting
    pipe = await (await load("ingle.mcp.stdio.transport")).Pipe.open(wire)
    loaded.set()
    serving = loop.create_task(server.run(pipe, pipe, server.create_initialization_options()))
    over = loop.create_task(pipe.over.wait())
    await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
    await pipe.flush(FLUSH_PATIENCE)


async def _beside(beside: Beside, service: Service, home: Path, loaded: asyncio.Event) -> None:
    """What else this server offers, as long as it lives. The host does not wait for it, nor depend on it."""
    await loaded.wait()
    try:
        async with beside(service, home, "mcp"):
            await asyncio.Event().wait()
    except OSError as error:
        logger.warning("other commands will not find this server: %s", error)


async def _warm(service: Service, starting: "asyncio.Task[None]") -> None:
    try:
        await asyncio.shield(starting)
        _tell((await service.isolation()).summary)
        await service.warm()
    except errors.IngleError as error:
        # Whoever creates a session is told the same, as an answer.
        logger.warning("no worker could be prepared: %s", error.message)


def _tell(text: str) -> None:
    """For people: hosts keep it in a log. Why sessions are not held further was logged already."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"ingle {__version__}: {text}", file=sys.stderr, flush=True)


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
