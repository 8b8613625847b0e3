"""Shell tasks: commands that answer at once when they are quick, and go on when they are not."""

from collections.abc import AsyncIterator

from ingle import errors
from ingle.callers import EXECUTE, READ
from ingle.events import AnyEvent, Task, TaskOutput
from ingle.requests import Limits
from ingle.service.access import Acting
from ingle.service.validation import check_environment, check_key, check_limits, check_seconds, check_size
from ingle.sessions.manager import check_name


class Shell(Acting):
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
        """Run a command; answer when its shell has ended, or after `wait` seconds with what there is so far.

        `stdin` is its whole input; with `interactive` or `pty` the input stays open for `shell_input`. With
        `shell_session` it runs in the persistent shell of that name. The same `request_key` never runs it twice.
        """
        check_environment(env)
        check_seconds("timeout", timeout)
        check_seconds("wait", wait)
        check_limits(limits)
        check_size(*size)
        check_key(request_key)
        if shell_session is not None:
            check_name(shell_session)
            if pty or interactive:
                raise errors.InvalidRequest(
                    "a command in a persistent shell has no terminal and no open input; "
                    "give stdin, or leave shell_session out"
                )
            if limits is not None and limits != Limits(output=limits.output):
                raise errors.InvalidRequest(
                    "a command in a persistent shell can be limited in its output only, since the shell lives on; "
                    "leave shell_session out to limit memory, CPU time, processes or files"
                )
        self.check(EXECUTE)
        if self._shared.draining:
            raise errors.Unavailable("the server is stopping; start it again")
        tenant = self.caller.tenant
        own_session = self._own(session_id, EXECUTE) if session_id is not None else None
        environ = sorted(env.items()) if env else env
        request = ("shell", command, timeout, session_id, cwd, environ, stdin, interactive, pty, limits, shell_session)
        task_id = await self.once(
            f"{tenant}/{request_key}" if request_key is not None else None,
            request,
            lambda: self._node.shell_begin(
                command,
                timeout=timeout,
                session_id=own_session,
                cwd=cwd,
                env=env,
                stdin=stdin,
                interactive=interactive,
                pty=pty,
                size=size,
                limits=limits,
                shell_session=shell_session,
                tenant=tenant,
                bounds=self.caller.bounds,
            ),
        )
        return await self._node.shell_wait(self._task(task_id), self._shell_wait(wait))

    def _task(self, task_id: str, scope: str = READ) -> str:
        """The id by which placement knows a task of this caller, who must have the scope."""
        self.check(scope)
        if "/" in task_id:
            raise errors.TaskNotFound(task_id)
        return f"{self.caller.tenant}/{task_id}" if self.caller.tenant else task_id

    async def shell_status(
        self, task_id: str, *, wait: float | None = None, from_line: int = 0, from_event: int = 0
    ) -> Task:
        """The task once its shell has ended (or, if it had, once all of it has), or after `wait` seconds.

        From a line or an event on, if asked for. Reading changes nothing.
        """
        return await self._node.shell_wait(
            self._task(task_id), self._shell_wait(wait), from_event=from_event, from_line=from_line
        )

    async def shell_cancel(self, task_id: str, *, wait: float | None = None) -> Task:
        """End all of a task: SIGTERM, a grace, SIGKILL. One that is over is answered as it is."""
        own_id = self._task(task_id, EXECUTE)
        await self._node.shell_order(own_id, "cancel")
        return await self._until_over(own_id, wait)

    async def shell_interrupt(self, task_id: str, *, wait: float | None = None) -> Task:
        """SIGINT, as by Ctrl-C; a persistent shell stays alive."""
        own_id = self._task(task_id, EXECUTE)
        await self._node.shell_order(own_id, "interrupt")
        return await self._node.shell_wait(own_id, self._shell_wait(wait))

    async def shell_pause(self, task_id: str) -> Task:
        own_id = self._task(task_id, EXECUTE)
        await self._node.shell_order(own_id, "pause")
        return await self._node.shell_wait(own_id, 0.0)

    async def shell_resume(self, task_id: str, *, wait: float | None = 0.0) -> Task:
        own_id = self._task(task_id, EXECUTE)
        await self._node.shell_order(own_id, "resume")
        return await self._node.shell_wait(own_id, self._shell_wait(wait))

    async def shell_input(self, task_id: str, text: str = "", *, eof: bool = False, wait: float | None = 0.0) -> Task:
        """Send text to a task's input as it is: a line needs its own newline; on a terminal, `\\x03` is Ctrl-C."""
        own_id = self._task(task_id, EXECUTE)
        await self._node.shell_input(own_id, text, eof=eof)
        return await self._node.shell_wait(own_id, self._shell_wait(wait))

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None:
        """The size of a task's terminal."""
        check_size(rows, columns)
        await self._node.shell_resize(self._task(task_id, EXECUTE), rows, columns)

    async def shell_tasks(self) -> list[Task]:
        """All tasks that run or are still kept, without their text, in the order of their start."""
        self.check(READ)
        return await self._node.shell_tasks(self.caller.tenant)

    async def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        return await self._node.shell_output(
            self._task(task_id), stream=stream, from_line=from_line, lines=lines, grep=grep
        )

    def shell_events(self, task_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        """The events of a task, those to come included, until it is over. Their `session_id` is the task's id."""
        return self._node.shell_events(self._task(task_id), first)

    async def shell_end(self, shell_session: str, *, session_id: str | None = None) -> bool:
        """End a persistent shell and what runs in it; False when there is none of that name."""
        self.check(EXECUTE)
        own_session = self._own(session_id, EXECUTE) if session_id is not None else None
        return await self._node.shell_end(shell_session, own_session, self.caller.tenant)

    async def _until_over(self, task_id: str, wait: float | None) -> Task:
        """The task when all of it has gone, not only its shell."""
        seconds = self._shell_wait(wait)
        task = await self._node.shell_wait(task_id, seconds)
        if task.status in ("running", "paused") and seconds:
            task = await self._node.shell_wait(task_id, seconds)
        return task

    def _shell_wait(self, wait: float | None) -> float:
        check_seconds("wait", wait)
        return self.settings.shell_wait if wait is None else wait
