"""The tiny init of a session: parent of the worker, adopter of all its strays, outside of the cell's process group.

It promises that the worker's exit status reaches the host, that SIGINT goes to the whole foreground group, and
that nothing below it outlives the worker or the host: when the status socket closes, all is killed.
It runs no code of a user's, and touches as little memory as it can.
"""

import _signal  # type: ignore[import-not-found]
import os
import select
from typing import Any

from ingle_worker import kernel, reaper
from ingle_worker.interrupts import NUDGE, NUDGE_AFTER, NUDGES, OWED, RUNNING
from ingle_worker.wire import FrameReader, encode_frame, messages

INIT_UP = messages.NUMBERS[messages.InitUp]


def _notice(number: int, frame: object) -> None:
    """The wake-up descriptor says it all."""


class Init:
    """Made in the zygote, so that its making is shared; alive from `run` on."""

    def __init__(self) -> None:
        self._fd = -1
        self._worker = 0
        self._page = memoryview(b"")
        self._signalled = 0
        self._nudges = 0
        self._reader = FrameReader()
        self._worker_gone = False
        self._wake_read = self._wake_write = -1

    def run(self, status_fd: int, worker: int, page: memoryview) -> None:
        """Until the worker or the host is gone; then all below is gone too."""
        self._fd, self._worker, self._page = status_fd, worker, page
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, _notice)
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
            _signal.signal(number, _signal.SIG_IGN)
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        # Written by hand: to build and encode a message would touch, and so copy, fifty pages of every init.
        os.write(self._fd, encode_frame(INIT_UP, b'{"pid":%d,"worker":%d}' % (os.getpid(), self._worker)))
        if os.waitid(os.P_PID, self._worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # It was gone before its signal could be noticed.
            reaper.reap(self._on_exit)
        while not self._worker_gone:
            ready = poller.poll(NUDGE_AFTER if self._nudges else None)
            if not ready:
                self._nudge()
            for fd, _ in ready:
                if fd == self._fd:
                    if not self._obey():
                        self._worker_gone = True
                else:
                    os.read(self._wake_read, 4096)
                    reaper.reap(self._on_exit)
        reaper.sweep(self._on_exit)

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        if pid == self._worker:
            self._worker_gone = True
            self._send(messages.Exited(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))

    def _send(self, message: object) -> None:
        try:
            os.write(self._fd, messages.encode(message))
        except OSError:
            self._worker_gone = True

    def _obey(self) -> bool:
        """Carry out what the host asks. False when everything shall end."""
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        if not data:
            return False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Interrupt):
                self._interrupt(message)
            elif isinstance(message, messages.Kill):
                return False
        return True

    def _interrupt(self, message: messages.Interrupt) -> None:
        if self._page[RUNNING] != message.cell:
            # Not begun yet, or over by now: the host knows which, and asks again where it is the former.
            self._send(messages.Signalled(message.order, True))
            return
        if not message.again or self._signalled != message.cell:
            ignored, stopped = kernel.sigint_state(self._worker)
            self._page[OWED] = message.cell if ignored else 0
            if ignored:
                # Before SIGINT ends what the worker waits for, and the cell with it.
                reaper.kill_quietly(self._worker, NUDGE)
            try:
                os.killpg(self._worker, _signal.SIGINT)
                if stopped:
                    os.killpg(self._worker, _signal.SIGCONT)
            except (ProcessLookupError, PermissionError):
                pass
            self._signalled = message.cell
            self._nudges = NUDGES
        owed = self._page[OWED] == message.cell
        if owed:
            reaper.kill_quietly(self._worker, NUDGE)
        self._send(messages.Signalled(message.order, owed))

    def _nudge(self) -> None:
        if self._page[RUNNING] != self._signalled:
            self._nudges = 0
            return
        self._nudges -= 1
        reaper.kill_quietly(self._worker, NUDGE)
