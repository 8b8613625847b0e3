"""`ingle run -s NAME`: code in a live session of a running service.

The session and its state stay when this command ends. A first Ctrl-C interrupts the cell; a second one leaves it
running, and the command says how to follow it.
"""

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterable
from typing import Any

from ingle import errors
from ingle.cli.foreground import Foreground
from ingle.cli.job import Job, Step
from ingle.cli.services import ACT_SECONDS, Target
from ingle.cli.show import Show
from ingle.cli.terminal import Answers, Output
from ingle.client import AsyncClient, AsyncSession, OtherEvent, Result
from ingle.client.address import Folder, file_path, session_path
from ingle.events import Done, InputWanted
from ingle.render.notebook import NoteCell


def run_in_session(job: Job, target: Target, name: str) -> int:
    """Run the job in the session of that name, and return the exit code."""

    async def main() -> int:
        if job.folders and target.address.path is not None:
            for folder in map(Folder.read, job.folders):
                change = target.ask("POST", "/v1/grants", folder.grant)
                if (name, "next_process") in [(each["session_id"], each["when"]) for each in change["sessions"]]:
                    later = f"session {name} is confined, and has {folder.path} from its next process on, not now"
                    await Output().write(2, f"ingle: {later}; exit() in a cell starts one, without the variables\n")
        async with AsyncClient(str(target.address), target.address.token, name="ingle run", start=False) as client:
            return await SessionRun(job, await _session(client, job, target, name), target).main()

    with asyncio.Runner() as runner:
        return runner.run(main())


async def _session(client: AsyncClient, job: Job, target: Target, name: str) -> AsyncSession:
    """Return the session of that name. A new one starts in the first folder of the job.

    Without such a folder, one on this machine starts in the current folder if that is granted.
    """
    options: dict[str, Any] = {
        "python": job.python,
        "environment": job.environment,
        "isolation": job.isolation,
        "durable": job.durable or None,
        "keep": True,
    }
    if job.folders:
        async with client.session(name, cwd=Folder.read(job.folders[0]).path, **options) as session:
            return await _checked(session, job)
    cwd = os.getcwd() if target.address.path is not None else None
    try:
        async with client.session(name, cwd=cwd, **options) as session:
            return await _checked(session, job)
    except errors.NotGranted:
        async with client.session(name, **options) as session:
            own = f"ingle: session {name} starts in its own folder; `ingle grant {cwd}` grants this one\n"
            await Output().write(2, own)
            return session


async def _checked(session: AsyncSession, job: Job) -> AsyncSession:
    """Return the session. Say so if it existed, and is not as the job wants it."""
    if session.made or not (job.durable or job.python):
        return session
    exists = f"ingle: session {session.name} exists"
    info = await session.info()
    if job.durable and not info.durable:
        await Output().write(2, f"{exists} and is not durable; save it with `ingle save {session.name}`\n")
    if job.python:
        await Output().write(2, f"{exists} and keeps its Python {info.python}; --python has no effect\n")
    return session


class SessionRun:
    def __init__(self, job: Job, session: AsyncSession, target: Target) -> None:
        self._job = job
        self._session = session
        self._target = target
        self._front = Foreground(self._interrupt)
        self._show = Show(job, self._full_image)
        self._answers = Answers(self._front, self._send, takes_stdin=job.takes_stdin)
        self._cell: int | None = None
        """The cell that runs."""

    async def main(self) -> int:
        await self._front.run(self._work)
        if self._front.ended_by is not None:
            if self._cell is not None:
                with contextlib.suppress(OSError):
                    await self._show.remark(
                        f"cell {self._cell} continues; follow it with `ingle logs -f {self._session.name}`"
                    )
            await self._show.write_notebook()
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Result | None] | None:
        return None if self._cell is None else self._session.interrupt(wait=0)

    async def _full_image(self, file: str) -> bytes:
        path = f"{session_path(self._session.name)}/figures/{file_path(file)}"

        def read() -> bytes:
            with self._target.client.open("GET", path, timeout=ACT_SECONDS) as answer:
                data: bytes = answer.read()
                return data

        return await asyncio.to_thread(read)

    async def _work(self) -> int:
        for step in self._job.steps:
            await self._note(step.notes)
            if not await self._run(step):
                break
        else:
            await self._note(self._job.last_notes)
        await self._show.finish()
        return self._show.exit_code

    async def _note(self, notes: Iterable[NoteCell]) -> None:
        """Put the texts of a notebook into the transcript of the session."""
        for each in notes:
            await self._session.note(each.text, raw=each.raw)

    async def _run(self, step: Step) -> bool:
        """Run one step to its end. Return whether the next one should run."""
        job = self._job
        done: Done | None = None
        stream = self._session.stream(step.code, timeout=job.timeout, envs=job.env or None, script=step.script)
        async with contextlib.aclosing(stream):
            async for event in stream:
                if self._cell is None and event.cell is not None:
                    self._cell = event.cell
                    self._show.begin(step, event.cell)
                if isinstance(event, Done):
                    done = event
                elif isinstance(event, InputWanted):
                    self._answers.begin(secret=event.secret)
                elif not (isinstance(event, OtherEvent) or getattr(event, "background", False)):
                    await self._show.take(event)
        assert done is not None
        self._answers.stop()
        result = await self._session.wait(done.cell, wait=0)
        self._cell = None
        return await self._show.ended(step, result)

    async def _send(self, text: str, eof: bool) -> None:
        # JSON carries no bytes that are not UTF-8.
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        await self._session.input(text, eof=eof, wait=0)
