"""Shell commands from a program: the verbs of docs/shell.md, name for name.

A call never owns a task: whoever stops waiting leaves it running. A command that was sent is never sent again as
another one, since each has a key of its own, by which the server knows it.
"""

import secrets
from typing import Any

from msgspec import Struct

from ingle.client.address import deadline_after, task_path, time_left
from ingle.client.aio.connection import AsyncConnection
from ingle.client.decode import read
from ingle.events import Task, TaskOutput
from ingle.requests import Limits

TURN = 25.0
"""How long one request waits for a task; the client asks as often as it takes. Proxies cut what is silent longer."""


class TaskList(Struct):
    tasks: list[Task]


class AsyncShell:
    """What a client can do with shell commands."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def shell(
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
        """Run a command until its shell has ended; its output, exit code and what it has left running.

        `timeout` bounds the command. `wait` bounds this call only: past it the status is `running`, the command goes
        on, and `shell_status` waits on. `stdin` is its whole input; with `interactive` or `pty` (a terminal of this
        `size`, rows and columns) the input stays open for `shell_input`. With `session_id` it runs in the folder and
        sandbox of that session, with `shell_session` in the persistent shell of that name.
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
        body["wait"] = turn = _turn(deadline)
        # The same key at every attempt: whatever got lost, the answer or the request, it is started once.
        said = await self._connection.request(
            "POST",
            "/v1/shell",
            body=body,
            headers={"Idempotency-Key": secrets.token_hex(16)},
            wait=turn,
            repeatable=True,
        )
        task = read(said, Task)
        while _runs(task) and task.exit_code is None and task.signal is None and _turn(deadline) > 0:
            task = await self._status(task.task_id, _turn(deadline), {})
        return task

    async def shell_status(
        self, task_id: str, *, wait: float | None = 0.0, from_line: int = 0, from_event: int = 0
    ) -> Task:
        """A task as it is; with `wait`, when all of it is over or after so many seconds, None for as long as it takes.

        With `from_event` or `from_line` (`next_event` and `next_line` of an earlier answer) only the text since then.
        """
        deadline = deadline_after(wait)
        query: dict[str, str | int | float] = {"from_line": from_line, "from": from_event}
        task = await self._status(task_id, _turn(deadline), query)
        while _runs(task) and _turn(deadline) > 0:
            task = await self._status(task_id, _turn(deadline), query)
        return task

    async def shell_cancel(self, task_id: str) -> Task:
        """End a task and all it started: SIGTERM, after a grace SIGKILL; the task when it is over."""
        return await self._order(task_id, "cancel", {"wait": TURN})

    async def shell_interrupt(self, task_id: str, *, wait: float = 5.0) -> Task:
        """SIGINT, as Ctrl-C does; the task when it has ended, or after `wait`."""
        return await self._order(task_id, "interrupt", {"wait": min(wait, TURN)})

    async def shell_pause(self, task_id: str) -> Task:
        """Stop a task for a while."""
        return await self._order(task_id, "pause", None)

    async def shell_resume(self, task_id: str) -> Task:
        """Have a paused task go on."""
        return await self._order(task_id, "resume", {"wait": 0.0})

    async def shell_input(self, task_id: str, text: str = "", *, eof: bool = False) -> Task:
        """Send text to a task's input as it is, a line with its newline; `eof` ends the input."""
        return await self._order(task_id, "input", {"text": text, "eof": eof})

    async def shell_tasks(self) -> list[Task]:
        """The tasks that run or are still kept, without their text."""
        return read(await self._connection.request("GET", "/v1/shell", repeatable=True), TaskList).tasks

    async def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        """Lines of a task's output, however long it is; `grep` is a pattern, `next_line` tells where to go on."""
        query: dict[str, str | int | float] = {"stream": stream, "from_line": from_line, "lines": lines}
        if grep is not None:
            query["grep"] = grep
        path = task_path(task_id) + "/output"
        return read(await self._connection.request("GET", path, query=query, repeatable=True), TaskOutput)

    async def _status(self, task_id: str, turn: float, query: dict[str, str | int | float]) -> Task:
        said = await self._connection.request(
            "GET", task_path(task_id), query={**query, "wait": turn}, wait=turn, repeatable=True
        )
        return read(said, Task)

    async def _order(self, task_id: str, order: str, body: dict[str, Any] | None) -> Task:
        wait = TURN if body and body.get("wait") else 0.0
        return read(await self._connection.request("POST", f"{task_path(task_id)}/{order}", body=body, wait=wait), Task)


def _runs(task: Task) -> bool:
    return task.status in ("running", "paused")


def _turn(deadline: float | None) -> float:
    left = time_left(deadline)
    return TURN if left is None else min(TURN, left)
