"""A client that writes and rolls back a durable session while parts of the service are killed.

Each cell writes one number into a variable and many files. After each kill all of them must be of one moment: the
rollback, or the cell, is wholly done or not done at all.
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


class Undoing:
    """Writes a number and rolls back to the first one, again and again."""

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self.number = number
        self.rollbacks = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._server.make_client() as http:
                while not self._stop.is_set():
                    self.number += 1
                    http.post("/v1/sessions/main/execute", json={"code": f"write({self.number})", "wait": PATIENCE})
                    # Without a checkpoint, since its process was killed, the session goes on from the last save.
                    if http.post("/v1/sessions/main/rollback", json={"name": "base"}).status_code == 200:
                        self.rollbacks += 1
                    else:
                        http.post("/v1/sessions/main/execute", json={"code": "write(0)", "wait": PATIENCE})
                        http.post("/v1/sessions/main/checkpoints", json={"name": "base"})
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


class RollbackRounds:
    """One server after the other, and a kill in each round."""

    def __init__(self, start: Callable[..., Server], chance: random.Random) -> None:
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
        client = Undoing(self.server, self._number)
        try:
            assert wait_until(lambda: client.rollbacks >= 1, PATIENCE)
            time.sleep(self._chance.uniform(0.0, 0.2))
            if what == "server":
                self.server.process.kill()
            else:
                self._kill(what, init)
        finally:
            client.stop()
        self._number = client.number
        if what == "server":
            self.server.process.wait()
            self.server = self._start()
        result = self.server.execute(READ)
        assert result["status"] == "ok", result
        files, extra, value = eval(result["result"]["text/plain"])
        assert (files, extra) == (True, True), (what, value, result)
        self.told.append(f"{what}: wholly of {value}, after {client.rollbacks} rollbacks")

    def _kill(self, what: str, init: int) -> None:
        """Kill one process of the session (a worker, a checkpoint, a file agent), or the init above all of them."""
        targets = [init] if what == "init" else children(init)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(targets), signal.SIGKILL)
