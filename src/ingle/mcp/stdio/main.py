"""`ingle mcp`: the server on standard input and output, from start to exit.

When the host closes its end, a signal comes, or the parent dies, everything it started ends within `STOP_SECONDS`.
Its stdout carries JSON-RPC only.
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
from ingle.mcp.handlers import Tools
from ingle.mcp.stdio import descriptors
from ingle.mcp.stdio.lazy_import import load
from ingle.mcp.tools import Tool
from ingle.service import Service
from ingle.settings import Settings
from ingle.support.process_memory import leave_loaded, return_freed_memory

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STOP_SECONDS = 1.3
"""Time for ending all sessions. Remaining processes are killed, and the next server cleans the data folder."""

EXIT_GRACE_SECONDS = 0.5
"""Time for the exit handlers of sessions when the server ends, within the time above."""

FLUSH_SECONDS = 0.1

OtherApi = Callable[[Service, Path, str], AbstractAsyncContextManager[object]]
"""Context manager that opens another API to the same service: the socket in `run/`."""

logger = logging.getLogger(__name__)


def run(settings: Settings, home: Path, listed: tuple[Tool, ...], other_api: OtherApi | None = None) -> None:
    """Serve until the end, then exit the process, because an importing thread would delay a return."""
    return_freed_memory()
    wire = descriptors.claim()
    folder = os.getcwd()
    code = 1
    try:
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_serve(settings, home, listed, other_api, wire, folder))
        code = 0
    except errors.IngleError as error:
        logger.error("ingle mcp ends: %s", error.message)
    except Exception:
        logger.exception("ingle mcp ends because of an internal error")
    finally:
        os._exit(code)


async def _serve(
    settings: Settings,
    home: Path,
    listed: tuple[Tool, ...],
    other_api: OtherApi | None,
    wire: descriptors.Wire,
    folder: str,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    _watch_parent(loop, stop.set)
    settings = dataclasses.replace(settings, exit_grace=min(settings.exit_grace, EXIT_GRACE_SECONDS))
    service, start = Service.beginning_in(folder, settings, home, "mcp", track=True)
    if start is None:
        logger.warning(
            "sessions start in their own folders, because %s cannot be granted; name a folder with --folder DIR", folder
        )
    starting = loop.create_task(service.start())
    loaded = asyncio.Event()
    handlers = Tools(service, listed, cwd=start, durable=settings.durable_size > 0)
    # The zygote loads the user's libraries and the isolation level is tested while this process loads the SDK.
    tasks = [loop.create_task(_serve_host(handlers, wire, starting, loaded)), loop.create_task(stop.wait())]
    helpers = [starting, loop.create_task(_warm(service, starting))]
    if other_api is not None:
        helpers.append(loop.create_task(_serve_other(other_api, service, home, loaded)))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in helpers:
        task.cancel()
    await asyncio.wait([loop.create_task(service.stop()), *helpers], timeout=STOP_SECONDS)
    if tasks[0].done():
        tasks[0].result()


async def _serve_host(
    handlers: Tools, wire: descriptors.Wire, starting: "asyncio.Task[None]", loaded: asyncio.Event
) -> None:
    """Serve until the host has closed the connection."""
    loop = asyncio.get_running_loop()
    module = await load("ingle.mcp.server")
    await starting
    server = module.make_server(handlers, await handlers.facts())
    pipe = await (await load("ingle.mcp.stdio.transport")).Pipe.open(wire)
    loaded.set()
    leave_loaded()
    serving = loop.create_task(server.run(pipe, pipe, server.create_initialization_options()))
    over = loop.create_task(pipe.over.wait())
    await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
    await pipe.flush(FLUSH_SECONDS)


async def _serve_other(other_api: OtherApi, service: Service, home: Path, loaded: asyncio.Event) -> None:
    """Run the other API until the end. The host does not wait for it."""
    await loaded.wait()
    try:
        async with other_api(service, home, "mcp"):
            await asyncio.Event().wait()
    except OSError as error:
        logger.warning("other commands will not find this server: %s", error)


async def _warm(service: Service, starting: "asyncio.Task[None]") -> None:
    try:
        if not await _started(starting):
            return
        _print_line((await service.isolation()).summary)
        _print_line((await service.reach()).files)
        await service.warm()
    except errors.IngleError as error:
        # Creating a session reports the same error.
        logger.warning("no session could be prepared: %s", error.message)


async def _started(starting: "asyncio.Task[None]") -> bool:
    """Wait until the service has started. Return False if it has not: then the server ends and reports why."""
    await asyncio.wait({starting})
    return not starting.cancelled() and starting.exception() is None


def _print_line(text: str) -> None:
    """Print a line to stderr for people; hosts write it to a log."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"ingle {__version__}: {text}", file=sys.stderr, flush=True)


def _watch_parent(loop: asyncio.AbstractEventLoop, on_death: Callable[[], None]) -> None:
    """Watch the parent, because a killed host may leave its end of the pipe open in a child."""
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
