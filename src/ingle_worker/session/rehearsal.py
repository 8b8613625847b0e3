"""Trial runs of a worker, so that the first cell of a session touches, and thereby copies, less memory."""

import _socket
import os
import sys
from typing import TYPE_CHECKING

from ingle_worker.session.link import WireLost
from ingle_worker.wire.messages import Execute, Start, encode

if TYPE_CHECKING:
    from ingle_worker.session.worker import Worker

PACKETS = _socket.SOCK_SEQPACKET if sys.platform == "linux" else _socket.SOCK_STREAM

CELLS = (
    "x = 1",
    "print(x)",
    "1 + 1",
    "1 / 0",
    "def f(: pass",
    "for i in range(2):\n    f'{i}'",
    "class R:\n    def _repr_html_(self): return '<b>'\ndisplay(R(), display_id='r')\nR()",
)
"""Cells that the zygote runs before any fork. All sessions share what they load and specialise."""

POOL_CELLS = CELLS[:3]
"""Cells that a pooled worker runs. It no longer shares the pages they touch, so they are few."""


class Rehearsal:
    """Trial run of a worker. It leaves no trace except in caches."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    def run(self) -> None:
        """Run a whole session in the zygote, from its descriptors to the end of its wire.

        Later lookups on this way find cached results and write nothing, so that sessions share the memory.
        """
        worker = self._worker
        saved = [os.dup(number) for number in range(3)]
        null = os.open(os.devnull, os.O_RDWR)
        host, wire = _socket.socketpair(_socket.AF_UNIX, PACKETS)
        host.send(encode(Start(os.getcwd(), "/", env={})))
        for cell, code in enumerate(CELLS * 2, 1):
            host.send(encode(Execute(cell, code)))
        host.shutdown(_socket.SHUT_WR)
        path, tmp = sys.path.copy(), os.environ.get("TMPDIR")
        worker.attach([*(os.dup(null) for _ in range(3)), wire.detach()], memoryview(bytearray(64)).cast("q"))
        worker.report_ready()
        try:
            worker.serve()
        except WireLost:
            pass
        worker.detach()
        worker.forget(path, tmp)
        for number, fd in enumerate(saved):
            os.dup2(fd, number)
            os.close(fd)
        os.close(null)
        host.close()

    def run_in_pool(self) -> None:
        """Run a few cells without output in a worker that waits for its session."""
        worker = self._worker
        owner = worker.link.mute()
        out = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        path, tmp = sys.path.copy(), os.environ.get("TMPDIR")
        worker.start(Start(os.getcwd(), "/", env={}))
        for cell, code in enumerate(POOL_CELLS):
            worker.execute(Execute(-cell, code))
        worker.forget(path, tmp)
        os.dup2(out, 1)
        os.close(out)
        os.close(null)
        worker.link.unmute(owner)
