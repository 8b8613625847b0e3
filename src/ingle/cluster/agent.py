"""The agent of one machine: serves its node to the gateways of a cluster.

`python -m ingle.cluster.agent` prints its `AgentInfo` as one line of JSON once it accepts connections, and runs until
SIGTERM, SIGINT, or with `--until-eof` the end of standard input. Its settings are those of `ingle serve`.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from ingle import settings as all_settings
from ingle.cluster.directory import AgentInfo
from ingle.cluster.fence.lease import StoreLease, watchdog_descriptor
from ingle.cluster.offer import Agent
from ingle.cluster.served import ServedNode
from ingle.cluster.token import ClusterToken, token_file
from ingle.cluster.wire.calls import GatewayLink
from ingle.cluster.wire.surface import describe
from ingle.errors import IngleError, InvalidRequest
from ingle.isolation import gpus
from ingle.settings import Settings
from ingle.store.store import open_store
from ingle.support.logs import logging_to
from ingle.support.process_memory import leave_loaded, return_freed_memory

MAX_CONNECTIONS = 1024
"""Connections of gateways at once, those without a proof included."""


class AgentServer:
    """Listening port of an agent, and its connections."""

    def __init__(self, served: ServedNode, token: ClusterToken, info: AgentInfo) -> None:
        self.info = info
        self._served = served
        self._token = token
        self._links: set[GatewayLink] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False

    async def start(self) -> None:
        """Listen. `info` has the real port then."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.info.host, self.info.port)
        port = self._server.sockets[0].getsockname()[1]
        self.info = msgspec.structs.replace(self.info, port=port)

    def _accept(self) -> GatewayLink:
        link = GatewayLink(self._token, self.info, self._served, describe(Agent))
        if self._stopping or len(self._links) >= MAX_CONNECTIONS:
            why = "the agent is stopping" if self._stopping else "too many connections"
            asyncio.get_running_loop().call_soon(link.close, why)
        self._links.add(link)
        link.lost.add_done_callback(lambda _: self._links.discard(link))
        return link

    def cut(self) -> None:
        """End all connections. Gateways may connect again."""
        for link in list(self._links):
            link.close()

    def refuse(self) -> None:
        """End all connections, and each that is opened from now on. The port stays in use."""
        self._stopping = True
        self.cut()

    def stop(self) -> None:
        """Listen no more. Gateways take this for the end of all sessions of this agent."""
        if self._server is not None:
            self._server.close()


@asynccontextmanager
async def run_agent(
    settings: Settings,
    home: Path,
    token: ClusterToken,
    *,
    node: str,
    host: str = "127.0.0.1",
    port: int = 0,
    labels: dict[str, str] | None = None,
) -> AsyncIterator[AgentServer]:
    """Serve the node of this machine for as long as the context lasts. It needs the setting `store`."""
    if not settings.store:
        raise InvalidRequest("an agent needs a store that all machines of its cluster share; set INGLE_STORE")
    watchdog = watchdog_descriptor()
    store = await asyncio.to_thread(open_store, settings.store)
    incarnation = secrets.token_hex(4)
    lease = StoreLease(store, incarnation, watchdog)
    served = ServedNode(dataclasses.replace(settings, node=node), home, incarnation, lease)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cards = len((await asyncio.to_thread(gpus.find)).numbers)
    server: AgentServer | None = None
    try:
        await lease.start()
        await served.start()
        server = AgentServer(served, token, AgentInfo(incarnation, node, host, port, labels or {}, cards, memory))
        await server.start()
        yield server
    finally:
        if server is not None:
            server.refuse()
        await served.stop()
        # The sessions have ended.
        await lease.stop()
        if server is not None:
            server.stop()


async def _run(options: argparse.Namespace, settings: Settings, token: ClusterToken) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    if options.until_eof:
        threading.Thread(target=_read_to_eof, args=(loop, stop), name="until-eof", daemon=True).start()
    labels = dict(each.partition("=")[::2] for each in options.label)
    async with run_agent(
        settings,
        options.home,
        token,
        node=options.node,
        host=options.host,
        port=options.port,
        labels=labels,
    ) as server:
        leave_loaded()
        print(msgspec.json.encode(server.info).decode(), flush=True)
        await stop.wait()


def _read_to_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Read standard input in a thread: an event loop cannot watch every kind of file descriptor."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
        loop.call_soon_threadsafe(stop.set)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ingle.cluster.agent", description="Serve this machine's sessions.")
    parser.add_argument("--home", type=Path, default=None, help="Data folder. Default: the one of `ingle serve`.")
    parser.add_argument("--node", default=os.uname().nodename, help="Name of this machine. Default: its host name.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on.")
    parser.add_argument("--port", type=int, default=0, help="Port to listen on. Default: any free one.")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="Label for placement.")
    parser.add_argument("--token-file", type=Path, default=None, help="File of the token. Default: cluster.token.")
    parser.add_argument("--token-fd", type=int, default=None, help="File descriptor that the token is read from.")
    parser.add_argument("--until-eof", action="store_true", help="End when standard input ends.")
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.home is not None:
        os.environ["INGLE_HOME"] = str(options.home)
    options.home = all_settings.data_folder()
    return_freed_memory()
    try:
        settings = all_settings.load()
        if options.token_fd is not None:
            token = ClusterToken.read_fd(options.token_fd)
        else:
            token = ClusterToken.read(options.token_file or token_file(options.home))
        with logging_to(settings), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(options, settings, token))
    except IngleError as error:
        print(f"ingle: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"ingle: the agent cannot run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
