"""`ingle sh`: a shell task, with its output shown, input and signals passed in, and its end as an exit code.

However the command ends, the task and its processes end first.
"""

import asyncio
import codecs
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingle.cli.foreground import TIMED_OUT, Foreground, signal_number
from ingle.cli.run_local import run_in_own_service, tell_folders
from ingle.cli.terminal import CHUNK, CallThread, Output
from ingle.errors import Conflict, InputClosed, TaskOver
from ingle.events import LIVE_STATUSES, Stderr, Stdout, Task
from ingle.service import Service

WAIT_SECONDS = 3600.0
"""Time of one of many waits."""

INPUT_RETRY_SECONDS = 0.05
"""Pause before input is offered again to a command that does not read."""


@dataclass(frozen=True)
class Job:
    command: str
    timeout: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    as_json: bool = False


def run_job(job: Job) -> int:
    """Run the command to its end, and return the exit code."""
    return run_in_own_service(lambda service, folder: Run(job, service, folder).main())


class Run:
    def __init__(self, job: Job, service: Service, folder: str | None) -> None:
        self._job = job
        self._service = service
        self._folder = folder
        self._front = Foreground(self._interrupt)
        self._output = Output(raw=job.pty)
        self._task_id: str | None = None
        self._seen = 0

    async def main(self) -> int:
        async with self._service:
            await self._front.run(self._work)
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Task] | None:
        return None if self._task_id is None else self._service.shell_interrupt(self._task_id, wait=0)

    async def _work(self) -> int:
        job = self._job
        await tell_folders(self._service)
        passes_input = job.pty or not os.isatty(0)
        with raw_terminal() if job.pty else contextlib.nullcontext():
            task = await self._service.shell(
                job.command,
                wait=0,
                timeout=job.timeout,
                cwd=self._folder,
                env=job.env,
                interactive=passes_input,
                pty=job.pty,
                size=terminal_size(),
            )
            self._task_id = task.task_id
            if passes_input:
                self._front.help(pass_input(self._send_input))
            if job.pty:
                asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._on_resize)
            showing = self._front.help(self._show())
            while task.status in LIVE_STATUSES and task.exit_code is None and task.signal is None:
                # A position after the last event returns no text, because `_show` shows it.
                waiting = self._front.help(self._wait())
                done, _ = await asyncio.wait({waiting, showing}, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                task = await self._service.shell_status(task.task_id, wait=0, from_event=sys.maxsize)
            while self._seen < task.next_event - 1 and not showing.done():
                await asyncio.wait({showing}, timeout=0.01)
            if showing.done():
                showing.result()
        if job.as_json:
            task = await self._service.shell_status(task.task_id, wait=0)
            await self._output.write(1, msgspec.json.encode(task).decode() + "\n")
        else:
            for line in remarks(task):
                await self._output.write(2, f"ingle: {line}\n")
        return exit_code(task)

    async def _wait(self) -> None:
        assert self._task_id is not None
        await self._service.shell_status(self._task_id, wait=WAIT_SECONDS, from_event=sys.maxsize)

    async def _show(self) -> None:
        assert self._task_id is not None
        async for event in self._service.shell_events(self._task_id):
            if not self._job.as_json:
                if isinstance(event, Stdout):
                    await self._output.write(1, event.text)
                elif isinstance(event, Stderr):
                    await self._output.write(2, event.text)
            self._seen = event.seq

    async def _send_input(self, text: str, eof: bool) -> None:
        assert self._task_id is not None
        await self._service.shell_input(self._task_id, text, eof=eof, wait=0)

    def _on_resize(self) -> None:
        self._front.help(self._resize())

    async def _resize(self) -> None:
        assert self._task_id is not None
        with contextlib.suppress(Conflict):
            await self._service.shell_resize(self._task_id, *terminal_size())


async def pass_input(send: Callable[[str, bool], Awaitable[object]], errors: str = "surrogateescape") -> None:
    """Send standard input to a task until either ends. `send` gets a piece, and whether that is the end.

    `errors` says what becomes of bytes that are not UTF-8. A character on the border of two pieces is sent whole.
    """
    reader = CallThread()
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    data = b"?"
    while data:
        data = await reader.call(lambda: os.read(0, CHUNK))
        text = decoder.decode(data, final=not data)
        sent = bool(data and not text)  # a part of a character
        while not sent:
            try:
                await send(text, not data)
                sent = True
            except (TaskOver, InputClosed):
                return
            except Conflict:
                # The command reads more slowly than this process.
                await asyncio.sleep(INPUT_RETRY_SECONDS)


def exit_code(task: Task) -> int:
    """Return the exit code that a shell would report."""
    if task.timed_out:
        return TIMED_OUT
    if task.signal is not None:
        return 128 + signal_number(task.signal)
    return 1 if task.exit_code is None else task.exit_code


def remarks(task: Task) -> list[str]:
    """Return what a person should know that the streams have not shown."""
    left = [f"ended with the command: {each.command} (pid {each.pid})" for each in task.left_running]
    return [*task.notices, *left]


def terminal_size() -> tuple[int, int]:
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(fd)
            if rows and columns:
                return rows, columns
    return 24, 80


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass every key to the command, also Ctrl-C; its own terminal interprets them."""
    import termios
    import tty

    try:
        before = termios.tcgetattr(0)
    except (termios.error, OSError):
        yield
        return
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
