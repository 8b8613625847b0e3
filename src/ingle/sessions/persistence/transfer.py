"""A session's worker and its snapshot: a channel between the two, and the word that comes when it is done.

The bytes pass in a thread that blocks on the channel; here is what the worker says on its wire meanwhile. A worker that
is gone takes its end of the channel with it, so that thread never waits for nobody.
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

PATIENCE = 30.0
"""Until a worker that is to save or to load asks for its channel."""

LOAD_PATIENCE = 600.0
"""From the last byte of a snapshot until all its objects are made; code of the user's may run meanwhile."""

Result = TypeVar("Result")


class Keeping:
    """What a worker says while it is saved or loaded; its owner, if it is a copy."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ticket = 0
        self._wanted: asyncio.Future[None] | None = None
        self._failed = ""
        self.asked: asyncio.Future[messages.Loaded | None] | None = None
        """A load that is under way."""

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
        """What code of the user's prints while it is saved is nobody's output."""

    def on_gone(self, exit: Exit | None = None) -> None:
        self._end(None)

    def _end(self, loaded: messages.Loaded | None) -> None:
        asked, self.asked = self.asked, None
        if asked is not None and not asked.done():
            asked.set_result(loaded)

    # --- the verbs ---

    async def save(self, copy: Worker, take: Callable[[socket.socket], Result], executor: Executor) -> Result:
        """Have a copy tell everything to `take`, which runs in a thread; the copy is gone after it."""
        copy.owner = self
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        try:
            with theirs:
                await self._connect(copy, messages.Save(0), theirs)
            return await self._loop.run_in_executor(executor, take, ours)
        except CopyLost as error:
            copy.kill()
            exit = await copy.gone
            if self._failed:
                raise errors.SaveFailed(f"{NOT_SAVED}{self._failed}") from None
            if exit.signal or exit.code:
                raise errors.SaveFailed(f"{error.message} (the copy {exit.message})") from None
            raise
        finally:
            # A thread that still reads sees the end at once, whoever has the other end.
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            ours.close()
            copy.kill()
            await copy.gone

    async def load(
        self,
        worker: Worker,
        summary: bytes,
        send: Callable[[socket.socket], None],
        executor: Executor,
        *,
        rerun: bool = False,
    ) -> messages.Loaded:
        """Have a worker take a snapshot from `send`, which runs in a thread."""
        asked: asyncio.Future[messages.Loaded | None] = self._loop.create_future()
        self.asked = asked
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        try:
            with theirs:
                await self._connect(worker, messages.Load(0, rerun, summary), theirs)
            with ours:
                await self._loop.run_in_executor(executor, send, ours)
            await asyncio.wait({asked}, timeout=LOAD_PATIENCE)
        finally:
            ours.close()
            self._end(None)
        loaded = asked.result()
        if loaded is None:
            raise errors.LoadFailed("the new session ended, or hung, while the snapshot was loaded into it")
        if loaded.problem:
            raise errors.LoadFailed(f"the snapshot could not be loaded: {loaded.problem[:1000]}")
        return loaded

    async def _connect(self, worker: Worker, order: messages.Save | messages.Load, theirs: socket.socket) -> None:
        self._ticket += 1
        self._wanted = self._loop.create_future()
        worker.send(replace(order, ticket=self._ticket))
        waiting: list[asyncio.Future[Any]] = [self._wanted, worker.gone]
        await asyncio.wait(waiting, timeout=PATIENCE, return_when="FIRST_COMPLETED")
        failed = errors.SaveFailed if isinstance(order, messages.Save) else errors.LoadFailed
        if not self._wanted.done():
            raise failed("the session's process ended, or did not come to it; try again")
        try:
            await worker.give_ends(messages.Ends(self._ticket, 0), [theirs.fileno()])
        except OSError as error:
            raise failed(f"the session's process is gone ({error}); try again") from None
