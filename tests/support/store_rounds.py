"""Two servers with one object store. The one that has the session is killed, and one of both must have it next.

The killed server is started again at once on its own data folder, so that it races with the other one. Sometimes it is
killed a second time while it claims and restores.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from support.crash_rounds import Rounds, Writer
from support.server import Server
from support.waiting import wait_until

TAKEOVER_SECONDS = 1.0
PATIENCE = 60.0


class StoreRounds(Rounds):
    def __init__(self, folder: Path, url: str, environment: dict[str, str], chance: random.Random) -> None:
        self._folder = folder
        self._flags = ("--store", url, "--store-takeover", str(TAKEOVER_SECONDS), "--isolation", "none")
        self._environment = environment
        self._twice = chance
        self._first = True
        self._standby = self._begin("two")
        super().__init__(self._next, chance)

    def _begin(self, name: str) -> Server:
        return Server(self._folder / name, *self._flags, env=self._environment)

    def _next(self) -> Server:
        """Start the killed server again. Return the server that has the session then."""
        if self._first:
            self._first = False
            return self._begin("one")
        self.server.stop()
        name = self.server.home.name
        if self._twice.random() < 0.5:
            self._begin_and_kill(name)
        both = [self._standby, self._begin(name)]
        assert wait_until(lambda: any(map(has_session, both)), PATIENCE)
        (owner,) = [each for each in both if has_session(each)]
        (self._standby,) = [each for each in both if each is not owner]
        return owner

    def _begin_and_kill(self, name: str) -> None:
        """Start a server, and kill it while it starts, claims or restores."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ingle", "serve", "--port", "0", "--preload", "", "--pool", "1", *self._flags],
            env={**os.environ, "INGLE_HOME": str(self._folder / name), **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._twice.uniform(0.3, 2.0))
        process.kill()
        process.wait()

    def _kill(self, what: str, worker: int, writer: Writer) -> None:
        """Kill after something of this round was told as saved."""
        assert wait_until(lambda: writer.acknowledged >= min(writer.wrote), PATIENCE)
        time.sleep(self._twice.uniform(0.0, 0.25))
        super()._kill(what, worker, writer)

    def run(self, what: str = "server") -> None:
        super().run(what)
        # The numbers of lost cells are given again.
        last = self.server.client.get("/v1/sessions/main").json()["execution_count"]
        self.values = {cell: value for cell, value in self.values.items() if cell <= last}
        assert not has_session(self._standby)

    def close(self) -> None:
        self.server.client.delete("/v1/sessions/main")
        for each in (self.server, self._standby):
            each.stop()


def has_session(server: Server) -> bool:
    return server.client.get("/v1/sessions/main").status_code == 200


def run_rounds(count: int, folder: Path, url: str, environment: dict[str, str]) -> list[str]:
    """Run rounds, and return what was told in each."""
    rounds = StoreRounds(folder, url, environment, random.Random(time.time_ns()))
    try:
        for _ in range(count):
            rounds.run()
    finally:
        rounds.close()
    return rounds.told
