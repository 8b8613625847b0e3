"""The worker: the process of one session, and its cell loop in the main thread.

It reads a message, carries it out and answers. It has no thread of its own and keeps its helpers out of the user's
globals. It survives changes of builtins, modules and streams by a cell. Other failures end the process, and the host
reports them.
"""

import _frozen_importlib
import builtins
import faulthandler
import fcntl
import json
import linecache
import os
import platform
import random  # noqa: F401  reseeds itself in every fork, also if the user never imports it
import select
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

from ingle_worker.display import hook
from ingle_worker.introspection.requests import QUESTIONS, NamespaceQuestions
from ingle_worker.magics import packages
from ingle_worker.magics.program import Program
from ingle_worker.session import shutdown, traceback_text
from ingle_worker.session.compiler import Compiled, Compiler
from ingle_worker.session.evaluate import Evaluator, Outcome, describe_safely
from ingle_worker.session.event_loop import EventLoop
from ingle_worker.session.input_stream import Input
from ingle_worker.session.interrupts import Interrupts, slot_words
from ingle_worker.session.link import Link, WireLost
from ingle_worker.session.live_copy import LiveCopies
from ingle_worker.session.namespace import NamespaceRequests
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.session.rehearsal import Rehearsal
from ingle_worker.session.user_library import library
from ingle_worker.snapshot import provenance
from ingle_worker.snapshot.protocol import SnapshotRequests
from ingle_worker.tools import module as tools_module
from ingle_worker.trees.open_files import working_directory
from ingle_worker.wire import child_variables, states
from ingle_worker.wire.constants import FAILED_EXIT_CODE
from ingle_worker.wire.messages import (
    Clear,
    Compare,
    Done,
    EditStdlib,
    Execute,
    Exiting,
    ForkSelf,
    Load,
    LoadStdlib,
    NoteFiles,
    Raised,
    Ready,
    Rehome,
    Reopen,
    Save,
    Shutdown,
    Start,
    Started,
)

VERSION = platform.python_version()
HIGH_FD = 100
"""The wire's descriptor is at least this, so that the first file a user opens has number 3, as usual."""

MAX_EXIT_MESSAGE = 100_000
"""Characters of the exit message sent to the host. All of it is written to stderr."""

ANNOTATIONS: dict[str, Any] = {} if sys.version_info >= (3, 14) else {"__annotations__": {}}


def _place_descriptors(fds: list[int]) -> int:
    """Put the streams on 0, 1, 2 and the wire on a high number. Return that number."""
    wire = fcntl.fcntl(fds[3], fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(fds[3])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number, inheritable=True)
    for fd in fds[:3]:
        if fd > 2:
            os.close(fd)
    return wire


