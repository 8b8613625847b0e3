"""`ingle run -s NAME`: code in a live session of a running service.

The session and its state stay when this command ends. A first Ctrl-C interrupts the cell; a second one leaves it
running, and the command says how to follow it.
"""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any

import msgspec

from ingle import errors
from ingle.cli.foreground import Foreground
from ingle.cli.run_local import Job, exit_code, remarks
from ingle.cli.services import Target
from ingle.cli.terminal import Lines, Output, no_echo
from ingle.client import AsyncClient, AsyncSession, Event, Result, kind_of
from ingle.client.decode import bundle_of
from ingle.events import Done, ErrorRaised, InputWanted, Stderr, Stdout


def run_in_session(job: Job, target: Target, name: str) -> int:
    """Run the job in the session of that name, and return the exit code."""

    async def main() -> int:
        async with AsyncClient(str(target.address), target.address.token, start=False) as client:
            return await SessionRun(job, await _session(client, job, target, name)).main()

    with asyncio.Runner() as runner:
        return runner.run(main())


async def _session(client: AsyncClient, job: Job, target: Target, name: str) -> AsyncSession:
    """Return the session of that name. On this machine, a new one starts in the current folder if that is granted."""
    cwd = os.getcwd() if target.address.path is not None else None
    try:
        async with client.session(name, python=job.python, cwd=cwd, keep=True) as session:
            return session
    except errors.NotGranted:
        async with client.session(name, python=job.python, keep=True) as session:
            own = f"ingle: session {name} starts in its own folder; `ingle serve --mount {cwd}` grants this one\n"
            await Output().write(2, own)
            return session


class SessionRun:
    def __init__(self, job: Job, session: AsyncSession) -> None:
        self._job = job
        self._session = session
        self._front = Foreground(self._interrupt)
        self._output = Output()
        self._lines = Lines(0)
        self._cell: int | None = None
        self._result: Result | None = None
        self._answering: asyncio.Task[None] | None = None

    async def main(self) -> int:
        await self._front.run(self._work)
        if self._front.ended_by is not None and self._cell is not None and self._result is None:
            how = f"ingle: cell {self._cell} continues; follow it with `ingle logs -f {self._session.name}`\n"
            with contextlib.suppress(OSError):
                await self._output.write(2, how)
        return self._front.exit_code

    def _interrupt(self) -> Coroutine[Any, Any, Result | None] | None:
        return None if self._cell is None else self._session.interrupt(wait=0)

    async def _work(self) -> int:
        job = self._job
        done: Done | None = None
        async for event in self._session.stream(job.code, timeout=job.timeout, envs=job.env or None):
            self._cell = event.cell
            if isinstance(event, Done):
                done = event
            await self._take(event)
        assert done is not None
        if self._answering is not None:
            self._answering.cancel()
        self._result = await self._session.wait(done.cell, wait=0)
        if job.as_json:
            await self._output.write(1, msgspec.json.encode(self._result).decode() + "\n")
        else:
            for line in remarks(self._result, job.timeout):
                await self._output.write(2, f"ingle: {line}\n")
        return exit_code(self._result)

    async def _take(self, event: Event) -> None:
        if isinstance(event, InputWanted):
            if self._answering is None or self._answering.done():
                self._answering = self._front.help(self._answer(event.secret))
        elif self._job.as_json:
            return
        elif isinstance(event, Stdout) and not event.background:
            await self._output.write(1, event.text)
        elif isinstance(event, Stderr) and not event.background:
            await self._output.write(2, event.text)
        elif isinstance(event, ErrorRaised):
            await self._output.write(2, event.traceback.rstrip("\n") + "\n")
        elif kind_of(event) in ("result", "display"):
            await self._output.write(1, bundle_of(event).get("text/plain", "") + "\n")

    async def _answer(self, secret: bool) -> None:
        """Send one line of standard input to the waiting cell."""
        text, eof = "", True
        if self._job.takes_stdin:
            with no_echo(0) if secret else contextlib.nullcontext():
                text, eof = await self._lines.next()
        try:
            await self._session.input(text, eof=eof, wait=0)
        except errors.NotWaiting:
            self._lines.put_back(text)
