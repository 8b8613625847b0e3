"""Messages that no guest means: any that the host reads, made up from their definitions, out of turn and cut anywhere.

They come over the wire of a session that is really there, into the host as it reads always. Whatever they say, nothing
goes wrong in the host: that worker is ended and replaced at most, and a neighbour never notices.
"""

import asyncio
import ctypes
import json
import os
import platform
import random
import socket
import stat
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from ingle.service import Service
from ingle.settings import Settings
from ingle.workers import init_link
from ingle.workers.exit_status import exit_of
from ingle.workers.io import decode
from ingle.workers.io.descriptors import as_socket, unread
from ingle.workers.worker import Worker
from ingle_worker.wire import BadMessage, FrameReader, WireError, encode_frame
from ingle_worker.wire import messages as wire
from support.internals import session_of, worker_of
from support.service import make_settings
from support.waiting import until

pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="descriptors of others are Linux's to give"),
]

ROUNDS, BATCH = 40, 12
NUMBERS = (0, 1, 2, -1, 2**31, 2**63 - 1, 2**63, 2**64, 2**80, -(2**63) - 1)
FRACTIONS = (0, 0.5, -1.0, 1e308, -1e308, 5e-324, 2**60)
TEXTS = (
    *("", "x", "\0", "\u2028", "é" * 3, "x" * 3000, "\x1b[31m", "../../x", "/etc", "1e999"),
    *("stdout", "stderr", "ok", "error", "exit", "interrupted", "running", "waiting_for_input"),
    *("text/plain", "text/html", "image/png", "application/json"),
)
ANYTHING = (None, 1, [], {}, "x", [[[]]], 2**70, 1e300, True)
ODD = (b"", b"{", b"[]", b"null", b'{"cell":NaN}', b'{"cell":1e999}', b'"\\ud800"', b"\xff" * 9, b"[" * 5000)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=2, isolation="none", exit_grace=0.3)


class MadeUp:
    """Values of any type, from a seed; numbers of cells and tickets are often the right ones."""

    def __init__(self, seed: int, wrong: float) -> None:
        """`wrong`: how many of its values are of no type that they should be."""
        self._random = random.Random(seed)
        self._wrong = wrong

    def pick(self, some: typing.Sequence[Any]) -> Any:
        return self._random.choice(some)

    def value(self, kind: Any, now: int) -> Any:
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if self._random.random() < self._wrong:
            return self.pick(ANYTHING)
        if origin is list:
            return [self.value(args[0], now) for _ in range(self.pick((0, 1, 1, 3)))]
        if origin is dict:
            return {self.pick(TEXTS): self.value(args[1], now) for _ in range(self.pick((0, 1, 2)))}
        if origin is types.UnionType:
            return self.value(self.pick(args), now)
        if is_dataclass(kind):
            return self.whole(kind, now)
        if kind is int:
            return self.pick((now, now, now, *NUMBERS))
        some = {bool: (True, False), float: FRACTIONS, str: TEXTS, type(None): (None,)}.get(kind, ANYTHING)
        return self.pick(some)

    def whole(self, cls: Any, now: int) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        raw = wire.PAYLOADS.get(cls)
        return {each.name: self.value(hints[each.name], now) for each in fields(cls) if each.name != raw}

    def frame(self, now: int) -> bytes:
        if self._random.random() < self._wrong:
            return encode_frame(self._random.randrange(256), self.pick(ODD), b"payload")
        cls = self.pick(decode.FROM_GUEST)
        text = json.dumps(self.whole(cls, now))
        if self._random.random() < 0.05:
            # The same key twice, and one that nobody knows.
            text = text[:-1] + "," + text[1:-1] + ',"more":1}' if len(text) > 2 else text
        return encode_frame(wire.NUMBERS[cls], text.encode(), self.pick((b"", b"payload")))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data:
            size = self.pick((1, 2, 5, 8, 9, 10, 100, 1000, 100_000))
            yield data[:size]
            data = data[size:]


def socket_of(pid: int | None) -> socket.socket:
    """Take a copy of the one socket that a process has to the host. Raise ProcessLookupError when it has just ended."""
    assert pid is not None
    pidfd_getfd = 438
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if stat.S_ISSOCK(os.stat(f"/proc/{pid}/fd/{name}").st_mode):
                fd = libc.syscall(pidfd_getfd, pidfd, int(name), 0)
                if fd < 0:
                    pytest.skip("this system does not let a process have descriptors of its children's")
                return socket.socket(fileno=fd)
    finally:
        os.close(pidfd)
    raise ProcessLookupError("it has closed its files, so it ends")


