"""The session's event loop: created by the first cell that awaits, and running while the session is idle.

During a cell without `await` the loop is stopped, so that `asyncio.run()` works. An interrupt cancels the cell's task,
and no part of it resumes later.
"""

import _signal  # type: ignore[import-not-found]
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link, WireLost


class EventLoop:
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.loop: Any = None
        self._asyncio: Any = None
        self._abandoned: list[Any] = []
        """Loops of originals. They stay referenced, because a garbage collected loop closes itself."""

    @property
    def exists(self) -> bool:
        return self.loop is not None and not self.loop.is_closed()

    def _get(self) -> Any:
        if not self.exists:
            # Imported here: only sessions that await pay for asyncio.
            import asyncio

            self._asyncio = asyncio
            self.loop = asyncio.new_event_loop()
        self._asyncio.set_event_loop(self.loop)
        return self.loop

    def run(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a cell's coroutine to its end. Raises its exception, or KeyboardInterrupt if it was interrupted."""
        interrupted = False
        # Shielded until there is a task to cancel: asyncio must not stay half imported, nor the coroutine unawaited.
        self._interrupts.shield()
        try:
            loop = self._get()
            task = loop.create_task(start())

            def on_interrupt(frame: FrameType | None) -> bool:
                nonlocal interrupted
                if self._asyncio.current_task(loop) is task:
                    return False  # code of the cell is on the stack: interrupt it there
                interrupted = True
                loop.call_soon_threadsafe(task.cancel)
                return True

            def on_done(task: Any) -> None:
                # An exit or interrupt ends the run by itself. Stopping the loop now would stop its next run.
                if task.cancelled() or not isinstance(task.exception(), (SystemExit, KeyboardInterrupt)):
                    loop.stop()

            task.add_done_callback(on_done)
            self._interrupts.on_interrupt = on_interrupt
        finally:
            self._interrupts.unshield()
        try:
            while not task.done():
                try:
                    # Not run_until_complete(): it takes the result, and a traceback can be taken only once.
                    loop.run_forever()
                except SystemExit:
                    # The exit of the cell's task ends this loop. The exit of another task only interrupts it.
                    continue
                except BaseException:
                    if not task.done():
                        raise
        finally:
            self._interrupts.on_interrupt = None
            if not task.done():
                self._finish(task)
        try:
            return task.result()
        except self._asyncio.CancelledError as cancelled:
            if not interrupted:
                raise
            # CPython 3.10 raises a new error here. Its context has the traceback of the cell.
            was = cancelled if sys.version_info >= (3, 11) else cancelled.__context__ or cancelled
            raise KeyboardInterrupt().with_traceback(was.__traceback__) from None

    def _finish(self, task: Any) -> None:
        """Cancel an unfinished task and wait for its end."""
        task.cancel()
        try:
            self.loop.run_until_complete(self._asyncio.wait({task}))
        except BaseException:  # the outcome of the task no longer matters
            return

    def idle(self, link: Link) -> None:
        """Run the loop until a message for the main thread has come. Replies of tools are handed out meanwhile."""
        loop = self.loop
        lost: WireLost | None = None

        def on_readable() -> None:
            nonlocal lost
            try:
                link.read_available()
            except WireLost as error:
                lost = error
                loop.stop()

        link.on_received = lambda: loop.call_soon_threadsafe(loop.stop)
        loop.add_reader(link.fd, on_readable)
        try:
            while not link.received and lost is None:  # a task of the user may stop the loop too
                loop.run_forever()
        finally:
            link.on_received = None
            loop.remove_reader(link.fd)
        if lost is not None:
            raise lost

    def drop(self) -> str:
        """Close the loop. The next cell that awaits gets a new one."""
        try:
            self.close()
        finally:
            self.loop = None
        return ""

    def count_tasks(self) -> int:
        return len(self._asyncio.all_tasks(self.loop)) if self.exists else 0

    def abandon(self) -> None:
        """Abandon the loop in a copy of the session's process: it and its tasks belong to the original."""
        if self.loop is None:
            return
        for task in self._asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # it still exists, in the original
        self._abandoned.append(self.loop)
        self.loop = None
        # A signal here must not wake the original's loop, whose socket this process shares.
        _signal.set_wakeup_fd(-1)
        self._asyncio.set_event_loop(None)

    def abandoned_descriptors(self) -> list[int]:
        """Return the sockets by which the original wakes the loops that a copy has abandoned."""
        ends = [getattr(loop, name, None) for loop in self._abandoned for name in ("_ssock", "_csock")]
        return [end.fileno() for end in ends if end is not None and end.fileno() >= 0]

    def close(self) -> None:
        """Cancel all tasks and close the loop, as `asyncio.run()` does."""
        if not self.exists or self.loop.is_running():
            return
        tasks = self._asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(self._asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
