"""`ingle run`: code in its own session, with its events shown and its end as an exit code.

However the command ends, the session and its processes end first.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ingle import errors
from ingle.cli.foreground import TIMED_OUT, Foreground, signal_number
from ingle.cli.options import load_settings
from ingle.cli.terminal import Lines, Output, no_echo
from ingle.events import AnyEvent, Done, ErrorRaised, InputWanted, Result, ResultShown, Stderr, Stdout
from ingle.render.mime import lines_of
from ingle.service import Service
from ingle.settings import Settings, data_folder


@dataclass(frozen=True)
class Job:
    code: str
    python: str | None = None
    timeout: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    takes_stdin: bool = True


OWN_FOLDER = (
    "ingle: the code runs in its own folder, because the current one cannot be granted to confined code: it is your "
    "home, contains it, or has ingle's data in it; start in a folder below it\n"
)


def own_settings(python: str | None) -> Settings:
    """Return the settings for the user's own code, which is confined only on request."""
    # There will be only one session, so nothing is pre-started for a second.
    settings = load_settings({"preload": [], "pool": 0})
    if settings.isolation == "auto":
        settings = replace(settings, isolation="none")
    return settings if python is None else replace(settings, pythons=[*settings.pythons, python])


def run_in_own_service(
    main: Callable[[Service, str | None], Coroutine[Any, Any, int]], python: str | None = None
) -> int:
    """Run `main` with a service that it starts and ends, and the folder for its code. Return the exit code.

    The folder is the current one if code may run there. Otherwise it is None, and the user is told.
    """
    settings = own_settings(python)

    async def whole() -> int:
        service, folder = Service.beginning_in(os.getcwd(), settings, data_folder(), "local")
        if folder is None:
            await Output().write(2, OWN_FOLDER)
        return await main(service, folder)

    with asyncio.Runner() as runner:
        return runner.run(whole())


def run_job(job: Job) -> int:
    """Run the code to its end, and return the exit code."""
    return run_in_own_service(lambda service, folder: Run(job, service, folder).main(), job.python)


class Run:
    def __init__(self, job: Job, service: Service, folder: str | None) -> None:
        self._job = job
        self._service = service
        self._folder = folder
        self._front = Foreground(self._interrupt)
        self._output = Output()
        self._lines = Lines(0)
        self._session_id: str | None = None
        self._cell: int | None = None
        self._result: Result | None = None
        self._answering: asyncio.Task[None] | None = None

    async def main(self) -> int:
        async with self._service:
            await self._front.run(self._work)
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Result | None] | None:
        if self._session_id is None or self._cell is None or self._result is not None:
            return None
        return self._service.interrupt(self._session_id, wait=0)

    async def _work(self) -> int:
        job = self._job
        session = await self._service.create_session(python=job.python, cwd=self._folder, env=job.env)
        self._session_id = session.session_id
        self._cell = await self._service.begin(session.session_id, job.code, timeout=job.timeout)
        # Until the end of the session, because exit handlers and threads may print after the cell.
        async for event in self._service.events(session.session_id):
            await self._take(event)
        assert self._result is not None
        if job.as_json:
            await self._output.write(1, msgspec.json.encode(self._result).decode() + "\n")
        return exit_code(self._result)

    async def _take(self, event: AnyEvent) -> None:
        if isinstance(event, InputWanted):
            if self._answering is None or self._answering.done():
                self._answering = self._front.help(self._answer(event.secret))
        elif isinstance(event, Done):
            await self._finish(event.result)
        elif not self._job.as_json:
            if isinstance(event, Stdout):
                await self._output.write(1, event.text)
            elif isinstance(event, Stderr):
                await self._output.write(2, event.text)
            elif isinstance(event, ResultShown):
                await self._output.write(1, lines_of(event.data) + "\n")
            elif isinstance(event, ErrorRaised):
                await self._output.write(2, event.traceback.rstrip("\n") + "\n")

    async def _finish(self, result: Result) -> None:
        assert self._session_id is not None
        self._result = result
        if self._answering is not None:
            self._answering.cancel()
        if self._job.as_json:
            self._result = await self._service.wait(self._session_id, result.cell, wait=0)
        else:
            for line in remarks(result, self._job.timeout):
                await self._output.write(2, f"ingle: {line}\n")
        self._front.help(self._service.end_session(self._session_id))

    async def _answer(self, secret: bool) -> None:
        """Send one line of standard input to the waiting cell."""
        assert self._session_id is not None
        text, eof = "", True
        if self._job.takes_stdin:
            with no_echo(0) if secret else contextlib.nullcontext():
                text, eof = await self._lines.next()
        try:
            await self._service.input(self._session_id, text, eof=eof, wait=0)
        except errors.NotWaiting:
            # The cell was interrupted, or a child read first; the next reader gets the line.
            self._lines.put_back(text)
        except errors.SessionNotFound:
            return


def exit_code(result: Result) -> int:
    """Return the exit code that a shell would report."""
    if result.timed_out:
        return TIMED_OUT
    if result.exit is not None:
        if result.exit.signal is not None:
            return 128 + signal_number(result.exit.signal)
        return 1 if result.exit.code is None else result.exit.code
    return {"ok": 0, "interrupted": 128 + signal.SIGINT}.get(result.status, 1)


def remarks(result: Result, timeout: float | None) -> list[str]:
    """Return what a person should know that the streams have not shown."""
    if result.timed_out:
        return [f"stopped at its timeout of {timeout:g} s"]
    if result.exit is not None and (result.exit.signal is not None or result.exit.code is None):
        return [f"the session's process {result.exit.message}"]
    return [] if result.exit is not None else result.notices
