"""Verbs for shell tasks: commands whose answer comes at once when they are quick, and that go on when they are not."""

from collections.abc import AsyncIterator

import msgspec

from ingle.callers import EXECUTE, READ
from ingle.events import AnyEvent, Task, TaskOutput
from ingle.nodes import TaskHandle
from ingle.requests import Limits, NewTask
from ingle.service.validation import check_seconds, check_size, check_task
from ingle.service.verbs import Verbs

MAX_LISTED = 1000
"""Tasks in one list."""


class Shell(Verbs):
    async def shell(
        self,
        command: str,
        *,
        wait: float | None = None,
        timeout: float | None = None,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        interactive: bool = False,
        pty: bool = False,
        size: tuple[int, int] = (24, 80),
        limits: Limits | None = None,
        shell_session: str | None = None,
        request_key: str | None = None,
    ) -> Task:
        """Run a command. Answer when its shell has ended, or after `wait` seconds with the output so far.

        `stdin` is its whole input; with `interactive` or `pty` the input stays open for `shell_input`. With
        `shell_session` it runs in the persistent shell of that name. The same `request_key` never runs it twice.
        """
        rows, columns = size
        new = NewTask(
            command,
            cwd=cwd or "",
            env=env or {},
            timeout=timeout,
            stdin=stdin,
            interactive=interactive,
            pty=pty,
            rows=rows,
            columns=columns,
            limits=limits or Limits(),
            session_id=session_id,
            shell_session=shell_session,
            key=request_key,
        )
        return await self.run_task(new, wait)

    async def run_task(self, new: NewTask, wait: float | None = None) -> Task:
        """Run a command from a request, as `shell` does. The caller's tenant and bounds replace the request's."""
        check_task(new)
        seconds = self._shell_wait(wait)
        self.access.check(EXECUTE)
        self.access.check_accepting()
        if new.session_id is not None:
            self.access.session_key(new.session_id, EXECUTE)
        caller = self.access.caller
        own = msgspec.structs.replace(new, tenant=caller.tenant, bounds=caller.bounds)
        # A repeated request is the same one when its environment has another order, or its terminal another size.
        request = msgspec.structs.replace(own, env=dict(sorted(own.env.items())), rows=0, columns=0)
        task_id = await self.access.once(new.key, request, lambda: self.access.start_task(own))
        return await self.access.task(task_id).wait(seconds)

    async def shell_status(
        self, task_id: str, *, wait: float | None = None, from_line: int = 0, from_event: int = 0
    ) -> Task:
        """Return the task once its shell has ended, or after `wait` seconds. If it had ended, wait for all of the task.

        With `from_line` or `from_event`, the answer holds only the text from there on. Reading changes nothing.
        """
        seconds = self._shell_wait(wait)
        return await self.access.task(task_id).wait(seconds, from_event=from_event, from_line=from_line)

    async def shell_cancel(self, task_id: str, *, wait: float | None = None) -> Task:
        """End all of a task: SIGTERM, a grace period, SIGKILL. A task that is over is answered as it is."""
        task = self.access.task(task_id, EXECUTE)
        await task.cancel()
        return await self._wait_for_end(task, wait)

    async def shell_interrupt(self, task_id: str, *, wait: float | None = None) -> Task:
        """Send SIGINT, as Ctrl-C does. A persistent shell stays alive."""
        task = self.access.task(task_id, EXECUTE)
        await task.interrupt()
        return await task.wait(self._shell_wait(wait))

    async def shell_pause(self, task_id: str) -> Task:
        task = self.access.task(task_id, EXECUTE)
        await task.pause()
        return await task.wait(0.0)

    async def shell_resume(self, task_id: str, *, wait: float | None = 0.0) -> Task:
        task = self.access.task(task_id, EXECUTE)
        await task.resume()
        return await task.wait(self._shell_wait(wait))

    async def shell_input(self, task_id: str, text: str = "", *, eof: bool = False, wait: float | None = 0.0) -> Task:
        """Send text to a task's input as it is: a line needs its own newline; on a terminal, `\\x03` is Ctrl-C."""
        task = self.access.task(task_id, EXECUTE)
        await task.input(text, eof=eof)
        return await task.wait(self._shell_wait(wait))

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None:
        """Set the size of a task's terminal."""
        check_size(rows, columns)
        await self.access.task(task_id, EXECUTE).resize(rows, columns)

    async def shell_tasks(self, limit: int = MAX_LISTED, before: str | None = None) -> list[Task]:
        """List the last tasks that run or are not forgotten yet, without their text, in the order of their start.

        With `before`, those that were started before the task with this id. Long commands are cut.
        """
        return [each async for each in self.each_task(limit, before)]

    def each_task(self, limit: int = MAX_LISTED, before: str | None = None) -> AsyncIterator[Task]:
        """Yield what `shell_tasks` lists, one by one."""
        self.access.check(READ)
        return self._node.tasks.list(self.access.caller.tenant, limit, before)

    async def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        return await self.access.task(task_id).output(stream, from_line, lines, grep)

    def shell_events(self, task_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        """Yield the events of a task, also those to come, until it is over. Their `session_id` is the task's id."""
        return self.access.task(task_id).events(first)

    async def shell_end(self, shell_session: str, *, session_id: str | None = None) -> bool:
        """End a persistent shell and what runs in it. Return False if there is none of that name."""
        self.access.check(EXECUTE)
        key = self.access.session_key(session_id, EXECUTE) if session_id is not None else None
        return await self._node.tasks.end_shell(self.access.caller.tenant, key, shell_session)

    async def _wait_for_end(self, task: TaskHandle, wait: float | None) -> Task:
        """Return the task once all its processes have ended, not only its shell."""
        seconds = self._shell_wait(wait)
        info = await task.wait(seconds)
        if info.status in ("running", "paused") and seconds:
            info = await task.wait(seconds)
        return info

    def _shell_wait(self, wait: float | None) -> float:
        """Return the seconds to wait for a task. Default: the setting `shell_wait`."""
        check_seconds("wait", wait)
        return self.settings.shell_wait if wait is None else wait
