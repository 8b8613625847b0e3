"""A task: one shell command, started once. Requests wait for it and do not own it.

Its output goes to its log, and requests are answered from there. A task is answered when its shell has ended and the
output is quiet. It is over when its last process is gone. Its status then says who ended it: `done` the task itself,
`cancelled` a caller, `killed` ingle, for a reason that the notices give.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from ingle import errors, events
from ingle.events import AnyEvent, LeftRunning, TaskOutput, Usage
from ingle.output.timeline import HEAD_SHARE
from ingle.requests import NewTask
from ingle.settings import Settings
from ingle.shell.task_log import TaskLog
from ingle.workers.exit_status import signal_name

RUNNING, PAUSED, DONE, CANCELLED, KILLED = "running", "paused", "done", "cancelled", "killed"

MAX_DRAIN_SECONDS = 0.4
"""Time that an answer waits for output of processes that the shell has left running."""

MIN_SECONDS_FOR_LIMIT_CHECK = 0.05
"""Successful commands shorter than this cannot have met a limit."""

QUIET_SECONDS = 0.05
"""Silence after which that output counts as complete."""

DRAIN_POLL_SECONDS = QUIET_SECONDS / 5

MAX_HELD_COMMAND_CHARS = 2000
"""Characters of a command that are held in memory and shown in lists. The whole command is in the task's log."""


def no_folder(order: NewTask) -> errors.InvalidRequest:
    """Return the error for a working directory that does not exist."""
    return errors.InvalidRequest(f"there is no folder {order.cwd[:200]!r} to run in; give an absolute path")


class Runner(Protocol):
    """What carries out a task: a program of its own, or a turn in a persistent shell."""

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C does."""

    def terminate(self) -> None:
        """Ask it to end, even if it is stopped."""

    def kill(self) -> None:
        """End it for sure."""

    def stop(self) -> None: ...

    def go_on(self) -> None: ...

    def write(self, data: bytes, *, eof: bool) -> bool:
        """Send input. Return False when there is no open input."""
        ...

    def resize(self, rows: int, columns: int) -> bool:
        """Set the size of the terminal. Return False when there is none."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def at_end_of_output(self) -> bool: ...

    def usage(self) -> Usage:
        """Return the usage of its processes. Blocking, for a thread."""
        ...

    def living(self) -> list[LeftRunning]:
        """Return its processes that run. Blocking, for a thread."""
        ...


