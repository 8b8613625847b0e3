"""Calls of tools that are in flight: sent over the wire, and answered from any thread or event loop.

After an interrupt or a cancellation, the call is cancelled at the host too. A copy of the session has none of its
original's calls.
"""

import itertools
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link, WireLost
from ingle_worker.tools.values import ToolError, failure_of
from ingle_worker.wire.cells import CALL
from ingle_worker.wire.messages import ToolCancel, ToolReply, ToolRequest


class ThreadCall:
    """A call that a thread waits for."""

    def __init__(self) -> None:
        self.reply: ToolReply | None = None
        self._wake = allocate_lock()
        self._wake.acquire()

    def answer(self, reply: ToolReply) -> None:
        self.reply = reply
        self.wake()

    def wake(self) -> None:
        """Have the thread look again: at its reply, or whether it can lead."""
        try:
            self._wake.release()
        except RuntimeError:  # released already: its next wait passes
            return

    def wait(self) -> None:
        self._wake.acquire()


class LoopCall:
    """A call that a task of an event loop waits for."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._thread = get_ident()
        self.future = loop.create_future()

    def answer(self, reply: ToolReply) -> None:
        if get_ident() == self._thread:
            self._set(reply)
            return
        try:
            self._loop.call_soon_threadsafe(self._set, reply)
        except RuntimeError:  # the loop was closed meanwhile
            return

    def _set(self, reply: ToolReply) -> None:
        if not self.future.done():
            self.future.set_result(reply)


class _Watch:
    """How an event loop reads the wire while calls of it are in flight."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.calls = 0


class Calls:
    def __init__(self, link: Link, interrupts: Interrupts, is_background: Callable[[], bool]) -> None:
        self._link = link
        self._interrupts = interrupts
        self._is_background = is_background
        self._numbers = itertools.count(1)
        self._threads: dict[int, ThreadCall] = {}
        self._loops: dict[int, LoopCall] = {}
        self._watches: dict[Any, _Watch] = {}
        link.on_reply = self._on_reply
        link.on_free = self._on_free
        link.on_moved = self._reset_in_copy

    def _reset_in_copy(self) -> None:
        """Forget all calls, in a copy: they are those of the original."""
        self._threads.clear()
        self._loops.clear()
        self._watches.clear()

    def _on_reply(self, reply: ToolReply) -> None:
        call = self._threads.get(reply.call) or self._loops.get(reply.call)
        if call is not None:  # else it was cancelled
            call.answer(reply)

    def _on_free(self) -> None:
        """Have another thread read the wire, if one waits."""
        for call in list(self._threads.values()):
            if call.reply is None:
                call.wake()
                return

    def _check(self) -> None:
        if not self._link.usable:
            raise ToolError("a tool can be called by the session's own process only, and not in a signal handler")

    def request(self, kind: str, server: str = "", tool: str = "", data: bytes = b"") -> bytes:
        """Ask the host and wait for the answer. Raise ToolError if it is a failure."""
        self._check()
        number, call = next(self._numbers), ThreadCall()
        self._interrupts.shield()
        try:
            self._threads[number] = call
            self._link.send(ToolRequest(number, kind, server, tool, kind == CALL and self._is_background(), data))
            while call.reply is None:
                if not self._link.lead():
                    self._exposed(call.wait)
                    continue
                try:
                    while call.reply is None:
                        self._exposed(self._link.wait_readable)
                        self._link.read_available()
                finally:
                    self._link.stop_leading()
        finally:
            self._threads.pop(number, None)
            if call.reply is None:
                self._cancel(number)
            self._on_free()
            self._interrupts.unshield()
        return _result(call.reply)

    def _exposed(self, wait: Callable[[], None]) -> None:
        """Wait while interrupts come through."""
        try:
            self._interrupts.unshield()
            wait()
        finally:
            self._interrupts.shield()

    def _cancel(self, number: int) -> None:
        try:
            self._link.send(ToolCancel(number))
        except WireLost:
            return

    # --- event loops ---

    async def request_async(self, kind: str, server: str = "", tool: str = "", data: bytes = b"") -> bytes:
        """Ask the host without blocking the event loop. Raise ToolError if the answer is a failure."""
        import asyncio

        self._check()
        loop = asyncio.get_running_loop()
        number, call = next(self._numbers), LoopCall(loop)
        self._loops[number] = call
        reply: ToolReply | None = None
        try:
            self._watch(loop)
            self._link.send(ToolRequest(number, kind, server, tool, kind == CALL and self._is_background(), data))
            reply = await call.future
        finally:
            # In a copy of the session the call is gone, and so is its loop.
            if self._loops.pop(number, None) is not None:
                self._unwatch(loop)
                if reply is None:
                    self._cancel(number)
        return _result(reply)

    def _watch(self, loop: Any) -> None:
        watch = self._watches.get(loop)
        if watch is None:
            watch = self._watches[loop] = _Watch(self._link.duplicate())
            loop.add_reader(watch.fd, self._on_readable, loop)
        watch.calls += 1

    def _unwatch(self, loop: Any) -> None:
        watch = self._watches[loop]
        watch.calls -= 1
        if watch.calls == 0:
            del self._watches[loop]
            if not loop.is_closed():
                loop.remove_reader(watch.fd)
            self._link.close_duplicate(watch.fd)

    def _on_readable(self, loop: Any) -> None:
        self._interrupts.shield()
        try:
            self._link.read_available()
        except WireLost as error:
            for call in list(self._loops.values()):
                if not call.future.done():
                    call.future.set_exception(error)
        finally:
            self._interrupts.unshield()


def _result(reply: ToolReply) -> bytes:
    if not reply.ok:
        raise failure_of(reply.data)
    return reply.data
