"""A session's namespace, made ready: the user's library loaded into it, and everything cleared out of it again.

Both run code of the user's (the library, finalizers, tasks that are cancelled), so both can be interrupted; what was
not done by then is told, and the session goes on.
"""

import builtins
import gc
import os
import sys
import types
from collections.abc import Callable

from ingle_worker.session import traceback_text, user_library
from ingle_worker.session.compiler import SYNTAX_ERRORS, Compiler
from ingle_worker.session.event_loop import Looping
from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link
from ingle_worker.session.user_library import library
from ingle_worker.snapshot import provenance
from ingle_worker.wire.messages import (
    PREPARING,
    Clear,
    Cleared,
    EditStdlib,
    LoadStdlib,
    StdlibCompiled,
    StdlibDescribed,
    StdlibLoaded,
)

TOO_LONG = "it took too long and was stopped"


class Preparing:
    def __init__(
        self,
        link: Link,
        interrupts: Interrupts,
        main: types.ModuleType,
        reset_main: Callable[[], None],
        looping: Looping,
        compiler: Compiler,
    ) -> None:
        self._link = link
        self._interrupts = interrupts
        self._main = main
        self._reset_main = reset_main
        self._looping = looping
        self._compiler = compiler

    def answer(self, message: "LoadStdlib | EditStdlib | Clear") -> None:
        if isinstance(message, LoadStdlib):
            end = len(message.data) - message.code
            self._load(message.data[:end], message.data[end:], message.run)
        elif isinstance(message, EditStdlib):
            self._edit(message.data, message.addition)
        else:
            self._clear()

    # --- the library ---

    def _load(self, text: bytes, code: bytes, run: bool = True) -> None:
        try:
            library.take(user_library.decoded(text), code)
        except SYNTAX_ERRORS as exc:
            self._link.send(StdlibLoaded(user_library.problem_of(exc)))
            return
        if not code:
            # Before any of it runs: what is lent to other sessions is nothing that user code had in its hands.
            self._link.send(StdlibCompiled(library.code))
        problem = self._attempt(self._run_library)[0] if run else ""
        self._link.send(StdlibLoaded(problem, self._names()))

    def _run_library(self) -> str:
        return library.run(vars(self._main))

    def _edit(self, text: bytes, addition: str) -> None:
        added: list[str] = []
        replaced: list[str] = []
        data = text
        try:
            source = user_library.decoded(text)
            if addition:
                source, added, replaced = user_library.merged(source, addition)
                data = source.encode()
            told = user_library.describe(source)
        except user_library.Refused as exc:
            self._link.send(StdlibDescribed(problem=str(exc)))
            return
        except SYNTAX_ERRORS as exc:
            self._link.send(StdlibDescribed(problem=user_library.problem_of(exc)))
            return
        text_now = data if addition else b""
        self._link.send(StdlibDescribed(**told, added=added, replaced=replaced, data=text_now))
        if addition:
            self._load(data, b"")

    def _names(self) -> list[str]:
        """The variables that there are now."""
        return sorted(
            name for name in library.other_names(vars(self._main)) if type(name) is str and not name.startswith("_")
        )

    # --- clearing ---

    def _clear(self) -> None:
        notices: list[str] = []
        for what, step in (
            ("tasks of the event loop", self._looping.drop),
            ("finalizers", self._forget),
            ("the user's library", self._run_library if library.loaded else str),
        ):
            problem, lost = self._attempt(step)
            if problem and what == "the user's library":
                notices.append(f"the user's library is not whole: {problem}")
            elif lost:
                notices.append(f"{what}: {problem}")
        self._link.send(Cleared(notices, self._names()))

    def _forget(self) -> str:
        """Drop all names, with what only they kept alive, and what remembers cells."""
        self._compiler.flags = 0
        traceback_text.forget_sources()
        provenance.forget()
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        if hasattr(builtins, "_"):
            del builtins._
        library.own.clear()
        # Data first: finalizers still find the modules and functions they use.
        space = vars(self._main)
        for name in [name for name, value in list(space.items()) if not isinstance(value, user_library.HIDDEN)]:
            if name != "__builtins__":
                space.pop(name, None)
        gc.collect()
        self._reset_main()
        gc.collect()
        return ""

    def _attempt(self, step: Callable[[], str]) -> "tuple[str, bool]":
        """Do what may run the user's code: what went wrong, and whether it was stopped."""
        me = os.getpid()
        problem, stopped = "", False
        try:
            try:
                self._interrupts.cell_begins(PREPARING)
                problem = step()
            finally:
                self._interrupts.cell_ended()
        except KeyboardInterrupt:
            self._interrupts.cell_ended()
            problem, stopped = TOO_LONG, True
        except BaseException as exc:  # the border to the user's code
            problem = user_library.problem_of(exc)
        if os.getpid() != me:
            os._exit(1)  # a process that it forked, and that came back here
        return problem, stopped
