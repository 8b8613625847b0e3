"""`ingle sh -s NAME`: a shell task in the folder, environment and sandbox of a live session.

The task ends with the session at the latest. However this command ends, the task is cancelled first.
"""

import asyncio
import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from ingle.cli.foreground import Foreground
from ingle.cli.services import Target
from ingle.cli.shell_task import Job, exit_code, pass_input, remarks
from ingle.cli.terminal import Output
from ingle.client import AsyncClient
from ingle.errors import IngleError
from ingle.events import LIVE_STATUSES, Task

POLL_SECONDS = 0.2
"""Time between two looks at the output. The server answers earlier when the command ends."""


def run_in_session(job: Job, target: Target, session: str) -> int:
    """Run the command to its end, and return the exit code."""

    async def main() -> int:
        async with AsyncClient(str(target.address), target.address.token, start=False) as client:
            return await SessionTask(job, client, session).main()

    with asyncio.Runner() as runner:
        return runner.run(main())


class SessionTask:
    def __init__(self, job: Job, client: AsyncClient, session: str) -> None:
        self._job = job
        self._client = client
        self._session = session
        self._front = Foreground(self._interrupt)
        self._output = Output()
        self._task: Task | None = None

    async def main(self) -> int:
        await self._front.run(self._work)
        if self._front.ended_by is not None and self._task is not None:
            try:
                await self._client.shell_cancel(self._task.task_id)
            except IngleError:
                pass  # it has ended, or its session has
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Task] | None:
        return None if self._task is None else self._client.shell_interrupt(self._task.task_id, wait=0)

    async def _work(self) -> int:
        job = self._job
        passes_input = not os.isatty(0)
        task = self._task = await self._client.shell(
            job.command,
            wait=0,
            timeout=job.timeout,
            session_id=self._session,
            env=job.env,
            interactive=passes_input,
        )
        if passes_input:
            self._front.help(pass_input(partial(self._send_input, task.task_id), errors="replace"))
        left_out = await self._print(task)
        while task.status in LIVE_STATUSES and task.exit_code is None and task.signal is None:
            task = await self._client.shell_status(task.task_id, wait=POLL_SECONDS, from_event=task.next_event)
            left_out += await self._print(task)
        if job.as_json:
            task = await self._client.shell_status(task.task_id)
            await self._output.write(1, msgspec.json.encode(task).decode() + "\n")
        else:
            more = [f"{left_out} characters came too fast and were left out"] if left_out else []
            for line in [*more, *remarks(task)]:
                await self._output.write(2, f"ingle: {line}\n")
        self._task = None
        return exit_code(task)

    async def _print(self, task: Task) -> int:
        """Write the new text of the task. Return the number of characters that the answer lacks."""
        if not self._job.as_json:
            for fd, text in ((1, task.stdout), (2, task.stderr)):
                if text:
                    await self._output.write(fd, text)
        return task.truncated.stdout + task.truncated.stderr

    async def _send_input(self, task_id: str, text: str, eof: bool) -> None:
        await self._client.shell_input(task_id, text, eof=eof)
