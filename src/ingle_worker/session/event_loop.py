"""The session's event loop: made by the first cell that awaits, kept as long as the session, running while it is idle.

During a cell without `await` it is stopped, so that `asyncio.run()` works there. An interrupt cancels the cell's task
and nothing of it resumes later.
"""

import _signal  # type: ignore[import-not-found]
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from ingle_worker.session.interrupts import Interrupts


class Looping:
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.loop: Any = None
        self._asyncio: Any = None
        self._left: list[Any] = []
        """Loops of originals. Kept, because a loop that is let go closes itself."""

    @property
    def exists(self) -> bool:
        return self.loop is not None and not self.loop.is_closed()

    def _get(self) -> Any:
        if not self.exists:
            # Only a session that awaits pays for asyncio.
            import asyncio

            self._asyncio = asyncio
            self.loop = asyncio.new_event_loop()
        self._asyncio.set_event_loop(self.loop)
        return self.loop

    def run(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a cell's coroutine to its end. Raises what it raises; KeyboardInterrupt when it was interrupted."""
        interrupted = False
        # Held back until there is a task to cancel: asyncio must not be left half imported, nor the coroutine alone.
        self._interrupts.shield()
        try:
            loop = self._get()
            task = loop.create_task(start())

            def on_interrupt(frame: FrameType | None) -> bool:
                nonlocal interrupted
                if self._asyncio.current_task(loop) is task:
                    return False  # the cell's own code is on the stack: it is stopped right there
                interrupted = True
                loop.call_soon_threadsafe(task.cancel)
                return True

            def on_done(task: Any) -> None:
                # An exit or an interrupt breaks the run by itself; to stop the loop now would stop its next run.
                if task.cancelled() or not isinstance(task.exception(), (SystemExit, KeyboardInterrupt)):
                    loop.stop()

            task.add_done_callback(on_done)
            self._interrupts.instead = on_interrupt
        finally:
            self._interrupts.unshield()
        try:
            while not task.done():
                try:
                    # Not run_until_complete(): it asks for the result, and a traceback is given out only once.
                    loop.run_forever()
                except SystemExit:
                    # The cell's own exit ends this loop; one of another task only broke the run, and it goes on.
                    continue
                except BaseException:
                    if not task.done():
                        raise
        finally:
            self._interrupts.instead = None
            if not task.done():
                self._finish(task)
        try:
            return task.result()
        except self._asyncio.CancelledError as cancelled:
            if not interrupted:
                raise
            # CPython 3.10 raises a new error here, whose context is the one that knows where the cell was.
            was = cancelled if sys.version_info >= (3, 11) else cancelled.__context__ or cancelled
            raise KeyboardInterrupt().with_traceback(was.__traceback__) from None

    def _finish(self, task: Any) -> None:
        """Cancel a task that was left in the middle, and see it end."""
        task.cancel()
        try:
            self.loop.run_until_complete(self._asyncio.wait({task}))
        except BaseException:  # the task's own outcome does not matter any more
            return

    def idle(self, fd: int) -> None:
        """Run the loop until there is something to read from `fd`."""
        loop = self.loop
        readable = False

        def on_readable() -> None:
            nonlocal readable
            readable = True
            loop.stop()

        loop.add_reader(fd, on_readable)
        try:
            while not readable:  # a task of the user's may stop the loop too
                loop.run_forever()
        finally:
            loop.remove_reader(fd)

    def drop(self) -> str:
        """End what goes on, and have a new loop for the next cell that awaits."""
        try:
            self.close()
        finally:
            self.loop = None
        return ""

    def count_tasks(self) -> int:
        return len(self._asyncio.all_tasks(self.loop)) if self.exists else 0

    def leave(self) -> None:
        """In a copy of the session's process: the loop is the original's, and so are its tasks. Never touched again."""
        if self.loop is None:
            return
        for task in self._asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # it has not been destroyed, it is somewhere else
        self._left.append(self.loop)
        self.loop = None
        # A signal that comes here must not wake the other loop, whose socket this process has too.
        _signal.set_wakeup_fd(-1)
        self._asyncio.set_event_loop(None)

    def close(self) -> None:
        """Cancel what is left, as `asyncio.run()` does at its end."""
        if not self.exists or self.loop.is_running():
            return
        tasks = self._asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(self._asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
