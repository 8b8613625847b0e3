"""The floor: two Python processes and a socketpair, the least that any interpreter in its own process can cost."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def echo(code: str) -> Iterator[socket.socket]:
    """A forked process that executes what it is sent and answers one byte."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        space: dict[str, object] = {}
        while data := theirs.recv(65536):
            exec(data, space)
            theirs.sendall(b".")
        os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(pid, 0)


def round_trips(code: str, count: int, pause: float) -> list[float]:
    times = []
    with echo(code) as sock:
        for _ in range(count):
            if pause:
                time.sleep(pause)
            began = time.perf_counter()
            sock.sendall(code.encode())
            sock.recv(1)
            times.append(time.perf_counter() - began)
    return times


def starts(count: int) -> list[float]:
    """Fork to first answer."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        with echo("x = 1") as sock:
            sock.sendall(b"x = 1")
            sock.recv(1)
            times.append(time.perf_counter() - began)
    return times


def pour(size: int, piece: int) -> float:
    """Seconds for one process to write and another to read so many bytes through a pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        data = b"x" * (piece - 1) + b"\n"
        for _ in range(size // piece):
            view = memoryview(data)
            while view:
                view = view[os.write(write, view) :]
        os._exit(0)
    os.close(write)
    began = time.perf_counter()
    while os.read(read, 1 << 20):
        pass
    took = time.perf_counter() - began
    os.close(read)
    os.waitpid(pid, 0)
    return took
