# Generated from ../aio/shell.py by tools/unasync.py: edit that file, and run the script.
"""Shell commands from a program, with the names of docs/explanation/shell.md.

A call does not own its task: the task keeps running if the caller stops waiting. A command is never executed twice,
because each has an idempotency key.
"""

import secrets
from typing import Any

from msgspec import Struct

from ingle.client.address import POLL_SECONDS, deadline_after, poll_seconds, task_path
from ingle.client.decode import read
from ingle.client.sync.connection import Connection
from ingle.events import LIVE_STATUSES, Task, TaskOutput
from ingle.requests import Limits


class TaskList(Struct):
    tasks: list[Task]


class Shell:
    """Methods for shell commands."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def shell(
        self,
        command: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        interactive: bool = False,
        pty: bool = False,
        size: tuple[int, int] = (24, 80),
        limits: Limits | None = None,
        shell_session: str | None = None,
    ) -> Task:
        """Run a command until its shell has ended, and return its output, exit code and remaining processes.

        `timeout` limits the command. `wait` limits only this call: after it the status is `running`, the command
        continues, and `shell_status` waits for it. `stdin` is its whole input. With `interactive` or `pty` (a terminal
        of this `size`, rows and columns) the input stays open for `shell_input`. With `session_id` it runs in the
        folder and sandbox of that session, with `shell_session` in the persistent shell of that name.
        """
        given = {
            "timeout": timeout,
            "session_id": session_id,
            "cwd": cwd,
            "env": env,
            "stdin": stdin,
            "limits": limits,
            "shell_session": shell_session,
        }
        body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        body |= {"command": command, "interactive": interactive, "pty": pty, "rows": size[0], "columns": size[1]}
        deadline = deadline_after(wait)
        body["wait"] = turn = poll_seconds(deadline)
        # All attempts have the same key, so the command starts once whether the request or the answer was lost.
        said = self._connection.request(
            "POST",
            "/v1/shell",
            body=body,
            headers={"Idempotency-Key": secrets.token_hex(16)},
            wait=turn,
            repeatable=True,
        )
        task = read(said, Task)
        while _runs(task) and task.exit_code is None and task.signal is None and poll_seconds(deadline) > 0:
            task = self._status(task.task_id, poll_seconds(deadline), {})
        return task

    def shell_status(self, task_id: str, *, wait: float | None = 0.0, from_line: int = 0, from_event: int = 0) -> Task:
        """Return a task; with `wait`, when it has ended or after that many seconds; None waits until its end.

        `from_event` or `from_line` (from an earlier answer's `next_event` or `next_line`) returns only newer text.
        """
        deadline = deadline_after(wait)
        query: dict[str, str | int | float] = {"from_line": from_line, "from": from_event}
        task = self._status(task_id, poll_seconds(deadline), query)
        while _runs(task) and poll_seconds(deadline) > 0:
            task = self._status(task_id, poll_seconds(deadline), query)
        return task

    def shell_cancel(self, task_id: str) -> Task:
        """End a task and all its processes with SIGTERM and, after a grace period, SIGKILL. Return the ended task."""
        return self._order(task_id, "cancel", {"wait": POLL_SECONDS})

    def shell_interrupt(self, task_id: str, *, wait: float = 5.0) -> Task:
        """Send SIGINT, as Ctrl-C does. Return the task when it has ended, or after `wait`."""
        return self._order(task_id, "interrupt", {"wait": min(wait, POLL_SECONDS)})

    def shell_pause(self, task_id: str) -> Task:
        """Suspend a task."""
        return self._order(task_id, "pause", None)

    def shell_resume(self, task_id: str) -> Task:
        """Continue a paused task."""
        return self._order(task_id, "resume", {"wait": 0.0})

    def shell_input(self, task_id: str, text: str = "", *, eof: bool = False) -> Task:
        """Send text to a task's input unchanged, so end lines with a newline; `eof` ends the input."""
        return self._order(task_id, "input", {"text": text, "eof": eof})

    def shell_tasks(self, *, limit: int | None = None, before: str | None = None) -> list[Task]:
        """Return the running and the retained tasks, without their output and with the head of long commands.

        `limit` returns the last ones only, and `before` those that were started before the task with this id.
        """
        given: dict[str, str | int | float | None] = {"limit": limit, "before": before}
        query = {name: value for name, value in given.items() if value is not None}
        return read(self._connection.request("GET", "/v1/shell", query=query, repeatable=True), TaskList).tasks

    def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        """Return lines of a task's output of any length; `grep` is a pattern. Continue at `next_line`."""
        query: dict[str, str | int | float] = {"stream": stream, "from_line": from_line, "lines": lines}
        if grep is not None:
            query["grep"] = grep
        path = task_path(task_id) + "/output"
        return read(self._connection.request("GET", path, query=query, repeatable=True), TaskOutput)

    def _status(self, task_id: str, turn: float, query: dict[str, str | int | float]) -> Task:
        said = self._connection.request(
            "GET", task_path(task_id), query={**query, "wait": turn}, wait=turn, repeatable=True
        )
        return read(said, Task)

    def _order(self, task_id: str, order: str, body: dict[str, Any] | None) -> Task:
        wait = POLL_SECONDS if body and body.get("wait") else 0.0
        return read(self._connection.request("POST", f"{task_path(task_id)}/{order}", body=body, wait=wait), Task)


def _runs(task: Task) -> bool:
    return task.status in LIVE_STATUSES
