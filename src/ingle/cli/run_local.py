"""`ingle run`: code in its own session, with its events shown and its end as an exit code.

However the command ends, the session and its processes end first.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from ingle.cli.foreground import Foreground
from ingle.cli.job import Job, Step
from ingle.cli.options import load_settings
from ingle.cli.show import Show
from ingle.cli.terminal import Answers, Output
from ingle.events import Done, InputWanted, Result
from ingle.grants import OPEN_LEVELS
from ingle.requests import NewCell
from ingle.service import Service
from ingle.settings import Settings, data_folder
from ingle_worker.wire import child_variables

OWN_FOLDER = (
    "ingle: the code runs in its own folder, because the current one cannot be granted to confined code: it is your "
    "home, contains it, or has ingle's data in it; start in a folder below it\n"
)


def own_settings(python: str | None, folders: tuple[str, ...] = (), isolation: str | None = None) -> Settings:
    """Return the settings for the user's own code, which is confined only on request."""
    # There will be only one session, so nothing is pre-started for a second.
    given = {"preload": [], "pool": 0, "folder": list(folders) or None, "isolation": isolation}
    settings = load_settings(given)
    if settings.isolation == "auto":
        settings = replace(settings, isolation="none")
    return settings if python is None else replace(settings, pythons=[*settings.pythons, python])


def run_in_own_service(
    main: Callable[[Service, str | None], Coroutine[Any, Any, int]],
    python: str | None = None,
    folders: tuple[str, ...] = (),
    isolation: str | None = None,
) -> int:
    """Run `main` with a service that it starts and ends, and the folder for its code. Return the exit code.

    The folder is the first of `folders`, or else the current one if code may run there. Otherwise it is None, and the
    user is told.
    """
    settings = own_settings(python, folders, isolation)

    async def whole() -> int:
        service, folder = Service.beginning_in(os.getcwd(), settings, data_folder(), "local")
        if folder is None:
            await Output().write(2, OWN_FOLDER)
        return await main(service, folder)

    with asyncio.Runner() as runner:
        return runner.run(whole())


async def tell_folders(service: Service) -> None:
    """Tell a person at a terminal which folders confined code may use. Programs that read standard error are not."""
    if os.isatty(2) and (reach := await service.reach()).level not in OPEN_LEVELS:
        await Output().write(2, f"ingle: {reach.files}\n")


def run_job(job: Job) -> int:
    """Run the code to its end, and return the exit code."""

    def main(service: Service, folder: str | None) -> Coroutine[Any, Any, int]:
        return Run(job, service, folder).main()

    return run_in_own_service(main, job.python, job.folders, job.isolation)


class Run:
    def __init__(self, job: Job, service: Service, folder: str | None) -> None:
        self._job = job
        self._service = service
        self._folder = folder
        self._front = Foreground(self._interrupt)
        self._show = Show(job, self._full_image)
        self._answers = Answers(self._front, self._send, takes_stdin=job.takes_stdin)
        self._steps = iter(job.steps)
        self._step: Step | None = None
        """The step that runs."""
        self._session_id: str | None = None

    async def main(self) -> int:
        async with self._service:
            await self._front.run(self._work)
            if self._front.ended_by is not None:
                await self._show.write_notebook()
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Result | None] | None:
        if self._session_id is None or self._step is None:
            return None
        return self._service.interrupt(self._session_id, wait=0)

    async def _full_image(self, file: str) -> bytes:
        assert self._session_id is not None
        return await self._service.figure(self._session_id, file)

    async def _work(self) -> int:
        job = self._job
        session = await self._service.create_session(
            python=job.python,
            environment=job.environment,
            cwd=self._folder,
            env={child_variables.ENDS_WITH: "this command", **job.env},
        )
        await tell_folders(self._service)
        self._session_id = session.session_id
        await self._next()
        # Until the end of the session, because exit handlers and threads may print after the last cell.
        async for event in self._service.events(session.session_id):
            if isinstance(event, InputWanted):
                self._answers.begin(secret=event.secret)
            elif isinstance(event, Done):
                await self._finish(event.result)
            else:
                await self._show.take(event)
        await self._show.finish()
        return self._show.exit_code

    async def _next(self) -> None:
        """Start the next step, or end the session after the last one."""
        assert self._session_id is not None
        step = next(self._steps, None)
        if step is None:
            self._front.help(self._service.end_session(self._session_id))
            return
        new = NewCell(step.code, self._job.timeout, queue=True, script=step.script)
        cell = await self._service.begin_cell(self._session_id, new)
        # Only now: before the cell exists, Ctrl-C ends the command.
        self._step = step
        self._show.begin(step, cell)

    async def _finish(self, result: Result) -> None:
        assert self._session_id is not None
        step, self._step = self._step, None
        assert step is not None
        self._answers.stop()
        if self._job.as_json:
            result = await self._service.wait(self._session_id, result.cell, wait=0)
        if not await self._show.ended(step, result):
            self._steps = iter(())
        await self._next()

    async def _send(self, text: str, eof: bool) -> None:
        assert self._session_id is not None
        await self._service.input(self._session_id, text, eof=eof, wait=0)
