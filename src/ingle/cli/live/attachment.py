"""`ingle attach`: a terminal on a live session.

One prompt is always there. It takes code, or the answer to a cell that waits for input. All events of the session are
printed above it, also those of other clients. Leaving ends nothing.
"""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from prompt_toolkit.patch_stdout import patch_stdout

from ingle.cli.echo import colours_only, show
from ingle.cli.live.code_entry import help_wanted
from ingle.cli.live.editor import Editor
from ingle.cli.live.pictures import Pictures, way_to_show
from ingle.cli.live.screen import Screen
from ingle.client import AsyncSession, Event
from ingle.errors import IngleError
from ingle.events import Done, InputWanted, StateChanged
from ingle.introspection import Inspection

NAME = "ingle attach"
"""What the client calls itself. Cells name it."""

CELLS_SHOWN = 3
"""Last cells that are shown first."""

DETACH = ("exit", "quit", "exit()", "quit()")
"""Lines that detach. As code, the calls would end the process of the session, and its variables with it."""


class Attachment:
    def __init__(self, session: AsyncSession, home: Path) -> None:
        self._session = session
        self._screen = Screen(Pictures(way_to_show(os.environ)), colours="NO_COLOR" not in os.environ)
        self._editor = Editor(
            session,
            home,
            message=self._message,
            answering=lambda: self._waiting is not None,
            secret=lambda: self._waiting is not None and self._waiting.secret,
            on_interrupt=self._interrupt,
        )
        self._running: int | None = None
        """Number of the cell that runs."""
        self._waiting: InputWanted | None = None
        """The wait for input that the next text answers."""
        self._postponed: InputWanted | None = None
        """A wait that began while code was typed."""
        self._cells = 0
        self._own: set[int] = set()
        """Cells of this terminal."""
        self._sent: list[str] = []
        """Code that was sent from here and has not begun."""
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve the terminal until the user leaves or the session ends. Return the exit code."""
        info = await self._session.info()
        self._cells = info.execution_count
        first = await self._session.first_event(max(1, self._cells - CELLS_SHOWN + 1)) if self._cells else 1
        show(f"attached to {info.session_id} ({info.state}); Ctrl-C interrupts, Ctrl-D detaches, name? explains")
        with patch_stdout(raw=True):
            watching = asyncio.create_task(self._watch(first))
            try:
                await self._read()
            finally:
                watching.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(watching, *self._tasks, return_exceptions=True)
        show(self._farewell(info.session_id))
        return 1 if self._ended else 0

    def _farewell(self, name: str) -> str:
        if self._ended:
            return f"session {name} has ended"
        goes_on = ", which goes on" if self._running is None else f"; cell {self._running} continues"
        return f"detached from {name}{goes_on}; come back with `ingle attach {name}`"

    # --- what is entered ---

    def _message(self) -> str:
        open_line = self._screen.open_line
        if self._waiting is not None:
            return open_line or self._waiting.prompt
        above = f"{open_line}\n" if open_line else ""
        if self._running is not None:
            return f"{above}[cell {self._running} runs] "
        return f"{above}In [{self._cells + 1}]: "

    async def _read(self) -> None:
        while not self._ended:
            try:
                text = await self._editor.read()
            except EOFError:
                return
            if self._waiting is not None:
                self._screen.open_line = ""
                self._waiting = None
                self._begin(self._session.input(text, wait=0))
            elif text.strip() in DETACH:
                return
            elif (wanted := help_wanted(text)) is not None:
                self._begin(self._explain(*wanted))
            elif text.strip():
                code = text.rstrip()
                self._sent.append(code)
                self._begin(self._execute(code))
            if self._postponed is not None:
                self._waiting, self._postponed = self._postponed, None

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(self._told(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except IngleError as error:
            show(f"ingle: {error.message}")

    async def _execute(self, code: str) -> None:
        try:
            await self._session.run(code, queue=True, wait=0)
        except IngleError:
            self._sent.remove(code)
            raise

    async def _explain(self, name: str, source: bool) -> None:
        show(colours_only(explanation(await self._session.inspect(name, source=source), name)))

    def _interrupt(self) -> bool:
        if self._running is None:
            return False
        self._waiting = None
        self._begin(self._session.interrupt(wait=0))
        return True

    # --- what happens in the session ---

    async def _watch(self, first: int) -> None:
        try:
            async for event in self._session.events(first):
                await self._show(event)
            self._ended = True
        except IngleError as error:
            show(f"ingle: {error.message}")
            self._ended = True
        self._editor.leave()

    async def _show(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            self._change(event)
        elif isinstance(event, InputWanted):
            self._ask(event)
        elif isinstance(event, Done):
            self._running = self._waiting = self._postponed = None
        text = await self._screen.text(event, own=event.cell in self._own)
        if text:
            show(text, end="")
        self._editor.refresh()

    def _ask(self, event: InputWanted) -> None:
        """Take the next text as the answer, unless the user is typing code just now."""
        if self._editor.is_empty:
            self._waiting = event
        else:
            self._postponed = event
            show(f"ingle: cell {event.cell} waits for input; send your code first, and answer then")

    def _change(self, event: StateChanged) -> None:
        if event.state == "running" and event.cell is not None:
            self._running, self._cells = event.cell, max(self._cells, event.cell)
            self._waiting = self._postponed = None
            mine = event.author is not None and event.author.client == NAME
            if mine and event.code is not None and event.code in self._sent:
                self._sent.remove(event.code)
                self._own.add(event.cell)


def explanation(found: Inspection, name: str) -> str:
    """Return the description of an object as text."""
    if not found.found:
        return "\n".join([f"ingle: there is no {name}", *found.notices])
    lines = [f"{found.name}{found.signature}", f"type: {found.type}"]
    if found.preview:
        lines.append(f"value: {found.preview}")
    if found.shape is not None:
        lines.append(f"shape: {tuple(found.shape)}")
    if found.doc:
        lines += ["", found.doc.strip()]
    if found.source:
        lines += ["", found.source.rstrip()]
    return "\n".join([*lines, *found.notices])
