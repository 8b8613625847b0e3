"""The inits below a zygote, and the end of what a killed one leaves behind."""

import _socket

from ingle_worker.processes import kill_tree
from ingle_worker.wire import messages


class ForkedInits:
    """Registry of the inits that a zygote has forked.

    The orphans of an init that was killed go to the next subreaper above, which is the zygote. It kills them and
    reports that to the host.
    """

    def __init__(self, control: _socket.socket) -> None:
        self._control = control
        self._pids: set[int] = set()

    def add(self, pid: int) -> None:
        self._pids.add(pid)

    def on_exit(self, pid: int, status: int, usage: object) -> None:
        """Handle the exit of a child. Every orphan below the zygote ends if the child was an init that was killed."""
        if pid in self._pids:
            self._pids.discard(pid)
            if status:
                kill_tree.sweep(self.on_exit, spare=tuple(self._pids))
                try:
                    self._control.sendall(messages.encode(messages.Swept(pid)))
                except OSError:
                    pass  # the host is gone, and this process ends next