class Task:
    """State, verbs and log of one command."""

    def __init__(
        self, task_id: str, order: NewTask, path: Path, settings: Settings, on_over: "Callable[[Task], None]"
    ) -> None:
        self.id = task_id
        self.order = order
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._runner: Runner | None = None
        self._log = TaskLog(task_id, path, settings, self._on_capacity)
        self._waiters: list[asyncio.Future[None]] = []
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._grace_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._bytes = 0
        self._last_output = 0.0
        self._ending: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self.status = RUNNING
        self.created_at = time.time()
        self.began = time.monotonic()
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.timed_out = False
        self.usage = Usage()
        self.left: list[LeftRunning] = []
        self.notices: list[str] = []
        self.command_cut = False
        """Whether `order` holds only the head of the command."""
        self.answered = False
        """Whether the shell has ended and the output is complete."""
        self.limits_met: Callable[[], list[str]] | None = None
        """Returns the limits of its sandbox that were met meanwhile."""
        self._log.state(RUNNING, order.command)

    @property
    def over(self) -> bool:
        return self.status in (DONE, CANCELLED, KILLED)

    @property
    def age(self) -> float:
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.began

    # --- events of the runner ---

    def begin(self, runner: Runner) -> None:
        """Note that `runner` carries out this task from now on."""
        self._runner = runner
        self.began = time.monotonic()
        if self.order.timeout is not None:
            self._timeout_timer = self._loop.call_later(self.order.timeout, self._on_timeout)

    def release_order(self) -> None:
        """Drop what only the start needed: the input, the environment, and all but the head of the command."""
        order = self.order
        self.command_cut = len(order.command) > MAX_HELD_COMMAND_CHARS
        self.order = msgspec.structs.replace(
            order,
            command=order.command[:MAX_HELD_COMMAND_CHARS],
            stdin=None if order.stdin is None else "",
            env={},
        )

    def on_output(self, stream: int, data: bytes) -> None:
        """Log output, up to the limit."""
        limit = self.order.limits.output
        self._last_output = self._loop.time()
        if limit is not None and self._bytes + len(data) > limit:
            data = data[: max(0, limit - self._bytes)]
            self._bytes = limit
            if self._ending is None:
                self.end(KILLED, f"killed: its output passed the limit of {limit} bytes", now=True)
        else:
            self._bytes += len(data)
        self._log.add(stream, data)
        if self._log.full and self._runner is not None:
            self._runner.pause_reading()

    def _on_capacity(self) -> None:
        if not self._log.full and self._runner is not None:
            self._runner.resume_reading()

    def on_breach(self, limit: str, used: float) -> None:
        """End the task, because it has exceeded a limit."""
        allowed = getattr(self.order.limits, limit, None)
        if limit == "memory":
            text = f"its memory of {used:.0f} bytes passed the limit of {allowed} bytes"
        elif limit == "processes":
            text = f"it had more than {allowed} processes, its limit"
        else:
            text = f"its CPU time of {used:.2f} s passed the limit of {allowed} s"
        self.end(KILLED, f"killed: {text}", now=True)

    def on_program_end(self, status: int | None, usage: Usage, *, left: bool) -> None:
        """Note that the shell has ended with this wait status. `left`: it has left processes running."""
        if self.ended_at is not None:
            return
        self.ended_at = time.monotonic()
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self.use(usage)
        if status is not None:
            self.take_status(status)
        if left and self._ending is None:
            self._last_output = max(self._last_output, self._loop.time())
            self._drain(self._loop.time() + MAX_DRAIN_SECONDS)

    def take_status(self, status: int) -> None:
        """Note how the shell has ended."""
        if os.WIFSIGNALED(status):
            self.signal = signal_name(os.WTERMSIG(status))
            if self.signal == "SIGXFSZ" and self.order.limits.file_size is not None:
                self.notices.append(f"a file it wrote passed the limit of {self.order.limits.file_size} bytes")
        else:
            self.exit_code = os.waitstatus_to_exitcode(status)

    def use(self, usage: Usage) -> None:
        """Note a measured usage. The values only grow."""
        self.usage = Usage(max(self.usage.cpu_seconds, usage.cpu_seconds), max(self.usage.memory, usage.memory))

    def _drain(self, deadline: float) -> None:
        """Wait until no output came for a moment, or none can come."""
        now = self._loop.time()
        runner = self._runner
        rest = runner is None or runner.at_end_of_output or now - self._last_output >= QUIET_SECONDS or now >= deadline
        if self.over or rest:
            self.answered = True
            self._wake()
        else:
            self._drain_timer = self._loop.call_later(DRAIN_POLL_SECONDS, self._drain, deadline)

    def killed_from_outside(self) -> None:
        """Note that its whole tree is gone without a report."""
        if self._ending is None:
            self._ending = KILLED
            self.notices.append("its process tree was killed from within or from outside; how it ended is not known")

    def on_over(self, left: list[LeftRunning] | None = None) -> None:
        """Note that the task is over and its output complete. `left`: processes that a persistent shell still has."""
        if self.over:
            return
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        for timer in (self._timeout_timer, self._grace_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._log.finish()
        if self._log.dropped:
            self.notices.append(f"{self._log.dropped} characters of output were not kept: {self._log.lost}")
        self.left = left or []
        if self.limits_met is not None and (self.exit_code != 0 or self.age > MIN_SECONDS_FOR_LIMIT_CHECK):
            self.notices += self.limits_met()
        self.answered = True
        self.status = self._ending or DONE
        for text in self.notices:
            self._log.notice(text)
        self._log.state(self.status)
        self._runner = None
        self._closing = self._loop.create_task(self._log.close())
        self._wake()
        self._on_over(self)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- ending ---

    def _on_timeout(self) -> None:
        if self.ended_at is None and self._ending is None:
            self.timed_out = True
            self.end(KILLED, f"stopped at its timeout of {self.order.timeout:g} s")

    def end(self, status: str, because: str | None = None, *, now: bool = False) -> None:
        """End all processes with SIGTERM, and after a grace period with SIGKILL; with `now`, with SIGKILL at once."""
        if self.over or self._runner is None:
            return
        if self._ending is None:
            self._ending = status
            if because is not None:
                self.notices.append(because)
        if now:
            self._runner.kill()
            return
        self._runner.terminate()
        if self._grace_timer is None:
            self._grace_timer = self._loop.call_later(self._settings.task_grace, self._on_grace_over)

    def _on_grace_over(self) -> None:
        if not self.over and self._runner is not None:
            self.notices.append(
                f"it did not end within {self._settings.task_grace:g} s of being told to, and was killed"
            )
            self._runner.kill()

    # --- the verbs ---

    def cancel(self) -> None:
        """End the task on behalf of a caller."""
        if not self.over:
            self.end(CANCELLED)

    def interrupt(self) -> None:
        """Interrupt the command, as Ctrl-C does."""
        if self._runner is not None:
            self._runner.interrupt()

    def pause(self) -> None:
        """Stop every process of the task."""
        self._live().stop()
        if self.status != PAUSED:
            self.status = PAUSED
            self._log.state(PAUSED)

    def resume(self) -> None:
        """Continue every process of the task."""
        self._live().go_on()
        if self.status == PAUSED:
            self.status = RUNNING
            self._log.state(RUNNING)

    def input(self, text: str, *, eof: bool) -> None:
        """Send input. Raises InputClosed when there is no open input."""
        if not self._live().write(text.encode("utf-8", "surrogateescape"), eof=eof):
            raise errors.InputClosed(self.id)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        if not self._live().resize(rows, columns):
            raise errors.InvalidRequest(f"task {self.id} has no terminal; start it with pty set")

    def _live(self) -> Runner:
        if self.over or self._runner is None:
            raise errors.TaskOver(self.id)
        return self._runner

    async def wait(self, seconds: float) -> None:
        """Wait until the task is answered, or if it was already, until it is over; at most so many seconds."""
        wants_all = self.answered
        deadline = self._loop.time() + seconds
        while not (self.over if wants_all else self.answered) and (left := deadline - self._loop.time()) > 0:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            timer = self._loop.call_later(left, _finish, waiter)
            try:
                await waiter
            finally:
                timer.cancel()

    async def wait_over(self) -> None:
        """Wait until the task is over and its log is written."""
        while not self.over:
            await self.wait(60.0)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    # --- reading ---

    async def look(self) -> None:
        """Update what only the kernel knows: usage and processes."""
        runner = self._runner
        if self.over or runner is None:
            return
        usage, living = await asyncio.to_thread(lambda: (runner.usage(), runner.living()))
        if not self.over:
            self.use(usage)
            self.left = living if self.ended_at is not None else []

    async def info(self, *, from_event: int = 0, from_line: int = 0, text: bool = True) -> events.Task:
        """Return the task as it is now, with its output from an event or a line on.

        Without text, it has the head of its command only.
        """
        await self.look()
        info = events.Task(
            task_id=self.id,
            command=self.order.command,
            status=self.status,
            exit_code=self.exit_code,
            signal=self.signal,
            timed_out=self.timed_out,
            execution_time=self.age,
            usage=self.usage,
            left_running=list(self.left),
            notices=list(self.notices),
            session_id=self.order.session_key,
            shell_session=self.order.shell_session,
            created_at=self.created_at,
        )
        if text:
            if self.command_cut:
                info.command = await self._log.command()
            got = await self._log.text(from_event, from_line)
            info.stdout, info.stderr, info.truncated = got.stdout, got.stderr, got.truncated
            info.next_event, info.next_line = got.next_event, got.next_line
            for stream, left in (("stdout", got.truncated.stdout), ("stderr", got.truncated.stderr)):
                if left:
                    head = int(self._settings.result_chars * HEAD_SHARE)
                    info.notices.append(
                        f"{left} characters of {stream} were left out after the first {head}; "
                        f"read them by line number or by grep in the output of task {self.id}"
                    )
        return info

    async def lines(self, stream: str, from_line: int, count: int, grep: str | None) -> TaskOutput:
        """Return lines of the output by number or pattern."""
        return await self._log.lines(stream, from_line, count, grep)

    def follow(self, first: int = 1) -> AsyncIterator[AnyEvent]:
        """Yield events from a number on, until the task is over."""
        return self._log.follow(first)

    async def forget(self) -> None:
        """Delete its log."""
        if self._closing is not None:
            await self._closing
        await asyncio.to_thread(self._log.delete)


def _finish(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
