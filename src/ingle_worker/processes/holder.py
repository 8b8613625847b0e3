"""The holder: the outermost process of a zygote, a subreaper that imports almost nothing.

When the zygote dies, its children become children of the holder. The holder reaps them, and kills everything when the
host closes its end of the socket.
"""

import os
import select
import signal

from ingle_worker.processes import kill_tree, linux
from ingle_worker.wire import messages

INIT_NAME = "ingle-init"


def fork_below(life: int, control: int, name: bytes) -> None:
    """Fork a zygote with this process name. Only the zygote returns; the calling process becomes its holder."""
    linux.become_subreaper()
    zygote = os.fork()
    if zygote:
        os.close(control)
        linux.set_name(b"ingle-holder")
        holder = Holder(life, zygote)
        holder.run()
        os._exit(holder.code)
    os.close(life)
    linux.set_name(name)


class Holder:
    """Subreaper above a zygote. It exits when no child is left, and kills all children when the host is gone."""

    def __init__(self, life: int, zygote: int) -> None:
        self._life = life
        self._zygote = zygote
        self._sessions: set[int] | None = None
        self.code = 0
        """The zygote's exit code, or 128 plus the signal number."""

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        poller = select.poll()
        poller.register(self._life, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            if not kill_tree.reap(self._on_exit):
                return
            for fd, _ in poller.poll():
                if fd == self._life:
                    if self._host_is_gone():
                        kill_tree.sweep(self._on_exit)
                        return
                else:
                    os.read(wake_read, 4096)

    def _host_is_gone(self) -> bool:
        try:
            return not os.read(self._life, 1)
        except ConnectionResetError:
            return True  # the host closed its end before it read the last report

    def _on_exit(self, pid: int, status: int, usage: object) -> None:
        if pid == self._zygote:
            self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            # Not every child: an init that was killed earlier may have left orphans.
            self._sessions = {pid for pid in linux.children(os.getpid()) if linux.name_of(pid) == INIT_NAME}
            kill_tree.sweep(self._on_exit, spare=tuple(self._sessions))
            # Some may have belonged to a killed init that the zygote could no longer report.
            self._report_swept(0)
        elif self._sessions is not None and pid in self._sessions:
            self._sessions.discard(pid)
            # A session's init ended: if it was killed, its orphans are our children now.
            kill_tree.sweep(self._on_exit, spare=tuple(self._sessions))
            if status:
                self._report_swept(pid)

    def _report_swept(self, init: int) -> None:
        """Report that nothing is left of this init. 0 stands for all inits that ended before."""
        try:
            os.write(self._life, messages.encode(messages.Swept(init)))
        except OSError:
            pass  # the host is gone, and the next read ends this process
