"""The process of one session at the host's end: its descriptors, messages and output, and its sure end.

`Worker` never blocks the loop and knows nothing of cells. Its owner hears of its end once, after the last byte.
"""

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterator
from typing import Any

from ingle.events import Exit
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.requests import NewCell, SessionLimits
from ingle.support import processes
from ingle.workers.birth import Birth
from ingle.workers.copies import PLAIN, Copies, ForkOptions, Forks
from ingle.workers.exit_status import exit_of, explain
from ingle.workers.exit_watch import Sweeper
from ingle.workers.init_link import InitBroke, InitGone, InitLink, Phase
from ingle.workers.io.descriptors import ChildEnds, as_socket, identity
from ingle.workers.io.ordered_output import OrderedOutput, Output
from ingle.workers.io.stdin_pipe import StdinPipe
from ingle.workers.io.wire import Wire, broken_by
from ingle.workers.launch.idle_inits import IdleInit
from ingle.workers.listener import WorkerListener
from ingle.workers.siblings import Siblings
from ingle_worker.wire import WireError, messages

BREAK_PATIENCE_SECONDS = 0.1
"""Time between the loss of the wire and the kill: init reports a process that had already exited."""

LEND_PAUSE_SECONDS = 5.0
"""Time between the return of a worker's descriptors and the next loan: a thread of an idle session may still write."""

MAX_REASON_CHARS = 1000

INIT_MESSAGES = frozenset(
    (
        messages.InitUp,
        messages.NotEntered,
        messages.Signalled,
        messages.Exited,
        messages.Swept,
        messages.EndsReturned,
    )
)


FORK_ANSWERS = frozenset((messages.EndsWanted, messages.Holding, messages.Copied))

ChildOrder = messages.Shell | messages.ServeFiles | messages.MakeView | messages.CloseView


class WorkerEnded(Exception):
    """A worker exited before it was ready."""


