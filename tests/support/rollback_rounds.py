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
from pathlib import Path
from typing import Any

import httpx

from ingle.support.processes import below
from support.crash_rounds import children, is_saved, name_of
from support.server import Server
from support.waiting import wait_until

FILES = 40
PATIENCE = 30.0
SETUP = f"""
import os
folders = ['.']
def write(number):
    global value
    value = number
    for folder in folders:
        for each in range({FILES}):
            with open(f'{{folder}}/file{{each}}', 'w') as file:
                file.write(str(number))
        for name in os.listdir(folder):
            if name.startswith('extra'):
                os.remove(f'{{folder}}/{{name}}')
        if number % 2:
            open(f'{{folder}}/extra{{number}}', 'w').close()
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


def is_changing(server: Server) -> bool:
    """Return whether files are being changed, or that is not saved yet: there is a log to undo it."""
    return any((server.home / "undo").glob("*[!t]"))


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
        self.server = self._begin()
        self.server.make_session(durable=True)
        self.server.execute(f"{SETUP}write(0)")
        assert wait_until(lambda: is_saved(self.server), PATIENCE)
        self._number = 0
        self.told: list[str] = []

    def run(self, what: str) -> None:
        self.server.execute("write(0)")
        assert self.server.client.post("/v1/sessions/main/checkpoints", json={"name": "base"}).status_code == 201
        client = Changing(self.server, self._number, self._change)
        try:
            assert wait_until(lambda: client.done >= 1, PATIENCE)
            time.sleep(self._chance.uniform(0.0, 0.2))
            if what == "log":
                assert wait_until(lambda: is_changing(self.server), PATIENCE)
            if what in ("server", "log"):
                self.server.process.kill()
            else:
                self._kill(what)
        finally:
            client.stop()
        self._number = client.number
        if what in ("server", "log"):
            self.server.process.wait()
            self.server = self._begin()
        result = self.server.execute(READ)
        if result["status"] == "exit":
            result = self.server.execute(READ)  # the end of the killed processes came while it ran
        assert result["status"] == "ok", result
        files, extra, value = eval(result["result"]["text/plain"])
        assert (files, extra) == (True, True), (what, value, result)
        self.told.append(f"{what}: wholly of {value}, after {client.done} changes")

    def _begin(self) -> Server:
        """Start a server without a pool, so that each init is that of a session."""
        return self._start("--pool", "0")

    def _kill(self, what: str) -> None:
        """Kill one process of the session (a worker, a checkpoint, a file agent), or the init above all of them."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(processes_of(self.server, init=what == "init")), signal.SIGKILL)


