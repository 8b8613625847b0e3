"""One `ingle serve` for all tests of a process that need no flags."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import uuid4

from support.processes import MARK, command_line, is_idle_init, marked_processes
from support.server import Server
from support.service import assert_empty, is_changed
from support.waiting import wait_until


def end_all(server: Server) -> None:
    """End the sessions and commands of the owner."""
    for task in server.client.get("/v1/shell").raise_for_status().json()["tasks"]:
        if task["status"] == "running":
            server.client.post(f"/v1/shell/{task['task_id']}/cancel", json={}).raise_for_status()
    for session in server.client.get("/v1/sessions").raise_for_status().json()["sessions"]:
        server.client.delete(f"/v1/sessions/{session['session_id']}").raise_for_status()


class SharedServer:
    """A server that is started on first use, and anew after a test that left something behind."""

    def __init__(self) -> None:
        self._mark = uuid4().hex
        self._server: Server | None = None
        self._parent: tempfile.TemporaryDirectory[str] | None = None
        self._commands: set[str] = set()
        self._count = 0

    def get(self) -> Server:
        if self._server is None:
            self._parent = tempfile.TemporaryDirectory(prefix="ingle-home-")
            home = Path(self._parent.name) / "home"
            self._server = Server(home, env={**os.environ, MARK: self._mark})
            self._learn(self._server)
        return self._server

    def _learn(self, server: Server) -> None:
        """Remember which processes the server has when it is idle, those for shell commands included."""
        server.make_session("first")
        server.client.post("/v1/shell", json={"command": "true"}).raise_for_status()
        server.execute("1", "first")
        server.client.delete("/v1/sessions/first").raise_for_status()
        processes = marked_processes(self._mark)
        self._commands = {command_line(pid) for pid, state in processes if state != "Z"} - {""}
        # One worker of the pool with its init may be on its way just now.
        self._count = len(processes) + 2

    def clean(self) -> None:
        """End sessions and commands that a test has left, and check that no process and no folder remains."""
        server = self._server
        if server is None:
            return
        try:
            end_all(server)
            assert wait_until(lambda: not self._strays(), 10), f"left behind: {self._strays()}"
        except BaseException:
            self.stop()
            raise
        if is_changed(server.home):
            self.stop()

    def _strays(self) -> list[tuple[int, str]]:
        found = [(pid, command_line(pid)) for pid, _ in marked_processes(self._mark) if not is_idle_init(pid)]
        strays = [each for each in found if each[1] not in self._commands]
        return strays or (found if len(found) > self._count else [])

    def stop(self) -> None:
        if self._server is None or self._parent is None:
            return
        server, parent = self._server, self._parent
        self._server = self._parent = None
        code = server.stop()
        assert wait_until(lambda: not marked_processes(self._mark), 5), f"left behind: {marked_processes(self._mark)}"
        assert_empty(server.home)
        parent.cleanup()
        assert code == 0, "".join(server.said)
