"""The zygote of shell tasks, which forks an init for each of them.

    holder ── shells ── init ── program        (one init and one program for each task)

Nothing of a session is loaded here, so a fork is small and quick.
"""

import gc
import os
import select
import signal
import socket
import sys

from ingle_worker.processes import kill_tree, linux
from ingle_worker.processes.forked_inits import ForkedInits
from ingle_worker.processes.holder import fork_below
from ingle_worker.processes.task_init import TaskInit
from ingle_worker.wire import FrameReader, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE

VERSION = ".".join(map(str, sys.version_info[:3]))


def main(args: list[str]) -> None:
    """Run `shells LIFE CONTROL`."""
    life, control = int(args[1]), int(args[2])
    fork_below(life, control, b"ingle-shells")
    TaskZygote(control).run()
    os._exit(0)


class TaskZygote:
    """Process that forks an init for every `Fork`, with the status socket that came along."""

    def __init__(self, control: int) -> None:
        self._control = socket.socket(fileno=control)
        self._reader = FrameReader()
        self._inits = ForkedInits(self._control)

    def run(self) -> None:
        """Serve until the host closes its end."""
        linux.become_subreaper()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        gc.collect()
        gc.freeze()
        self._control.sendall(messages.encode(messages.ZygoteReady(os.getpid(), VERSION, sys.executable, [], [])))
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    kill_tree.reap(self._inits.on_exit)
                elif not self._serve(wake_read, wake_write):
                    return

    def _serve(self, *private: int) -> bool:
        """Handle one message. Return False when the host has closed its end."""
        data, fds, _, _ = socket.recv_fds(self._control, 4096, 1)
        if not data:
            return False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Fork):
                self._fork(message, fds, private)
        return True

    def _fork(self, message: messages.Fork, fds: list[int], private: tuple[int, ...]) -> None:
        try:
            pid = linux.fork_bare()
        except OSError as error:
            pid = -1
            self._control.sendall(messages.encode(messages.ForkFailed(message.ticket, str(error))))
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self._control.close()
                for fd in private:
                    os.close(fd)
                os.set_inheritable(fds[0], False)
                TaskInit(fds[0]).run()
                os._exit(0)
            finally:
                os._exit(FAILED_EXIT_CODE)  # this zygote ends what is below it
        if pid > 0:
            self._inits.add(pid)
        for fd in fds:
            os.close(fd)
