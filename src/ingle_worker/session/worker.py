"""The worker: one process that is one session, and its cell loop in the main thread.

It reads a message from the wire, does what it says, and answers. It has no thread of its own, keeps its helpers out of
the user's globals, and survives what a cell does to builtins, modules and streams; what it cannot survive ends
the process, and the host says so.
"""

import _frozen_importlib
import _socket
import builtins
import faulthandler
import fcntl
import linecache
import os
import platform
import random  # noqa: F401  has itself reseeded in every fork, also where the user never imports it
import select
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

from ingle_worker.display import hook
from ingle_worker.magics import packages
from ingle_worker.session import shutdown, traceback_text
from ingle_worker.session.compiler import Compiled, Compiler
from ingle_worker.session.evaluate import Evaluating, Outcome, describe_safely
from ingle_worker.session.event_loop import Looping
from ingle_worker.session.input_stream import Input
from ingle_worker.session.interrupts import Interrupts, slot_words
from ingle_worker.session.link import Link, WireLost
from ingle_worker.session.live_copy import Copying
from ingle_worker.session.namespace import Preparing
from ingle_worker.session.output_streams import Channel
from ingle_worker.session.user_library import library
from ingle_worker.session.variables import Inquiries
from ingle_worker.snapshot import provenance
from ingle_worker.snapshot.protocol import SnapshotRequests
from ingle_worker.wire import states
from ingle_worker.wire.constants import FAILED_EXIT_CODE
from ingle_worker.wire.messages import (
    AskVariable,
    Clear,
    Done,
    EditStdlib,
    Execute,
    Exiting,
    ForkSelf,
    ListVariables,
    Load,
    LoadStdlib,
    Ready,
    Rehome,
    Save,
    Shutdown,
    Start,
    Started,
    encode,
)

VERSION = platform.python_version()
PACKETS = _socket.SOCK_SEQPACKET if sys.platform == "linux" else _socket.SOCK_STREAM
HIGH_FD = 100
"""The wire's descriptor lies from here on, so that the first file a user opens is number 3, as anywhere."""

MAX_EXIT_MESSAGE = 100_000
"""Characters that are told beside the exit itself; all of it is written to stderr."""

ANNOTATIONS: dict[str, Any] = {} if sys.version_info >= (3, 14) else {"__annotations__": {}}


REHEARSAL = (
    "x = 1",
    "print(x)",
    "1 + 1",
    "1 / 0",
    "def f(: pass",
    "for i in range(2):\n    f'{i}'",
    "class R:\n    def _repr_html_(self): return '<b>'\ndisplay(R(), display_id='r')\nR()",
)
"""Cells that the zygote runs before any fork: what they load and specialise is then shared by all sessions."""

FIRST_STEPS = REHEARSAL[:3]
"""Cells that a worker in the pool runs for itself. What they touch it no longer shares, so they are few: what most
first cells do."""


def _place(fds: list[int]) -> int:
    """Put the streams on 0, 1, 2 and the wire high up; close what was there. The wire's new number."""
    wire = fcntl.fcntl(fds[3], fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(fds[3])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number, inheritable=True)
    for fd in fds[:3]:
        if fd > 2:
            os.close(fd)
    return wire


