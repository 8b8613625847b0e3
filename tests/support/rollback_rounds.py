"""A client that rolls a durable session back, or commits trials in it, while parts of the service are killed.

Each cell writes one number into a variable and many files. After each kill all of them must be of one moment: the
rollback, the commit or the cell is wholly done or not done at all.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import httpx

from support.crash_rounds import children, parent
from support.server import Server
from support.waiting import wait_until

FILES = 40
PATIENCE = 30.0
SETUP = f"""
import os
def write(number):
    global value
    value = number
    for each in range({FILES}):
        with open(f'file{{each}}', 'w') as file:
            file.write(str(number))
    for name in os.listdir():
        if name.startswith('extra'):
            os.remove(name)
    if number % 2:
        open(f'extra{{number}}', 'w').close()
write(0)
"""
READ = f"""
([open(f'file{{each}}').read() for each in range({FILES})] == [str(value)] * {FILES},
 sorted(name for name in os.listdir('.') if name.startswith('extra')) == ([f'extra{{value}}'] if value % 2 else []),
 value)
"""


class Changing:
    """Changes the session again and again: writes a number and rolls back to the first one, or commits a trial."""

    def __init__(self, server: Server, number: int, change: Callable[["Changing", httpx.Client], bool]) -> None:
        self._server = server
        self.number = number
        self._change = change
        self.done = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._server.make_client() as http:
                while not self._stop.is_set():
                    self.number += 1
                    self.done += self._change(self, http)
        except httpx.HTTPError:
            return  # the server is gone
        except BaseException as error:
            self._failure = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def rollback(self, http: httpx.Client) -> bool:
        http.post("/v1/sessions/main/execute", json={"code": f"write({self.number})", "wait": PATIENCE})
        # Without a checkpoint, since its process was killed, the session goes on from the last save.
        if http.post("/v1/sessions/main/rollback", json={"name": "base"}).status_code == 200:
            return True
        http.post("/v1/sessions/main/execute", json={"code": "write(0)", "wait": PATIENCE})
        http.post("/v1/sessions/main/checkpoints", json={"name": "base"})
        return False

    def commit(self, http: httpx.Client) -> bool:
        asked = {"code": f"write({self.number})", "wait": PATIENCE, "trial": True, "network": "allowed"}
        result = http.post("/v1/sessions/main/execute", json=asked).json()
        if "trial" not in result:
            return False  # a process was killed
        name = result["trial"]["name"]
        if http.post(f"/v1/sessions/main/trials/{name}/commit", json={}).status_code == 200:
            return True
        http.post(f"/v1/sessions/main/trials/{name}/discard", json={})
        return False


class ChangeRounds:
    """One server after the other, and a kill in each round. `change`: what goes on meanwhile."""

    def __init__(
        self,
        start: Callable[..., Server],
        chance: random.Random,
        change: Callable[[Changing, httpx.Client], bool] = Changing.rollback,
    ) -> None:
        self._change = change
        self._start = start
        self._chance = chance
        self.server = start()
        self.server.make_session(durable=True)
        self.server.execute(SETUP)
        self._number = 0
        self.told: list[str] = []

    def run(self, what: str) -> None:
        self.server.execute("write(0)")
        assert self.server.client.post("/v1/sessions/main/checkpoints", json={"name": "base"}).status_code == 201
        init = parent(int(self.server.execute("__import__('os').getpid()")["result"]["text/plain"]))
        client = Changing(self.server, self._number, self._change)
        try:
            assert wait_until(lambda: client.done >= 1, PATIENCE)
            time.sleep(self._chance.uniform(0.0, 0.2))
            if what == "log":
                # The files are being changed at this moment.
                assert wait_until(lambda: any((self.server.home / "undo").glob("*[!t]")), PATIENCE)
            if what in ("server", "log"):
                self.server.process.kill()
            else:
                self._kill(what, init)
        finally:
            client.stop()
        self._number = client.number
        if what in ("server", "log"):
            self.server.process.wait()
            self.server = self._start()
        result = self.server.execute(READ)
        if result["status"] == "exit":
            result = self.server.execute(READ)  # the end of the killed processes came while it ran
        assert result["status"] == "ok", result
        files, extra, value = eval(result["result"]["text/plain"])
        assert (files, extra) == (True, True), (what, value, result)
        self.told.append(f"{what}: wholly of {value}, after {client.done} changes")

    def _kill(self, what: str, init: int) -> None:
        """Kill one process of the session (a worker, a checkpoint, a file agent), or the init above all of them."""
        targets = [init] if what == "init" else children(init)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(targets), signal.SIGKILL)
