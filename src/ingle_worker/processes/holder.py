"""The holder: the outermost process of a zygote, a subreaper with nothing imported.

When the zygote dies, what it has forked lives on below the holder, whose only work is to reap it and to end
everything when the host's end of its socket closes.
"""

import os
import select
import signal

from ingle_worker.processes import kill_tree, linux
from ingle_worker.wire import messages

INIT_NAME = "ingle-init"


def fork_below(life: int, control: int, name: bytes) -> None:
    """Fork a zygote, which is to be called this. It alone returns: the process that forks is its holder from now on."""
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
    """Reaps what the zygote leaves behind; kills everything when the host is gone; goes when nothing is left."""

    def __init__(self, life: int, zygote: int) -> None:
        self._life = life
        self._zygote = zygote
        self._sessions: set[int] | None = None
        self.code = 0
        """The zygote's exit code, or 128 and the signal's number, for whoever started us both."""

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
                    if not os.read(self._life, 1):
                        kill_tree.sweep(self._on_exit)
                        return
                else:
                    os.read(wake_read, 4096)

    def _on_exit(self, pid: int, status: int, usage: object) -> None:
        if pid == self._zygote:
            self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            # Not every child: one of these inits may have been killed before we came to look, and have left us strays.
            self._sessions = {pid for pid in linux.children(os.getpid()) if linux.name_of(pid) == INIT_NAME}
            kill_tree.sweep(self._on_exit, spare=tuple(self._sessions))
            # Among them may have been those of an init that was killed, of which the zygote could not tell any more.
            self._tell(0)
        elif self._sessions is not None and pid in self._sessions:
            self._sessions.discard(pid)
            # The init of a session ended: if it was killed, its strays are ours now, and end here.
            kill_tree.sweep(self._on_exit, spare=tuple(self._sessions))
            if status:
                self._tell(pid)

    def _tell(self, init: int) -> None:
        """That nothing is left of this one; 0 for all that had gone before."""
        try:
            os.write(self._life, messages.encode(messages.Swept(init)))
        except OSError:
            pass  # the host is gone, which ends us next