class Worker:
    """One session's process: made and rehearsed in the zygote, alive from `run` on."""

    def __init__(self) -> None:
        self._pid = -1
        self._interrupts = Interrupts()
        self._link = Link(self._interrupts)
        self._channel = Channel(self._link)
        self._input = Input(self._link, self._channel, self._interrupts)
        self._standard: tuple[tuple[str, Any], ...] = (
            ("stdin", self._input.text),
            ("stdout", self._channel.stdout),
            ("stderr", self._channel.stderr),
        )
        self._looping = Looping(self._interrupts)
        self._compiler = Compiler()
        self._cell = 0
        self._display = hook.DisplayHook(self._link, self._channel)
        self._input.before_wait = self._display.figures.input_waits
        self._main = types.ModuleType("__main__")
        self._reset_main()
        self._first_names = frozenset(vars(self._main))
        self._names = set(self._first_names)
        """Those that the host knows of; it is told what is new and what is gone."""
        self._inquiries = Inquiries(self._link, self._interrupts, self._main)
        self._preparing = Preparing(
            self._link, self._interrupts, self._main, self._reset_main, self._looping, self._compiler
        )
        self._evaluating = Evaluating(
            self._main, self._compiler, self._looping, self._interrupts, self._channel, self._display.figures
        )
        self._keeping = SnapshotRequests(self._link, self._main, self._compiler, self._evaluating.run)
        self._spares: dict[int, int] = {}
        self._copying = Copying(self._link, self._interrupts, self._channel, self._input, self._looping, self._spares)
        self._inherited: dict[str, int] = {}
        """The names that a copy came with, and what they stood for: left alone when it ends."""
        self.before_start: Callable[[Start], None] | None = None
        """What has to be done, or to be waited for, before the session has its folder."""
        # Asks for no event, so it tells of closed descriptors only (and of a hang-up, which is none of its business).
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
        """In the zygote, before any fork: whatever does not depend on the process is done once, for all."""
        traceback_text.install()
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        self._interrupts.install()
        sys.stdout = sys.__stdout__ = self._channel.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._channel.stderr  # type: ignore[misc]
        self._channel.install()
        self._input.install()
        self._display.install()
        sys.displayhook = self._display.hook
        # The module that started this process must stay alive, or its globals would be cleared under us.
        self._booted_by = sys.modules["__main__"]
        sys.modules["__main__"] = self._main
        faulthandler.enable(2, all_threads=False)
        os.register_at_fork(after_in_child=self._forked)
        for number in (0, 1, 2):
            self._streams.register(number, 0)
        self._keeping.record_environment()
        self._rehearse_session()

    def _rehearse_session(self) -> None:
        """In the zygote: be a whole session, from its descriptors to the end of its wire, and forget it.

        What is looked up on this way is found again without writing anything down, so that sessions share it.
        """
        kept = [os.dup(number) for number in range(3)]
        nowhere = os.open(os.devnull, os.O_RDWR)
        host, wire = _socket.socketpair(_socket.AF_UNIX, PACKETS)
        host.send(encode(Start(os.getcwd(), "/", env={})))
        for cell, code in enumerate(REHEARSAL * 2, 1):
            host.send(encode(Execute(cell, code)))
        host.shutdown(_socket.SHUT_WR)
        path, tmp = sys.path.copy(), os.environ.get("TMPDIR")
        self._settle_in([*(os.dup(nowhere) for _ in range(3)), wire.detach()], memoryview(bytearray(64)).cast("q"))
        self._link.send(Ready(self._pid, VERSION, sys.executable))
        try:
            self._serve()
        except WireLost:
            pass
        self._link.detach()
        self._interrupts.abandon()
        self._unstart(path, tmp)
        self._forget_cells()
        self._pid = -1
        for number, fd in enumerate(kept):
            os.dup2(fd, number)
            os.close(fd)
        os.close(nowhere)
        host.close()

    def _rehearse(self, cells: tuple[str, ...]) -> None:
        """Run a few cells whose output goes nowhere, then forget them."""
        owner = self._link.mute()
        out = os.dup(1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        path, tmp = sys.path.copy(), os.environ.get("TMPDIR")
        self._start(Start(os.getcwd(), "/", env={}))
        for cell, code in enumerate(cells):
            self._execute(Execute(-cell, code))
        self._unstart(path, tmp)
        self._forget_cells()
        os.dup2(out, 1)
        os.close(out)
        os.close(nowhere)
        self._link.unmute(owner)

    def _unstart(self, path: list[str], tmp: str | None) -> None:
        """As if it had not been started."""
        sys.path[:] = path
        _set_environment({"TMPDIR": tmp})
        for spare in self._spares.values():
            os.close(spare)
        self._spares.clear()
        self._channel.stdout.pipe, self._channel.stderr.pipe = 1, 2

    def _forget_cells(self) -> None:
        """As if none had run."""
        self._cell = 0
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        if hasattr(builtins, "_"):
            del builtins._
        linecache.clearcache()
        provenance.forget()
        self._channel.forget()
        self._names = set(self._first_names)
        self._reset_main()

    def run(self, fds: list[int], shared: memoryview, *, spare: bool) -> None:
        """Become a session on these descriptors: stdin, stdout, stderr, wire. Never returns.

        A spare one, which goes to the pool, rehearses first: what its first cell would copy is copied then.
        """
        os.setsid()
        self._settle_in(fds, shared)
        if spare:
            self._rehearse(FIRST_STEPS)
        self._link.send(Ready(self._pid, VERSION, sys.executable))
        try:
            self._serve()
        except WireLost:
            os._exit(FAILED_EXIT_CODE)
        except BaseException as exc:  # the worker loop: what the guest itself trips over is said before it goes
            raised = traceback_text.bare(exc)
            os.write(2, f"the session broke: {raised.name}: {raised.value}\n".encode("utf-8", "backslashreplace"))
            os._exit(FAILED_EXIT_CODE)

    def _settle_in(self, fds: list[int], shared: memoryview) -> None:
        self._interrupts.publish_to(slot_words(shared, 0))
        self._copying.publish_to(shared)
        self._pid = os.getpid()
        self._link.attach(_place(fds))

    def _forked(self) -> None:
        """In every process that the user's code forks: it is not the session."""
        if self._copying.is_forking():
            self._copying.forked()
        elif self._pid not in (-1, os.getpid()):
            self._link.abandon()
            self._interrupts.abandon()

    # --- the loop ---

    def _serve(self) -> None:
        while True:
            message = self._next()
            if not self._copying.settled:
                self._copying.settle()
            if isinstance(message, Execute):
                self._execute(message)
            elif isinstance(message, Start):
                if self.before_start is not None:
                    self.before_start(message)
                    self.before_start = None
                self._start(message)
            elif isinstance(message, (ListVariables, AskVariable)):
                self._inquiries.answer(message)
            elif isinstance(message, (LoadStdlib, EditStdlib, Clear)):
                self._preparing.answer(message)
                self._names = set(self._first_names)  # the next cell tells all that there are
            elif isinstance(message, ForkSelf):
                self._fork(message)
            elif isinstance(message, Save):
                self._keeping.save(message, self._copying.running)
            elif isinstance(message, Load):
                self._keeping.load(message)
                self._names = set(self._first_names)
            elif isinstance(message, Rehome):
                self._copying.rehome(message)
                self._inherited = {name: id(value) for name, value in vars(self._main).items()}
            elif isinstance(message, Shutdown):
                shutdown.finish(self._main, self._looping, self._inherited)
                os._exit(0)

    def _fork(self, order: ForkSelf) -> None:
        """Make live copies. In a copy, the loop goes on where it was."""
        try:
            is_copy = self._copying.fork(order)
        except WireLost:
            raise
        except BaseException as exc:  # a signal handler of the user's raised, as at any prompt
            self._complain(exc)
            return
        if is_copy:
            self._pid = os.getpid()
            self._link.send(Ready(self._pid, VERSION, sys.executable))

    def _next(self) -> Any:
        """Wait for the next message, the event loop running if there is one.

        A signal handler of the user's may raise here, as at any prompt; that is shown and forgotten.
        """
        link, looping = self._link, self._looping
        while not link.received:
            try:
                if looping.loop is not None and looping.exists:
                    looping.idle(link.fd)
                return link.receive()
            except WireLost:
                raise
            except BaseException as exc:
                if isinstance(exc, (OSError, ValueError)):  # the descriptor is gone: code has closed it
                    raise WireLost(str(exc)) from None
                self._complain(exc)
        return self._link.receive()

    def _complain(self, exc: BaseException) -> None:
        try:
            self._channel.stderr.write(traceback_text.describe(exc).traceback)
        except Exception:  # the border to the cell: nothing a user left behind may end the session here
            return

    def _start(self, start: Start) -> None:
        notices = []
        for name, value in start.env.items():
            os.environ[name] = value
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
        if self._spares:
            sys.path.remove("")  # it was begun ahead
        if packages.start(start.packages):
            self._keeping.record_environment()
        sys.path.insert(0, "")
        if not self._spares:
            for number in (0, 1, 2):
                self._spares[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
            self._channel.stdout.pipe, self._channel.stderr.pipe = self._spares[1], self._spares[2]
        cwd = os.getcwd()
        self._keeping.begin(start.env, cwd)
        self._link.send(Started(cwd, notices))

    # --- a cell ---

    def _execute(self, execute: Execute) -> None:
        cell = execute.cell
        filename = f"<cell {cell}>"
        notices = self._heal()
        restore = _set_environment(execute.envs) if execute.envs else {}
        outcome = Outcome()
        self._cell = cell
        self._channel.looping = self._looping.loop is not None and self._looping.exists
        self._channel.cell_begins(cell)
        compiled: Compiled | None = None
        began = time.perf_counter()
        try:
            try:
                self._interrupts.cell_begins(cell)
                compiled = self._evaluating.evaluate(execute.code, filename, outcome)
            finally:
                self._interrupts.cell_ended()
        except KeyboardInterrupt as exc:
            # It came between the end of the cell's code and cell_ended(): a finished cell stays as it ended.
            self._interrupts.cell_ended()
            if not outcome.finished:
                outcome.status, outcome.error = states.INTERRUPTED, describe_safely(exc)
        took = time.perf_counter() - began
        if os.getpid() != self._pid:
            # A process forked by the cell came back from it. The session goes on in its parent.
            self._leave_fork(outcome)
        if restore:
            _set_environment(restore)
        if outcome.exit is not None:
            self._exit(cell, outcome.exit, took)
        self._finish(cell, outcome, took, notices)
        # While the host takes the answer: nobody waits for this.
        if compiled is None or (outcome.status == states.OK and not compiled.lasting):
            traceback_text.forget_source(filename)
        if compiled is not None:
            provenance.note(filename, execute.code, outcome.status == states.OK)

    def _leave_fork(self, outcome: Outcome) -> None:
        code = 0 if outcome.status == states.OK else 1
        if outcome.exit is not None:
            code, message = shutdown.exit_code(outcome.exit)
            if message is not None:
                self._channel.stderr.write(message + "\n")
        elif outcome.error is not None:
            self._channel.stderr.write(outcome.error.traceback)
        os._exit(code)

    def _finish(self, cell: int, outcome: Outcome, took: float, notices: list[str]) -> None:
        crowded = self._channel.cell_ended()
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
            except RuntimeError:  # a thread of the user's defines names meanwhile; the next cell tells
                pass
        value, self._display.value = self._display.value, None
        if self._display.notices:
            notices += self._display.take_notices()
        self._link.send(
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

    def _heal(self) -> list[str]:
        """Put back what the next cell cannot do without, and say what was put back."""
        space = vars(self._main)
        if not isinstance(space.get("__builtins__"), (types.ModuleType, dict)):
            space["__builtins__"] = builtins
        notices = []
        for number, event in self._streams.poll(0):
            if event & select.POLLNVAL:
                os.dup2(self._spares[number], number, inheritable=True)
                notices.append(f"descriptor {number} had been closed and was opened again")
        for name, stream in self._standard:
            current = getattr(sys, name, None)
            if current is not stream and (current is None or getattr(current, "closed", False) is True):
                setattr(sys, name, stream)
                notices.append(f"sys.{name} was closed or None and was put back")
        return notices

    def _exit(self, cell: int, exc: SystemExit, took: float) -> None:
        """Say so, give handlers and finalizers their time, and go."""
        code, message = shutdown.exit_code(exc)
        self._display.send_value()
        self._link.send(Exiting(cell, code, message and message[:MAX_EXIT_MESSAGE], took))
        if message is not None:
            self._channel.stderr.write(message + "\n")
        shutdown.finish(self._main, self._looping, self._inherited)
        os._exit(code)


def _set_environment(envs: dict[str, Any]) -> dict[str, Any]:
    """Set (or with None, remove) these variables; what would undo it."""
    before = {}
    for name, value in envs.items():
        before[name] = os.environ.get(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before
