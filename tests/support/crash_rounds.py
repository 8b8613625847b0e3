"""A client that keeps writing numbered values into a durable session while parts of the service are killed.

After each kill the state must be that after some completed cell: whole, not older than the last save that was told, and
of the cell that the notice names.
"""

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from support.server import Server
from support.waiting import wait_until

NAMED = re.compile(r"this session is as it was after cell (\d+), saved")
WRITE = "value = {n}; pair = [{n}, {{'again': {n}}}]; log.append({n}); data = bytes([{n} % 256]) * {size}"
READ = "(value, pair, log[-1], len(log) == len(set(log)), set(data) == {value % 256})"
PATIENCE = 30.0


def is_saved(server: Server, name: str = "main") -> bool:
    """Whether the last cell of a durable session is in its save."""
    info = server.client.get(f"/v1/sessions/{name}").raise_for_status().json()
    return bool(info["saved_at"]) and info["saved_cell"] == info["execution_count"]


class Writer:
    """Writes numbers, one cell each, and remembers which cell wrote which and what was told as saved."""

    def __init__(self, server: Server, number: int, size: int) -> None:
        self._server = server
        self._size = size
        self.number = number
        self.wrote: dict[int, int] = {}
        """By cell: the value it wrote, for cells that were answered or are under way."""
        self.acknowledged = 0
        self.crashes: list[str] = []
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._server.make_client() as http:
                while not self._stop.is_set():
                    self._write(http)
        except httpx.HTTPError:
            return  # the server is gone
        except BaseException as error:
            self._failure = error

    def _write(self, http: httpx.Client) -> None:
        n = self.number + 1
        count = http.get("/v1/sessions/main").json()["execution_count"]
        self.number = n
        self.wrote[count + 1] = n
        code = WRITE.format(n=n, size=self._size)
        result = http.post("/v1/sessions/main/execute", json={"code": code, "wait": PATIENCE}).json()
        assert result["cell"] == count + 1, result
        if result["status"] == "exit":
            self.crashes.append(str(result["notices"]))
        else:
            assert result["status"] == "ok", result
        for notice in result["notices"]:
            if found := NAMED.search(notice):
                self._check_after(http, int(found[1]), result["cell"])
        self.acknowledged = max(self.acknowledged, http.get("/v1/sessions/main").json()["saved_cell"] or 0)

    def _check_after(self, http: httpx.Client, cell: int, now: int) -> None:
        """It came back within this server: from no older than what was told."""
        assert cell >= self.acknowledged, (cell, self.acknowledged)
        self.crashes.append(f"came back as after cell {cell}, at cell {now}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure


def children(pid: int) -> list[int]:
    """Whichever of its threads has started them."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(each) for each in file.read_text().split()]
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Rounds:
    """One server after the other, and a kill in each round."""

    def __init__(self, start: Callable[..., Server], chance: random.Random, size: int = 20_000) -> None:
        self._start = start
        self._chance = chance
        self._size = size
        self.server = start()
        self.server.make_session(durable=True)
        # As after a cell that wrote 0: a server that is killed before it saved a later one comes back with this.
        first = self.server.execute("value = 0; pair = [0, {'again': 0}]; log = [0]; data = bytes(1)")
        assert wait_until(lambda: is_saved(self.server), PATIENCE)
        self.number = 0
        self.values: dict[int, int] = {first["cell"]: 0}
        self.told: list[str] = []

    def worker(self) -> int:
        result = self.server.execute("__import__('os').getpid()")
        return int(result["result"]["text/plain"])

    def run(self, what: str) -> None:
        worker = self.worker()
        writer = Writer(self.server, self.number, self._size)
        try:
            assert wait_until(lambda: len(writer.wrote) >= 2, PATIENCE)
            time.sleep(self._chance.uniform(0.0, 0.25))
            self._kill(what, worker, writer)
        finally:
            writer.stop()
        self.number = writer.number
        self.values.update(writer.wrote)
        if what == "server":
            self.server.process.wait()
            self.server = self._start()
        self._check(what, writer)

    def _kill(self, what: str, worker: int, writer: Writer) -> None:
        """kill -9, in the middle of whatever goes on."""
        if what == "server":
            self.server.process.kill()
            return
        target: int | None = worker
        if what == "zygote":
            target = self._zygote()
        elif what == "copy":
            init = parent(worker)
            found: list[int] = []
            # A copy lives for some milliseconds after each cell.
            wait_until(lambda: found or found.extend(set(children(init)) - {worker}), 5)
            target = found[0] if found else None
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        # It goes on after that.
        count = len(writer.wrote)
        assert wait_until(lambda: len(writer.wrote) >= count + 2, PATIENCE)

    def _zygote(self) -> int | None:
        """None after it was killed, as long as nobody needs another."""
        for holder in children(self.server.process.pid):
            for pid in children(holder):
                if name_of(pid) == "ingle-zygote":
                    return pid
        return None

    def _check(self, what: str, writer: Writer) -> None:
        with self.server.make_client() as http:
            before = http.get("/v1/sessions/main").json()
            if what == "server":
                assert before["state"] == "hibernated", before
                assert before["saved_cell"] >= writer.acknowledged, (before, writer.acknowledged)
            result = http.post("/v1/sessions/main/execute", json={"code": READ, "wait": PATIENCE}).json()
        assert result["status"] == "ok", result
        value, pair, last, unique, whole = eval(result["result"]["text/plain"])
        # Never torn: everything is of one cell.
        assert (pair, last, unique, whole) == ([value, {"again": value}], value, True, True), result
        named = [int(found[1]) for notice in result["notices"] if (found := NAMED.search(notice))]
        if what == "server":
            (cell,) = named
            assert cell >= writer.acknowledged, (cell, writer.acknowledged)
            # The cell that is named wrote the value that is there; a cell that only read left it as it was.
            assert max((at, n) for at, n in self.values.items() if at <= cell)[1] == value, (cell, value, self.values)
            self.told.append(f"server: as after cell {cell}, value {value}, acknowledged {writer.acknowledged}")
        else:
            assert value == writer.number or what == "worker", (what, value, writer.number)
            self.told.append(f"{what}: {writer.crashes}")
        # What cells wrote that were lost is not there any more; from here on the numbers begin with what is.
        self.values[result["cell"]] = value
        self.number = max(self.number, value)
