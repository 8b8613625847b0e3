"""The init of a shell task at the host's end: it starts one program, signals it and ends it.

An init may have been forked long before it is told what to run. Its end is reported exactly once, and then no process
of the task is left.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ingle.support import processes
from ingle.workers.exit_status import check_status
from ingle.workers.init_link import InitGone, InitLink, Phase
from ingle.workers.io.descriptors import ChildEnds
from ingle_worker.wire import messages

INIT_MESSAGES = frozenset(
    (
        messages.InitUp,
        messages.RunFailed,
        messages.Signalled,
        messages.ProgramExited,
        messages.TreeEnded,
        messages.Breach,
    )
)


class ProcessListener(Protocol):
    """Listener of one process."""

    def on_exited(self, message: messages.ProgramExited) -> None: ...

    def on_breach(self, message: messages.Breach) -> None: ...

    def on_gone(self) -> None: ...


class TaskProcess:
    """One program below an init. The init may serve another task afterwards (`renewed`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, init: InitLink | None = None) -> None:
        """`init` is one that has already served a task."""
        self._loop = loop
        self.owner: ProcessListener | None = None
        self.init = init or InitLink(loop, self._on_init, INIT_MESSAGES)
        self.init.emit = self._on_init
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the program was forked, or its start failed. The zygote sets an exception if it cannot fork."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self.failure: str | None = None
        self.no_folder = False
        """Whether the start failed because the working directory does not exist."""
        self.cpu_seconds = 0.0
        self.peak_bytes = 0
        self.on_free: Callable[[TaskProcess], None] | None = None
        """Called when nothing is left of the task and init could run another one."""
        self._exited = False
        self._reusable = True

    def make_ends(self) -> ChildEnds:
        """Create the status socket. The caller gives the child's end away and closes it."""
        return ChildEnds([self.init.make_end()])

    def watch(self) -> None:
        """Start to read."""
        self.init.watch()

    @property
    def alive(self) -> bool:
        """Whether init takes orders."""
        return not self.gone.done() and self.init.phase not in (Phase.DEAF, Phase.LEAVING, Phase.GONE)

    @property
    def pid(self) -> int | None:
        """Process id of the program, as the host knows it."""
        return self.init.child_pid

    @property
    def init_pid(self) -> int | None:
        return self.init.init_pid

    # --- orders ---

    def run(self, message: messages.Run, fds: list[int]) -> None:
        """Start the program, once, with these three descriptors. If init is gone, its end is reported as always."""
        # Limits that init takes on itself for a program cannot be lifted again.
        self._reusable = not (message.files or message.file_size or message.processes)
        self.init.send_now_with(message, fds)

    async def wait_started(self) -> None:
        """Wait until it is known whether the program was started."""
        await asyncio.wait({self.ready})

    def signal(self, number: int, *, group: bool = False, again: bool = False) -> "asyncio.Future[bool]":
        """Send a signal to the whole tree, or to the program's process group. The future is done when it was sent.

        `again`: send SIGINT once more, if a process that was to get it has missed it.
        """
        if not self.gone.done():
            return self.init.send_signal(lambda order: messages.Signal(order, number, group, again))
        # The init may already serve another task.
        sent: asyncio.Future[bool] = self._loop.create_future()
        sent.set_result(False)
        return sent

    def kill(self) -> None:
        """End all processes of this task now. The end is reported as always."""
        if not self.gone.done():
            self.init.kill()

    def close(self) -> None:
        """Close an init that was told nothing. It ends itself."""
        if not self.gone.done():
            self._finish()

    def renewed(self) -> "TaskProcess":
        """Return a process for another task, with the same init."""
        return TaskProcess(self._loop, self.init)

    # --- events ---

    def _on_init(self, event: Any) -> None:
        match event:
            case messages.InitUp():
                self._on_up(event)
            case messages.RunFailed():
                self.failure = self.failure or event.reason
                self.no_folder = event.no_folder
                self._settle_start()
            case messages.ProgramExited() if not self._exited:
                check_status(event.status)
                self._exited = True
                self._use(event)
                if self.owner is not None:
                    self.owner.on_exited(event)
                if not event.left:
                    self._finish(free=True)
            case messages.TreeEnded():
                self._use(event)
                self._finish()
            case messages.Breach():
                if self.owner is not None:
                    self.owner.on_breach(event)
            case InitGone():
                self._finish()

    def _on_up(self, message: messages.InitUp) -> None:
        """Note the process ids. The first message has that of init only, the second also that of the program."""
        init = self.init
        init.swept_pid = message.pid
        if message.worker:
            inside = init.init_pid is not None and message.pid != init.init_pid
            init.child_pid = processes.child_called(message.worker, init.init_pid or 0) if inside else message.worker
            self._settle_start()

    def _use(self, message: messages.ProgramExited | messages.TreeEnded) -> None:
        self.cpu_seconds = max(self.cpu_seconds, message.cpu_seconds)
        self.peak_bytes = max(self.peak_bytes, message.peak_kib * 1024)

    def _settle_start(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def _finish(self, free: bool = False) -> None:
        """Report the end. With `free`, init waits for another task."""
        if self.gone.done():
            return
        self.gone.set_result(None)
        if self.ready.done() and (failure := self.ready.exception()) is not None:
            self.failure = self.failure or str(failure)
        self._settle_start()
        # Only an init without orders under way can be used again: nobody could tell what those would hit.
        free = free and self._reusable and self.init.phase is Phase.UP and not self.init.pending
        if free and self.on_free is not None:
            self.init.child_pid = None
            self.on_free(self)
        else:
            self.init.close()
        if self.owner is not None:
            self.owner.on_gone()
