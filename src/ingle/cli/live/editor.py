"""Editor of the prompt: several lines, highlighting, completion from live objects, history, and its keys."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import DynamicLexer, Lexer, PygmentsLexer
from prompt_toolkit.styles import style_from_pygments_cls
from pygments.lexers.python import PythonLexer
from pygments.styles import get_style_by_name

from ingle.cli.live.code_entry import INDENT, is_whole, next_indent
from ingle.client import AsyncSession
from ingle.errors import IngleError

STYLE = "default"

HISTORY = "attach_history"
"""File in the data folder with the code that was entered."""


class SessionCompleter(Completer):
    """Completes names by the live objects of the session."""

    def __init__(self, session: AsyncSession, answering: Callable[[], bool]) -> None:
        self._session = session
        self._answering = answering

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return []

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        if self._answering():
            return
        try:
            found = await self._session.complete(document.text, document.cursor_position)
        except IngleError:
            return
        for each in found.matches:
            start = found.cursor_start - document.cursor_position
            yield Completion(each.text, start_position=start, display_meta=each.type)


class CodeHistory(FileHistory):
    """History of code. Answers to a cell are not kept: they may be secret."""

    def __init__(self, file: Path, answering: Callable[[], bool]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        super().__init__(str(file))
        self._answering = answering

    def append_string(self, string: str) -> None:
        if not self._answering():
            super().append_string(string)


class Editor:
    def __init__(
        self,
        session: AsyncSession,
        home: Path,
        *,
        message: Callable[[], str],
        answering: Callable[[], bool],
        secret: Callable[[], bool],
        on_interrupt: Callable[[], bool],
    ) -> None:
        """`answering` tells whether the text is an answer to a cell. `on_interrupt` returns whether a cell ran."""
        self._answering = answering
        self._on_interrupt = on_interrupt
        python: Lexer = PygmentsLexer(PythonLexer)
        # The first prompt reads the colours; NO_COLOR is prompt_toolkit's to heed.
        self._prompt: PromptSession[str] = PromptSession(
            message=lambda: ANSI(message()),
            multiline=True,
            lexer=DynamicLexer(lambda: None if answering() else python),
            style=style_from_pygments_cls(get_style_by_name(STYLE)),
            completer=SessionCompleter(session, answering),
            complete_while_typing=False,
            history=CodeHistory(home / HISTORY, answering),
            is_password=Condition(secret),
            key_bindings=self._bindings(),
            prompt_continuation=lambda width, line, soft: " " * max(0, width - 4) + "... ",
            include_default_pygments_style=False,
        )

    async def read(self) -> str:
        """Return what was entered. Raise EOFError after Ctrl-D."""
        return await self._prompt.prompt_async(handle_sigint=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is typed at the prompt."""
        return not self._prompt.default_buffer.text

    def refresh(self) -> None:
        """Draw the prompt again, because its message may have changed."""
        if self._prompt.app.is_running:
            self._prompt.app.invalidate()

    def leave(self) -> None:
        """End the prompt as Ctrl-D does."""
        if self._prompt.app.is_running:
            self._prompt.app.exit(exception=EOFError)

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
                buffer.complete_state = None
                return
            document = buffer.document
            last_line = document.is_cursor_at_the_end or document.on_last_line
            if self._answering() or (last_line and is_whole(document.text)):
                buffer.validate_and_handle()
            else:
                buffer.insert_text("\n" + next_indent(document.current_line_before_cursor))

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("tab")
        def complete(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state is not None:
                buffer.complete_next()
            elif not buffer.document.current_line_before_cursor.strip():
                buffer.insert_text(INDENT)
            else:
                buffer.start_completion(insert_common_part=True)

        @keys.add("c-c")
        def interrupt(event: KeyPressEvent) -> None:
            if not self._on_interrupt():
                event.current_buffer.reset()

        @keys.add("c-d")
        def detach(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.delete()
            else:
                event.app.exit(exception=EOFError)

        return keys
