"""Transfer of a snapshot between a worker and the host, over a channel of its own.

The bytes pass in a thread that blocks on the channel. Meanwhile the worker reports on its wire. A worker that ends
closes its end of the channel, so the thread never waits for ever.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

from ingle import errors
from ingle.events import Exit
from ingle.snapshots.transfer import NOT_SAVED, CopyLost
from ingle.workers.io.descriptors import refuse_descriptors
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

CHANNEL_SECONDS = 30.0
"""Seconds until a worker that saves or loads asks for its channel."""

CALL_SECONDS = 30.0
"""Seconds for one call of an object's own code while it is saved. A copy has no other threads to wait for."""

LOAD_SECONDS = 600.0
"""Seconds from the last byte of a snapshot until all its objects exist. The user's code may run meanwhile."""

Result = TypeVar("Result")

WHOLE = messages.Save(0)

Order = messages.Save | messages.Load | messages.Compare


class Transfer:
    """One save or load. It owns a copy that is saved, and receives its messages."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ticket = 0
        self._wanted: asyncio.Future[None] | None = None
        self._failed = ""
        self._loaded: asyncio.Future[messages.Loaded | None] | None = None

    # --- as the owner of a copy ---

    def on_message(self, message: Any) -> None:
        if isinstance(message, messages.ChannelWanted):
            if self._wanted is not None and not self._wanted.done() and message.ticket == self._ticket:
                self._wanted.set_result(None)
        elif isinstance(message, messages.SaveFailed):
            self._failed = message.reason[:1000]
        elif isinstance(message, messages.Loaded) and message.ticket == self._ticket:
            self._end(message)

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        """Drop what the user's code prints while it is saved."""

    def on_gone(self, exit: Exit | None = None) -> None:
        self._end(None)

    def _end(self, loaded: messages.Loaded | None) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(loaded)

    # --- save and load ---

    async def save(
        self,
        copy: Worker,
        take: Callable[[socket.socket], Result],
        executor: Executor,
        order: messages.Save = WHOLE,
    ) -> Result:
        """Have a copy send everything to `take`, which runs in a thread. The copy has ended when this returns."""
        ours = await self.open(copy, replace(order, call_seconds=CALL_SECONDS))
        taking = self._loop.run_in_executor(executor, take, ours)
        try:
            return await asyncio.shield(taking)
        except CopyLost as error:
            copy.kill()
            exit = await copy.gone
            if self._failed:
                raise errors.SaveFailed(f"{NOT_SAVED}{self._failed}") from None
            if exit.signal or exit.code:
                raise errors.SaveFailed(f"{error.message} (the copy {exit.message})") from None
            raise
        finally:
            # A thread that still reads sees the end at once, even if another process holds the other end.
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            copy.kill()
            await copy.gone
            # A caller that was cancelled may remove what the thread has written, so the thread must have ended. The
            # socket is closed after that: the thread could wait for another one that gets the same number.
            await asyncio.wait({taking})
            ours.close()

    async def open(self, copy: Worker, order: messages.Save | messages.Compare) -> socket.socket:
        """Have a copy answer an order over a channel, which the caller closes. If that fails, the copy has ended."""
        copy.owner = self
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        try:
            with theirs:
                await self._connect(copy, order, theirs)
            return ours
        except BaseException:
            ours.close()
            copy.kill()
            await copy.gone
            raise

    async def load(
        self,
        worker: Worker,
        summary: bytes,
        send: Callable[[socket.socket], None],
        executor: Executor,
        *,
        rerun: bool = False,
        random: bool = True,
    ) -> messages.Loaded:
        """Have a worker load a snapshot from `send`, which runs in a thread."""
        done: asyncio.Future[messages.Loaded | None] = self._loop.create_future()
        self._loaded = done
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        try:
            with theirs:
                await self._connect(worker, messages.Load(0, rerun, random, summary), theirs)
            with ours:
                await self._loop.run_in_executor(executor, send, ours)
            await asyncio.wait({done}, timeout=LOAD_SECONDS)
        finally:
            ours.close()
            self._end(None)
        loaded = done.result()
        if loaded is None:
            raise errors.LoadFailed("the new session ended, or hung, while the snapshot was loaded into it")
        if loaded.problem:
            raise errors.LoadFailed(f"the snapshot could not be loaded: {loaded.problem[:1000]}")
        return loaded

    async def _connect(self, worker: Worker, order: Order, theirs: socket.socket) -> None:
        self._ticket += 1
        self._wanted = self._loop.create_future()
        worker.send(replace(order, ticket=self._ticket))
        waiting: list[asyncio.Future[Any]] = [self._wanted, worker.gone]
        await asyncio.wait(waiting, timeout=CHANNEL_SECONDS, return_when="FIRST_COMPLETED")
        failed = errors.LoadFailed if isinstance(order, messages.Load) else errors.SaveFailed
        if not self._wanted.done():
            raise failed("the session's process ended, or did not come to it; try again")
        try:
            await worker.give_ends(messages.Ends(self._ticket, 0), [theirs.fileno()])
        except OSError as error:
            raise failed(f"the session's process is gone ({error}); try again") from None