@contextmanager
def nothing_goes_wrong() -> Iterator[None]:
    """In any callback of the loop."""
    loop = asyncio.get_running_loop()
    wrong: list[Any] = []
    loop.set_exception_handler(lambda loop, context: wrong.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert not wrong


async def say(worker: Worker, pieces: Iterator[bytes], *, as_init: bool = False) -> None:
    """Speak for this worker, until the host has read it all or has broken off with the worker."""
    try:
        way = socket_of(worker.init_pid if as_init else worker.pid)
    except (ProcessLookupError, FileNotFoundError):
        # What it said before has ended it, and the host is about to learn of that.
        assert await until(lambda: not worker.alive, 20)
        return
    with way:
        way.setblocking(False)
        for piece in pieces:
            while piece and worker.alive:
                try:
                    piece = piece[way.send(piece) :]
                except BlockingIOError:
                    pass
                await asyncio.sleep(0)
    ours = worker.init if as_init else worker.wire
    assert await until(lambda: not worker.alive or unread(ours.fileno) == 0, 20)


async def test_whatever_a_message_holds_it_is_read_or_refused() -> None:
    made_up = MadeUp(0, 0.1)
    read = 0
    for _ in range(5000):
        (frame,) = FrameReader().feed(made_up.frame(1))
        try:
            assert type(decode.decode(frame)).__name__ == wire.KINDS[frame.kind].__name__
            read += 1
        except WireError:
            continue
    assert 1000 < read < 4000


@pytest.mark.req("safe.input")
@pytest.mark.parametrize(("seed", "as_init"), [(0, False), (1, False), (2, False), (3, False), (4, True), (5, True)])
async def test_messages_that_no_guest_means_cost_that_worker_at_most(
    service: Service, monkeypatch: pytest.MonkeyPatch, seed: int, as_init: bool
) -> None:
    monkeypatch.setattr(init_link, "LEAVE_PATIENCE_SECONDS", 0.05)
    made_up = MadeUp(seed, 0.002)
    name, neighbour = f"hostile-{seed}", f"neighbour-{seed}"
    for each in (name, neighbour):
        await service.create_session(each)
    session = session_of(service, name)
    with nothing_goes_wrong():
        for _ in range(ROUNDS):
            # A worker that was broken off with is replaced: none stays behind, neither alive nor gone.
            assert await until(
                lambda: session.worker is not None and session.worker.alive and session.state != "starting", 20
            )
            if session.running is None and made_up.pick((True, True, False)):
                await service.execute(name, "import time; time.sleep(1000)", wait=0)
            worker = session.worker
            if worker is None or not worker.alive:
                continue
            now = session.running.number if session.running is not None else session.last_cell
            data = b"".join(made_up.frame(now) for _ in range(BATCH))
            await say(worker, made_up.pieces(data), as_init=as_init)
        result = await service.execute(neighbour, "6 * 7")
        assert result.result == {"text/plain": "42"}
        for each in (name, neighbour):
            await service.end_session(each)


async def test_a_worker_that_says_it_could_not_be_made_is_ended(service: Service) -> None:
    """It was not read from any more, and not ended: the host woke up for its wire all the time, and the cell ran on."""
    await service.create_session("unmade")
    await service.execute("unmade", "import time; time.sleep(1000)", wait=0)
    worker = worker_of(service, "unmade")
    await say(worker, iter([wire.encode(wire.NotCopied("no process could be forked"))]))
    result = await service.wait("unmade", 1, wait=30)
    assert result.status == "exit"
    assert result.exit is not None
    assert result.exit.message == "the session's process broke the protocol (it says that it could not be made)"
    await service.end_session("unmade")


async def test_a_worker_whose_init_says_that_it_has_ended_is_ended(service: Service) -> None:
    """And replaced: it was neither alive nor gone, and nobody waited for anything."""
    await service.create_session("ended")
    await service.execute("ended", "import time; time.sleep(1000)", wait=0)
    worker = worker_of(service, "ended")
    await say(worker, iter([wire.encode(wire.Exited(0, 0.1, 5))]), as_init=True)
    assert (await service.wait("ended", 1, wait=30)).status == "exit"
    assert (await service.execute("ended", "6 * 7", wait=30)).result == {"text/plain": "42"}
    await service.end_session("ended")


@pytest.mark.parametrize("status", [-1, 0x7F, 0x137F, 0xFFFF, 0x10000, 2**31, 2**80])
async def test_an_end_that_no_process_has_is_a_bad_message(status: int) -> None:
    with pytest.raises(BadMessage, match=rf"^no process ends with the status {status}$"):
        exit_of(status)


async def test_a_door_that_is_no_socket_is_a_bad_message() -> None:
    reading, writing = os.pipe()
    with pytest.raises(BadMessage, match=r"^a proxy listener that is no socket: "):
        as_socket(reading)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")  # it was closed
    os.close(writing)
