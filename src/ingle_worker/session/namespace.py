"""Preparation of a session's namespace: loading the user's library and clearing everything.

Both run user code (the library, finalizers, cancelled tasks), so both can be interrupted. Steps that did not finish are
reported, and the session continues.
"""

import builtins
import gc
import os
import sys
import types
from collections.abc import Callable

from ingle_worker.session import traceback_text, user_library
from ingle_worker.session.compiler import SYNTAX_ERRORS, Compiler
from ingle_worker.session.event_loop import EventLoop
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


class NamespaceRequests:
    def __init__(
        self,
        link: Link,
        interrupts: Interrupts,
        main: types.ModuleType,
        reset_main: Callable[[], None],
        event_loop: EventLoop,
        compiler: Compiler,
    ) -> None:
        self._link = link
        self._interrupts = interrupts
        self._main = main
        self._reset_main = reset_main
        self._event_loop = event_loop
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
            library.set_source(user_library.decoded(text), code)
        except SYNTAX_ERRORS as exc:
            self._link.send(StdlibLoaded(user_library.problem_of(exc)))
            return
        if not code:
            # Before any of it runs: user code must not touch code that other sessions will load.
            self._link.send(StdlibCompiled(library.code))
        problem = self._run_interruptible(self._run_library)[0] if run else ""
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
            described = user_library.describe(source)
        except user_library.Refused as exc:
            self._link.send(StdlibDescribed(problem=str(exc)))
            return
        except SYNTAX_ERRORS as exc:
            self._link.send(StdlibDescribed(problem=user_library.problem_of(exc)))
            return
        text_now = data if addition else b""
        self._link.send(StdlibDescribed(**described, added=added, replaced=replaced, data=text_now))
        if addition:
            self._load(data, b"")

    def _names(self) -> list[str]:
        """Return the current variables."""
        return sorted(
            name for name in library.other_names(vars(self._main)) if type(name) is str and not name.startswith("_")
        )

    # --- clearing ---

    def _clear(self) -> None:
        notices: list[str] = []
        for what, step in (
            ("tasks of the event loop", self._event_loop.drop),
            ("finalizers", self._forget),
            ("the user's library", self._run_library if library.loaded else str),
        ):
            problem, lost = self._run_interruptible(step)
            if problem and what == "the user's library":
                notices.append(f"the user's library was loaded only in part: {problem}")
            elif lost:
                notices.append(f"{what}: {problem}")
        self._link.send(Cleared(notices, self._names()))

    def _forget(self) -> str:
        """Drop all names with the objects that only they reference, and all records of cells."""
        self._compiler.flags = 0
        traceback_text.forget_sources()
        provenance.forget()
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        if hasattr(builtins, "_"):
            del builtins._
        library.own.clear()
        # Data first, so that finalizers still find the modules and functions they use.
        space = vars(self._main)
        for name in [name for name, value in list(space.items()) if not isinstance(value, user_library.UNLISTED_TYPES)]:
            if name != "__builtins__":
                space.pop(name, None)
        gc.collect()
        self._reset_main()
        gc.collect()
        return ""

    def _run_interruptible(self, step: Callable[[], str]) -> "tuple[str, bool]":
        """Run a step that may call user code. Return the problem, and whether it was interrupted."""
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
        except BaseException as exc:  # user code
            problem = user_library.problem_of(exc)
        if os.getpid() != me:
            os._exit(1)  # a process that user code forked came back here
        return problem, stopped
