"""Views of live copies, at the host's end: see `ingle_worker.lockdown.views`."""

import asyncio
import contextlib
import fcntl
import os
import socket
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ingle.workers.worker import Worker
from ingle_worker.wire import messages
from ingle_worker.wire.trees import LAYERS, UPPER

PATIENCE_SECONDS = 10.0
"""Time for a view to be made."""

MAX_REPLY_BYTES = 64 * 1024

NS_GET_NSTYPE = 0xB703
KINDS = (0x10000000, 0x00020000, 0x40000000)
"""Kinds of namespaces, in the order of their descriptors: user, mount, network."""

UNREACHABLE = "the session did not answer"


class NoView(Exception):
    """A view could not be made or undone, with the reason."""


class _Reply(msgspec.Struct, frozen=True):
    key: Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(max_length=2)] = []
    read_only: list[Annotated[str, Meta(max_length=1000)]] = []
    since: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    reason: str = ""


_decode = msgspec.json.Decoder(_Reply).decode


@dataclass(frozen=True)
class LayeredFolders:
    """Folders that a copy sees through a view, and in which it changes nothing."""

    layers: dict[str, str] = field(default_factory=dict)
    """By folder: the folder in which everything lands that the copy writes there."""
    read_only: dict[str, str] = field(default_factory=dict)
    """By folder: why the copy can only read it."""
    since: int = 0
    """Time at which the layers were made, on the clock of files, in nanoseconds."""

    @property
    def all(self) -> list[str]:
        return [*self.layers, *self.read_only]


class View:
    """Namespaces for one copy. The caller closes it."""

    def __init__(
        self, namespaces: list[int], key: list[int], listener: socket.socket | None, protected: LayeredFolders
    ) -> None:
        self._namespaces = namespaces
        self.key = key
        self.protected = protected
        self.listener = listener
        """Listening socket of the proxy, if the view has a network of its own. Its new owner closes it."""

    async def give_to(self, copy: Worker) -> None:
        """Run the file agents and shell tasks of a copy in this view. The copy itself enters it with `Rehome`.

        Raise NoView if the copy is gone.
        """
        copy.view = self._namespaces
        try:
            await copy.init.send_with(messages.UseView(), [self._namespaces[1]])
        except OSError:
            raise NoView(UNREACHABLE) from None

    def close(self) -> None:
        _close(self._namespaces)


async def make(
    worker: Worker, own: str, target: str, protected: list[str], *, network: bool = False, shown: str = ""
) -> View:
    """Make a view for a copy of this worker, in which the folder `target` shows `own`/workspace. Raise NoView.

    What is written to the `protected` folders there lands in a layer, or they cannot be written. With `network`, it has
    a network of its own, with a proxy as the only way out. `shown` is the workspace of another copy, if it is to be
    shown instead.
    """
    reply, fds = await _ask(worker, messages.MakeView(own, target, network, protected, shown))
    namespaces, rest = fds[: len(KINDS) - (not network)], fds[len(KINDS) - (not network) :]
    try:
        if [_kind(fd) for fd in namespaces] != [*KINDS[: len(KINDS) - (not network)]] or len(rest) != network:
            raise NoView(reply.reason or UNREACHABLE)
        listener = socket.socket(fileno=rest.pop()) if network else None
        return View(namespaces, reply.key, listener, _layered(own, protected, reply))
    except (NoView, OSError, ValueError) as error:
        _close(fds)
        raise NoView(str(error)) from None


def _layered(own: str, protected: list[str], reply: _Reply) -> LayeredFolders:
    found = LayeredFolders(since=reply.since)
    for number, (folder, why) in enumerate(zip(protected, reply.read_only, strict=True)):
        if why:
            found.read_only[folder] = why
        else:
            found.layers[folder] = f"{own}/{LAYERS}/{number}/{UPPER}"
    return found


async def undo(worker: Worker, own: str, target: str, protected: list[str], fork: str, shown: str) -> None:
    """Make the view of this worker show the files of its session. Raise NoView.

    If the session is a fork, `fork` is its folder, and `shown` its workspace.
    """
    reply, fds = await _ask(worker, messages.CloseView(own, target, protected, fork, shown))
    _close(fds)
    if reply.reason:
        raise NoView(reply.reason)


async def _ask(worker: Worker, order: messages.MakeView | messages.CloseView) -> tuple[_Reply, list[int]]:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        try:
            await worker.start_child(order, theirs.detach())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _wait_readable(ours, worker)
            data, fds, _, _ = socket.recv_fds(ours, MAX_REPLY_BYTES, messages.FDS_PER_VIEW, socket.MSG_CMSG_CLOEXEC)
        except (OSError, TimeoutError):
            raise NoView(UNREACHABLE) from None
    try:
        return _decode(data), fds
    except msgspec.MsgspecError:
        _close(fds)
        raise NoView(UNREACHABLE) from None


async def _wait_readable(sock: socket.socket, worker: Worker) -> None:
    """Wait for an answer. Raise NoView if the worker ends first: then nobody may carry the order out."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock.fileno(), readable.cancel)  # that it is done is all that matters
    ends: set[asyncio.Future[Any]] = {readable, worker.gone}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not readable.done():
            raise NoView(UNREACHABLE)
    finally:
        loop.remove_reader(sock.fileno())


def _kind(fd: int) -> int:
    """Return which kind of namespace a descriptor is of, or 0."""
    try:
        return fcntl.ioctl(fd, NS_GET_NSTYPE)
    except OSError:
        return 0


def _close(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