class GrantRounds:
    """Rounds of one change each, in the own folder and in a granted one, and a kill at a random moment of it.

    A cell writes to a granted folder at once, and no save has the files there. So the kill comes only while a rollback
    or commit is carried out, and the folder must be of one moment then.
    """

    def __init__(self, start: Callable[..., Server], chance: random.Random, project: Path, *flags: str) -> None:
        self._start = start
        self._chance = chance
        self._project = project
        self._flags = flags
        self._number = 0
        self._seconds = 0.2
        """How long a change takes."""
        self.server = start(*flags)
        self.server.make_session(durable=True)
        self._write()
        self.told: list[str] = []

    def _write(self) -> None:
        self._number += 1
        self._execute(f"{SETUP}folders.append({str(self._project)!r})\nwrite({self._number})")
        self._wait_saved()

    def _wait_saved(self) -> None:
        """Wait until a new server would find the session as it is now."""

        def saved() -> bool:
            session = self.server.client.get("/v1/sessions/main").json()
            return bool(session["saved_cell"] == session["execution_count"])

        assert wait_until(saved, PATIENCE)

    def roll_back(self, what: str) -> None:
        """Kill something during a rollback. Session and granted folder are as before it, or both as after it."""
        self._write()
        first = self._number
        assert self.server.client.post("/v1/sessions/main/checkpoints", json={"name": "base"}).status_code == 201
        self._write()
        self._change(what, "/v1/sessions/main/rollback", {"name": "base"})
        value = self._read()
        assert value in (first, self._number), (what, value, first, self._number)
        assert _number_in(self._project) == value, (what, value)
        self._tell(what, "rollback", {"before": self._number, "after": first}, value)

    def commit(self, what: str) -> None:
        """Kill something during a commit. Session and granted folder are as before it, or both as after it."""
        before = self._read()
        self._wait_saved()
        self._number += 1
        asked = {"trial": True, "network": "held", "wait": PATIENCE}
        result = self.server.execute(f"write({self._number})", **asked)
        assert result["error"] is None, result
        assert _number_in(self._project) == before
        name = result["trial"]["name"]
        self._change(what, f"/v1/sessions/main/trials/{name}/commit", {})
        # It stays open if it could not be committed, for example without a file agent.
        self.server.client.post(f"/v1/sessions/main/trials/{name}/discard", json={})
        value = self._read()
        assert value in (before, self._number), (what, value, before, self._number)
        assert _number_in(self._project) == value, (what, value)
        self._tell(what, "commit", {"before": before, "after": self._number}, value)

    def _tell(self, what: str, change: str, sides: dict[str, int], value: int) -> None:
        (side,) = [name for name, number in sides.items() if number == value]
        self.told.append(f"{change}, {what} killed: wholly {side}")

    def _change(self, what: str, path: str, body: dict[str, str]) -> None:
        """Have something changed, and kill a process meanwhile. Return when the session can be used again."""
        began, before = time.monotonic(), self._inodes()
        asked = threading.Thread(target=self._ask, args=(path, body), daemon=True)
        asked.start()
        if what == "middle":
            # Some files have changed at this moment, and others have not.
            while asked.is_alive() and self._inodes() == before:
                pass
        else:
            asked.join(self._chance.uniform(0.0, self._seconds))
        if what in ("server", "middle"):
            self.server.process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(processes_of(self.server, init=what == "init")), signal.SIGKILL)
        asked.join(PATIENCE)
        assert not asked.is_alive()
        if what in ("server", "middle"):
            self.server.process.wait()
            self.server = self._start(*self._flags)
        else:
            # Those that were not killed in time tell how long a change takes.
            self._seconds = 0.9 * self._seconds + 0.1 * min(time.monotonic() - began, 1.0)

    def _inodes(self) -> list[int]:
        files = (self._project / f"file{each}" for each in range(FILES))
        return [file.stat().st_ino for file in files if file.exists()]

    def _ask(self, path: str, body: dict[str, str]) -> None:
        with self.server.make_client() as http, contextlib.suppress(httpx.HTTPError):
            http.post(path, json=body)

    def _read(self) -> int:
        """Return the number that the session and its own files are of."""
        result = self._execute(READ)
        files, extra, value = eval(result["result"]["text/plain"])
        assert (files, extra) == (True, True), (value, result)
        return int(value)

    def _execute(self, code: str) -> dict[str, Any]:
        result = self.server.execute(code)
        if result["status"] == "exit":
            result = self.server.execute(code)  # the end of the killed processes came while it ran
        assert (result["status"], result["error"]) == ("ok", None), result
        return result


def processes_of(server: Server, *, init: bool) -> list[int]:
    """Return the inits, or what runs below them: the worker, copies of it, and file agents."""
    inits = [each for each in below(server.process.pid) if name_of(each) == "ingle-init"]
    return inits if init else [child for each in inits for child in children(each)]


def _number_in(folder: Path) -> int:
    """Return the number that all files of a folder are of."""
    (number,) = {(folder / f"file{each}").read_text() for each in range(FILES)}
    extra = [f"extra{number}"] if int(number) % 2 else []
    names = sorted(each.name for each in folder.iterdir())
    assert names == sorted([*extra, *(f"file{each}" for each in range(FILES))]), (number, names)
    return int(number)