class Worker:
    """Facade of one worker process and its init."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, birth: Birth, *, siblings: Siblings | None = None, slot: int = 0
    ) -> None:
        """`siblings` and `slot` are those of a live copy."""
        self._loop = loop
        self.birth = birth
        self.owner: WorkerListener | None = None
        self.siblings = siblings or Siblings(loop)
        self.siblings.members.add(self)
        self.slot = slot
        self.init = InitLink(loop, self._on_init, INIT_MESSAGES, siblings=self.siblings, takes_descriptors=True)
        self.init_up = self.init.up
        self.signalled = self.init.signalled
        self.ready: asyncio.Future[messages.Ready] = loop.create_future()
        self.gone: asyncio.Future[Exit] = loop.create_future()
        self.group: Group | None = None
        """Cgroup of the worker and all processes below it."""
        self.limits: SessionLimits | None = None
        """Limits that the kernel was seen to hold, until code runs, which may lower them."""
        self.group_released: asyncio.Future[None] | None = None
        self.task_sweeper = Sweeper(loop)
        """Reports about the inits of shell tasks in this worker's sandbox."""
        self.proxy_listener: socket.socket | None = None
        """Listening socket inside the session's network, for the egress proxy of the host."""
        self.idle_init: IdleInit | None = None
        """Its init, if that waits for another session after this worker is gone. The launcher takes it."""
        self._next_orders: socket.socket | None = None
        """Socket to an init that was asked to stay."""
        self._tenant = ""
        self.forks = Forks()
        self.view: list[int] = []
        """Namespaces that the worker is about to enter. Whoever made them closes them."""
        self.blank: Worker | None = None
        """Copy of this worker, or of the one it is a copy of, from before its first cell."""
        self.is_blank = False
        """Whether it is such a copy. It ends with the last other worker of its init."""
        self._exit: Exit | None = None
        self._broken: str | None = None
        self._lent: list[tuple[int, int, int]] = []
        """Identities of the descriptors that init keeps while the worker is idle."""
        self._recalled = False
        self._restored_at = 0.0
        self._breaking: asyncio.TimerHandle | None = None
        """Kill of a worker that lost its wire."""

    def make_ends(self) -> ChildEnds:
        """Create all descriptors, or none. The caller gives the child's ends away and closes them."""
        with contextlib.ExitStack() as made:
            self.stdin = StdinPipe(self._loop)
            made.callback(self.stdin.close_both)
            self.wire = Wire(self._loop, self._read, self._break)
            made.callback(self.wire.close_both)
            self.output = OrderedOutput(self._loop, self.wire, self._read)
            made.callback(self.output.close_both)
            child_status = self.init.make_end()
            made.pop_all()
        return ChildEnds([self.stdin.child, *self.output.children, self.wire.child, child_status])

    def watch(self) -> None:
        """Start to read. Apart from `make_ends`, because the child need not wait for this."""
        self.output.watch()
        self.init.watch()

    @property
    def alive(self) -> bool:
        """Whether the worker can be used: it has not exited, was not killed and keeps to the protocol."""
        return self.init.phase in (Phase.NEW, Phase.UP) and self._broken is None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, as the kernel reports it."""
        return self.init.child_pid

    @property
    def init_pid(self) -> int | None:
        return self.init.init_pid

    def usage(self) -> tuple[int | None, float | None]:
        """Return the worker's memory in bytes and its CPU time in seconds."""
        return processes.usage(self.pid)

    # --- orders to the worker ---

    def send(self, message: Any) -> None:
        """Send a message over the wire."""
        self.limits = None
        self._recall_ends()
        self.wire.send(message)

    def execute(self, cell: int, new: NewCell, *, crowded: bool) -> None:
        """Start a cell. With `crowded`, output of threads counts as background output until the cell begins."""
        self.limits = None
        self._recall_ends()
        self._handle_all(self.output.read_before_cell())
        if crowded:
            self.output.expect_cell(cell)
        argv, file = ([], None) if new.script is None else (new.script.argv, new.script.file)
        self.wire.send(messages.Execute(cell, new.code, new.envs, argv, file or "", new.item or ""))

    async def give_ends(self, message: messages.Ends, fds: list[int]) -> None:
        """Send descriptors over the wire. Raises OSError when the worker is gone.

        The worker has asked for them, so its own are not lent.
        """
        await self.wire.send_with(message, fds)

    def pause(self) -> None:
        """Stop reading output, because the owner is behind. The worker waits."""
        self.output.pause()

    def resume(self) -> None:
        self.output.resume()

    def _give_view(self) -> None:
        """Send the namespaces that the worker has asked for, once."""
        fds, self.view = self.view, []
        if not fds or not self.wire.send_now_with(messages.Ends(0, 0), fds):
            self.break_off("it asked for a view that nobody made")

    # --- orders to init ---

    def interrupt(self, cell: int, *, again: bool = False, memory: bool = False) -> "asyncio.Future[bool]":
        """Send SIGINT to the worker's group while it runs this cell. The result is True if it ignores SIGINT now.

        `memory`: have the worker raise MemoryError instead.
        """
        return self.init.send_signal(lambda order: messages.Interrupt(order, cell, again, memory))

    def enter(self, order: messages.Enter) -> None:
        """Mount folders of the data folder in the worker's sandbox. The worker waits for it with its Start."""
        self.init.send(order)

    async def start_child(self, order: ChildOrder, fd: int) -> None:
        """Have init fork a process, which gets `fd`. Closes `fd` here. Raises OSError when init is gone."""
        try:
            await self.init.send_with(order, [fd])
        finally:
            os.close(fd)

    async def fork(self, count: int = 1, options: ForkOptions = PLAIN) -> Copies:
        """Make live copies between cells, which may still be starting. Raises StartFailed, and then there are none."""
        return await self.forks.make(self, count, options)

    def make_sibling(self, slot: int) -> "Worker":
        """Return the host's side of a copy that is to be made."""
        sibling = Worker(self._loop, dataclasses.replace(self.birth, pooled=False), siblings=self.siblings, slot=slot)
        sibling.init.share_init_of(self.init)
        if self.group is not None:
            self.group.hold()
            sibling.group = self.group
        sibling.blank = self.blank
        return sibling

    # --- events ---

    def _read(self) -> None:
        self._handle_all(self.output.read())
        if self.init.child_pid is None:
            self.init.child_pid = self.wire.peer_pid

    def _handle_all(self, items: Iterator[Any]) -> None:
        for item in items:
            kind = type(item)
            if kind is Output:
                if self.owner is not None:
                    self.owner.on_output(item.stream, item.data, item.background)
            elif kind is messages.Ready:
                if not self.ready.done():
                    self.ready.set_result(item)
            elif kind is messages.NotCopied:
                late = broken_by("it says that it could not be made")
                self._break(late if self.ready.done() else item.reason[:MAX_REASON_CHARS])
            elif kind in FORK_ANSWERS:
                self.forks.on_message(self, item)
            elif kind is messages.ViewWanted:
                self._give_view()
            elif self.owner is not None:
                self.owner.on_message(item)

    def _on_init(self, event: Any) -> None:
        match event:
            case messages.NotEntered():
                # Init kills the worker for this.
                self.kill(f"the session's sandbox could not be prepared ({event.reason[:MAX_REASON_CHARS]})")
            case messages.InitUp() if not self.init_up.done():
                if (fd := self.init.take_descriptor()) is not None:
                    self.proxy_listener = as_socket(fd)
            case messages.EndsReturned():
                self._on_ends_returned()
            case messages.Exited():
                self._exit = exit_of(event.status)
            case messages.Swept() if event.pid:
                self.task_sweeper.report(event.pid)
            case InitBroke():
                self._broken = self._broken or f"the session's init broke the protocol ({event.reason})"
                self.wire.stop()
            case InitGone():
                self._finish()

    # --- the end ---

    def keep_init(self, tenant: str, folders: list[str]) -> None:
        """Ask init to serve another session of this tenant after the last worker below it. See `idle_init`.

        Before it is gone, init removes those of these folders that are empty.
        """
        if self._next_orders is None and self.alive:
            self._tenant = tenant
            self._next_orders, child = socket.socketpair()
            self._next_orders.setblocking(False)
            self.init.send_now_with(messages.Stay(folders), [child.fileno()])
            child.close()

    def kill(self, because: str | None = None) -> None:
        """End all processes of this worker now. Its end is reported as always."""
        self.init.kill(because)

    def break_off(self, why: str) -> None:
        """End this worker because it broke the protocol."""
        self._break(broken_by(why))

    # --- descriptors of an idle worker ---

    def lend_ends(self, *, at_once: bool = False) -> None:
        """Have init keep the descriptors of an idle worker: an idle session then takes one descriptor of the server.

        The next message to the worker, or the first byte from it, brings them back. `at_once`: even if they have just
        come back.
        """
        if self._lent or not self.alive or self.init.phase is not Phase.UP or self.init.pending:
            return
        if not at_once and self._loop.time() < self._restored_at + LEND_PAUSE_SECONDS:
            return
        if self.wire.unsent or not self.stdin.quiet or not self.output.quiet or self._next_orders is not None:
            return
        if self.forks.busy:
            return  # descriptors of a copy are about to be sent over the wire
        fds = [self.wire.release(), *self.stdin.release(), *self.output.release()]
        self._lent = [identity(fd) for fd in fds]
        self._recalled = False
        if self.init.send_now_with(messages.KeepEnds(), fds):
            for fd in fds:
                os.close(fd)
        else:
            self._restore_ends(fds)

    @property
    def lent(self) -> bool:
        """Whether init keeps the descriptors."""
        return bool(self._lent)

    def _recall_ends(self) -> None:
        """Ask init for the descriptors, if it keeps them."""
        if self._lent and not self._recalled:
            self._recalled = True
            self.init.send(messages.ReturnEnds())

    def _on_ends_returned(self) -> None:
        fds = self.init.take_descriptors(len(self._lent))
        # Code below init may have its rights, and send anything in its name.
        if self._lent and [identity(fd) for fd in fds] == self._lent:
            self._restore_ends(fds)
            return
        for fd in fds:
            os.close(fd)
        raise WireError("it returned other descriptors than it was given")

    def _restore_ends(self, fds: list[int]) -> None:
        self._lent = []
        self._restored_at = self._loop.time()
        self.wire.restore(fds[0])
        self.stdin.restore(fds[1:3])
        self.output.restore(fds[3:])

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            self.wire.stop()
            # Most often the process has just exited, and init is about to report how.
            self._breaking = self._loop.call_later(BREAK_PATIENCE_SECONDS, self._end_broken, why)

    def _end_broken(self, why: str) -> None:
        # On a busy machine init may be late with its report of an exit, which is then the reason.
        died = self.pid is not None and processes.is_exiting(self.pid)
        self.kill(None if died else why)

    def _finish(self) -> None:
        """Report the end. No process is left, so the pipes hold the last bytes there are."""
        self._handle_all(self.output.drain())
        if self._breaking is not None:
            self._breaking.cancel()
        if self.init.stayed and self._next_orders is not None:
            self.idle_init = self._as_idle(self._next_orders)
            self._next_orders = self.group = None
        for each in (self.output, self.wire, self.stdin, self.init, self.proxy_listener, self._next_orders):
            if each is not None:
                each.close()
        self.proxy_listener = None
        exit = explain(self._exit, self.init.killed_because, self._broken)
        self.gone.set_result(exit)
        self.siblings.leave(self, exited=self._exit is not None)
        self.task_sweeper.report_all(last=True)
        if not self.ready.done():
            self.ready.set_exception(WorkerEnded(exit.message or "it ended"))
            self.ready.exception()  # marks it as retrieved, since not every caller awaits it
        if self.owner is not None:
            self.owner.on_gone(exit)
        if self.group is not None:
            self.group_released = self._loop.run_in_executor(None, LimitApplier.release, self.group)

    def _as_idle(self, orders: socket.socket) -> IdleInit:
        assert self.init_pid is not None
        return IdleInit(
            orders,
            self.init_pid,
            self.birth.user,
            self._tenant,
            self.birth.network,
            self.init.sweeper,
            self.init.swept_pid,
            self.group,
        )