class Worker:
    """One session's process. It is created in the zygote, and `run` is its main loop in the fork."""

    def __init__(self) -> None:
        self._pid = -1
        self._interrupts = Interrupts()
        self.link = Link(self._interrupts)
        self._output = OutputStreams(self.link)
        self._input = Input(self.link, self._output, self._interrupts)
        self._standard: tuple[tuple[str, Any], ...] = (
            ("stdin", self._input.text),
            ("stdout", self._output.stdout),
            ("stderr", self._output.stderr),
        )
        self._event_loop = EventLoop(self._interrupts)
        self._compiler = Compiler()
        self._cell = 0
        self._display = hook.DisplayHook(self.link, self._output)
        self._input.before_wait = self._display.input_waits
        self._main = types.ModuleType("__main__")
        self._reset_main()
        self._first_names = frozenset(vars(self._main))
        self._names = set(self._first_names)
        """Names that the host knows of. Each cell reports the changes."""
        self._questions = NamespaceQuestions(self.link, self._interrupts, self._main, self._compiler)
        self._namespace = NamespaceRequests(
            self.link, self._interrupts, self._main, self._reset_main, self._event_loop, self._compiler
        )
        self._evaluator = Evaluator(
            self._main, self._compiler, self._event_loop, self._interrupts, self._output, self._display.figures
        )
        self._snapshots = SnapshotRequests(self.link, self._main, self._compiler, self._evaluator.run)
        self._stream_copies: dict[int, int] = {}
        self.copies = LiveCopies(
            self.link, self._interrupts, self._output, self._input, self._event_loop, self._stream_copies, self._main
        )
        self._inherited: dict[str, int] = {}
        """Names that a copy inherited, with the ids of their objects. They are left alone when it ends."""
        self.before_start: Callable[[Start], None] | None = None
        """Called before the session has its folder, to confine the process or to wait for its mounts."""
        # Polls for no event, so it reports only closed descriptors and hang-ups, which are ignored.
        self._streams = select.poll()

    def _reset_main(self) -> None:
        self._main.__dict__.clear()
        self._main.__dict__.update(
            __name__="__main__",
            __doc__=None,
            __package__=None,
            __loader__=_frozen_importlib.BuiltinImporter,
            __spec__=None,
            **{name: type(value)() for name, value in ANNOTATIONS.items()},
            __builtins__=builtins,
        )

    def prepare(self) -> None:
        """Do all work that does not depend on the process, once in the zygote before any fork."""
        traceback_text.install()
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        self._interrupts.install()
        sys.stdout = sys.__stdout__ = self._output.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._output.stderr  # type: ignore[misc]
        self._output.install()
        self._input.install()
        self._display.install()
        tools_module.install(self.link, self._interrupts, self._output)
        sys.displayhook = self._display.hook
        # A reference keeps the module that started this process, or its globals would be cleared.
        self._booted_by = sys.modules["__main__"]
        sys.modules["__main__"] = self._main
        faulthandler.enable(2, all_threads=False)
        os.register_at_fork(after_in_child=self._forked)
        for number in (0, 1, 2):
            self._streams.register(number, 0)
        os.environ.update(child_variables.of_interpreter(sys.executable, os.environ))
        self._snapshots.record_environment()
        Rehearsal(self).run()

    def forget(self, path: list[str], tmp: str | None) -> None:
        """Undo `start` and all cells of a rehearsal, and restore `sys.path` and TMPDIR."""
        sys.path[:] = path
        _set_environment({"TMPDIR": tmp})
        for copy in self._stream_copies.values():
            os.close(copy)
        self._stream_copies.clear()
        self._output.stdout.pipe, self._output.stderr.pipe = 1, 2
        self._cell = 0
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        if hasattr(builtins, "_"):
            del builtins._
        linecache.clearcache()
        provenance.forget()
        self._output.forget()
        self._names = set(self._first_names)
        self._reset_main()

    def run(self, fds: list[int], shared: memoryview, *, pooled: bool) -> None:
        """Become a session on these descriptors: stdin, stdout, stderr, wire. Never returns.

        A pooled worker rehearses first, so that the pages of its first cell are copied before a client waits.
        """
        os.setsid()
        self.attach(fds, shared)
        if pooled:
            Rehearsal(self).run_in_pool()
        self.report_ready()
        try:
            self.serve()
        except WireLost:
            os._exit(FAILED_EXIT_CODE)
        except BaseException as exc:  # the worker loop: report a failure of the guest itself before the exit
            raised = traceback_text.bare(exc)
            os.write(2, f"the session failed: {raised.name}: {raised.value}\n".encode("utf-8", "backslashreplace"))
            os._exit(FAILED_EXIT_CODE)

    def attach(self, fds: list[int], shared: memoryview) -> None:
        """Take over the descriptors of a session and a slot in init's memory."""
        self._interrupts.publish_to(slot_words(shared, 0))
        self.copies.publish_to(shared)
        self._pid = os.getpid()
        self.link.attach(_place_descriptors(fds))

    def detach(self) -> None:
        """Undo `attach`, in the zygote."""
        self.link.detach()
        self._interrupts.abandon()
        self._pid = -1

    def report_ready(self) -> None:
        self.link.send(Ready(self._pid, VERSION, sys.executable))

    def _forked(self) -> None:
        """Release the wire in every process that user code forks: it is not the session."""
        if self.copies.is_forking():
            self.copies.forked()
        elif self._pid not in (-1, os.getpid()):
            self.link.abandon()
            self._interrupts.abandon()
            self._input.forked()

    # --- the loop ---

    def serve(self) -> None:
        """Carry out messages until the host closes the wire."""
        while True:
            message = self._next()
            if not self.copies.settled:
                self.copies.settle()
            if isinstance(message, QUESTIONS):
                self._questions.answer(message)
                continue
            match message:
                case Execute():
                    self.execute(message)
                case Start():
                    if self.before_start is not None:
                        self.before_start(message)
                        self.before_start = None
                    self.start(message)
                case LoadStdlib() | EditStdlib() | Clear():
                    self._namespace.answer(message)
                    self._names = set(self._first_names)  # the next cell reports all names
                case ForkSelf():
                    self._fork(message)
                case Save():
                    self._snapshots.save(message, self.copies.running)
                case Compare():
                    self._snapshots.compare(message, self.copies.running)
                case Load():
                    self._snapshots.load(message)
                    self._names = set(self._first_names)
                case Rehome():
                    self.copies.rehome(message)
                    self._inherited = {name: id(value) for name, value in vars(self._main).items()}
                case NoteFiles():
                    self.copies.files.note(message.folder, message.more)
                    self.link.send(Started(working_directory()))
                case Reopen():
                    notices = self.copies.reopen(message.source, message.target)
                    self.link.send(Started(working_directory(), notices))
                case Shutdown():
                    shutdown.finish(self._main, self._event_loop, self._inherited)
                    os._exit(0)

    def _fork(self, order: ForkSelf) -> None:
        """Make live copies. A copy continues in the same loop."""
        try:
            is_copy = self.copies.fork(order)
        except WireLost:
            raise
        except BaseException as exc:  # a signal handler of the user raised, as at any prompt
            self._show_error(exc)
            return
        if is_copy:
            self._pid = os.getpid()
            self.report_ready()

    def _next(self) -> Any:
        """Wait for the next message while the event loop runs, if there is one.

        A signal handler of the user may raise here, as at any prompt. The error is shown and the wait continues.
        """
        link, event_loop = self.link, self._event_loop
        while not link.received:
            try:
                if event_loop.loop is not None and event_loop.exists:
                    event_loop.idle(link)
                return link.receive()
            except WireLost:
                raise
            except BaseException as exc:
                if isinstance(exc, (OSError, ValueError)):  # user code closed the descriptor
                    raise WireLost(str(exc)) from None
                self._show_error(exc)
        return self.link.receive()

    def _show_error(self, exc: BaseException) -> None:
        try:
            self._output.stderr.write(traceback_text.describe(exc).traceback)
        except Exception:  # user code: an object it left behind must not end the session
            return

    def start(self, start: Start) -> None:
        """Set up folders, environment and streams of the session."""
        notices = []
        own = dict(start.env)
        if "PATH" in own:
            own |= child_variables.of_interpreter(sys.executable, own)
        os.environ.update(own)
        for folder in start.folders:
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
        os.environ["TMPDIR"] = start.tmp
        tempfile.tempdir = None
        try:
            os.chdir(start.cwd)
        except OSError as error:
            notices.append(f"the session could not start in {start.cwd} ({error}); it is in {os.getcwd()}")
        if self._stream_copies:
            sys.path.remove("")  # an earlier Start added it
        packages.start(start.packages)
        sys.path.insert(0, "")
        if not self._stream_copies:
            for number in (0, 1, 2):
                self._stream_copies[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
            self._output.stdout.pipe, self._output.stderr.pipe = self._stream_copies[1], self._stream_copies[2]
        cwd = os.getcwd()
        self._snapshots.begin(own, cwd, start.own)
        self.link.send(Started(cwd, notices))

    # --- a cell ---

    def execute(self, execute: Execute) -> None:
        """Run one cell and report its end."""
        cell = execute.cell
        self.copies.files.forget()
        filename = execute.file or f"<cell {cell}>"
        notices = self._repair()
        program: Program | None = None
        if execute.argv:
            folder = execute.file.rpartition("/")[0]
            program = Program(vars(self._main), execute.argv, execute.file, folder)
        restore = _set_environment(execute.envs) if execute.envs else {}
        outcome = Outcome()
        self._cell = cell
        self._output.has_tasks = self._event_loop.loop is not None and self._event_loop.exists
        self._output.cell_begins(cell)
        compiled: Compiled | None = None
        began = time.perf_counter()
        try:
            try:
                self._interrupts.cell_begins(cell)
                if not execute.item or self._take_item(execute.item, outcome):
                    compiled = self._evaluator.evaluate(execute.code, filename, outcome)
            finally:
                self._interrupts.cell_ended()
        except KeyboardInterrupt as exc:
            # It came between the end of the cell's code and cell_ended(). A finished cell keeps its outcome.
            self._interrupts.cell_ended()
            if not outcome.finished:
                outcome.status, outcome.error = states.INTERRUPTED, describe_safely(exc)
        took = time.perf_counter() - began
        self._questions.failure = outcome.exception
        if os.getpid() != self._pid:
            # A process forked by the cell returned from it. The session continues in its parent.
            self._leave_fork(outcome)
        if restore:
            _set_environment(restore)
        if program is not None:
            program.restore()
            self._end_program(outcome)
        if outcome.exit is not None:
            self._exit(cell, outcome.exit, took)
        self._finish(cell, outcome, took, notices)
        # After the answer, so that nobody waits for this.
        if compiled is None or (outcome.status == states.OK and not compiled.lasting):
            traceback_text.forget_source(filename)
        # A program cannot be run again without its arguments.
        if compiled is not None and program is None:
            provenance.note(filename, execute.code, outcome.status == states.OK)

    def _take_item(self, item: str, outcome: Outcome) -> bool:
        """Set the variable `item`. Return False if its JSON cannot be decoded."""
        try:
            vars(self._main)["item"] = json.loads(item)
        except (ValueError, RecursionError) as exc:
            outcome.status, outcome.error = states.ERROR, describe_safely(exc)
            return False
        return True

    def _end_program(self, outcome: Outcome) -> None:
        """Turn a SystemExit into the end of the program alone: success, or an error with the exit code."""
        if outcome.exit is None:
            return
        code, message = shutdown.exit_code(outcome.exit)
        outcome.status = states.ERROR if code else states.OK
        if code:
            if message is not None:
                self._output.stderr.write(message + "\n")
            described = describe_safely(outcome.exit)
            outcome.error = Raised("SystemExit", str(code), described.traceback)
        outcome.exit = None

    def _leave_fork(self, outcome: Outcome) -> None:
        code = 0 if outcome.status == states.OK else 1
        if outcome.exit is not None:
            code, message = shutdown.exit_code(outcome.exit)
            if message is not None:
                self._output.stderr.write(message + "\n")
        elif outcome.error is not None:
            self._output.stderr.write(outcome.error.traceback)
        os._exit(code)

    def _finish(self, cell: int, outcome: Outcome, took: float, notices: list[str]) -> None:
        crowded = self._output.cell_ended()
        dropped = self._input.cell_ended()
        names: Any = vars(self._main).keys()
        if library.own:
            names = library.other_names(vars(self._main))
        added: list[str] = []
        removed: list[str] = []
        if names != self._names:
            try:
                added = sorted(name for name in names - self._names if type(name) is str)
                removed = sorted(self._names - names)
                self._names = {name for name in names if type(name) is str}
            except RuntimeError:  # a user's thread defines names meanwhile, so the next cell reports them
                pass
        value, self._display.value = self._display.value, None
        if self._display.notices:
            notices += self._display.take_notices()
        self.link.send(
            Done(
                cell,
                outcome.status,
                took,
                value,
                outcome.error,
                outcome.needs_more_input,
                dropped,
                crowded,
                added,
                removed,
                notices,
            )
        )

    def _repair(self) -> list[str]:
        """Restore what the next cell needs, and return notices of it."""
        space = vars(self._main)
        if not isinstance(space.get("__builtins__"), (types.ModuleType, dict)):
            space["__builtins__"] = builtins
        notices = []
        for number, event in self._streams.poll(0):
            if event & select.POLLNVAL:
                os.dup2(self._stream_copies[number], number, inheritable=True)
                notices.append(f"descriptor {number} had been closed and was opened again")
        for name, stream in self._standard:
            current = getattr(sys, name, None)
            if current is not stream and (current is None or getattr(current, "closed", False) is True):
                setattr(sys, name, stream)
                notices.append(f"sys.{name} was closed or None and was put back")
        return notices

    def _exit(self, cell: int, exc: SystemExit, took: float) -> None:
        """Report the exit, run exit handlers and finalizers, and end the process."""
        code, message = shutdown.exit_code(exc)
        self._display.send_value()
        self.link.send(Exiting(cell, code, message and message[:MAX_EXIT_MESSAGE], took))
        if message is not None:
            self._output.stderr.write(message + "\n")
        shutdown.finish(self._main, self._event_loop, self._inherited)
        os._exit(code)


def _set_environment(envs: dict[str, Any]) -> dict[str, Any]:
    """Set these variables, or remove those that are None. Return the arguments that undo it."""
    before = {}
    for name, value in envs.items():
        before[name] = os.environ.get(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before
