"""The host's side of a zygote: a process with an interpreter and preloaded modules, which forks workers.

The death of a zygote does not affect the workers that it has forked. It is noticed, and the next fork starts another.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Protocol

from ingle.errors import InterpreterRefused, IsolationUnavailable, StartFailed
from ingle.isolation import self_test
from ingle.isolation.levels import CANNOT_CONFINE, GUEST, Confinement, environment
from ingle.workers.birth import Birth
from ingle.workers.exit_watch import Sweeper
from ingle.workers.init_link import InitLink
from ingle.workers.io import decode
from ingle.workers.io.descriptors import ChildEnds, expect_pid, receive_with_pid
from ingle_worker.wire import FrameReader, WireError, messages

OLD_PYTHON = 41
"""Exit code of the guest for an interpreter that is too old."""

MAX_STDERR_BYTES = 4000

STOP_PATIENCE_SECONDS = 10.0
"""Time for a zygote that was ready to end everything below it."""

READ_BYTES = 65536

ON_THE_HOST = ("-S", "-s")
"""Options of an interpreter that starts outside of the sandbox. The guest finds its modules without `site`."""


def start_process(
    python: str, args: list[str], fds: list[int], stderr: int, confinement: Confinement | None = None
) -> "subprocess.Popen[bytes]":
    """Start an interpreter with the guest. Blocking, for a thread."""
    options = ON_THE_HOST if confinement is not None and confinement.has_own_root else ()
    try:
        return subprocess.Popen(
            [python, *options, str(GUEST), *args],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment(confinement),
            cwd="/",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise InterpreterRefused(f"there is no interpreter at {python}; name a CPython 3.10 or later") from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise InterpreterRefused(
                f"{python} cannot be run ({error.strerror}); name a CPython 3.10 or later"
            ) from None
        raise StartFailed(f"no process could be started: {error}; free memory, processes or files") from None


class ZygoteKilled(StartFailed):
    """A zygote was killed before it was ready. The next one may live."""


class Forked(Protocol):
    """The host's side of a process that a zygote forks: a worker or a shell task."""

    @property
    def init(self) -> InitLink: ...

    @property
    def ready(self) -> "asyncio.Future[Any]":
        """Gets an exception when no process could be forked."""
        ...

    def make_ends(self) -> ChildEnds: ...

    def watch(self) -> None: ...


class Zygote:
    """One zygote process and its holder."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        python: str,
        preload: list[str],
        *,
        mode: str = "zygote",
        confinement: Confinement | None = None,
    ) -> None:
        self._loop = loop
        self._python = python
        self._preload = preload
        self._mode = mode
        self._confinement = confinement
        self.pid: int | None = None
        self._pidfd = -1
        self._reader = FrameReader()
        self._tickets = 0
        self._pending: dict[int, Forked] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = bytearray()
        self.ready: asyncio.Future[messages.ZygoteReady] = loop.create_future()
        self.held: asyncio.Future[None] = loop.create_future()
        """Done when the self-test of the confinement has passed, long before the zygote is ready."""
        self._targets: self_test.AttackTargets | None = None
        self._tidying: asyncio.Future[None] | None = None
        self._life: socket.socket | None = None
        """Socket to the holder, which ends everything when it closes."""
        self._life_reader = FrameReader()
        self._holder_lost = False
        self._sweeper = Sweeper(loop)
        self.dead = False
        self._sending = asyncio.Lock()
        self._last_order = loop.time()

    async def start(self) -> None:
        """Start the process and wait until it is ready to fork.

        Raises InterpreterRefused or StartFailed, and IsolationUnavailable if it cannot confine sessions.
        """
        if self._confinement is not None and sys.platform != "linux":
            raise IsolationUnavailable(self._confinement.level, f"only Linux can do that, and this is {sys.platform}")
        control, child_control = socket.socketpair()
        self._life, child_life = socket.socketpair()
        self._life.setblocking(False)
        self._stderr_fd, child_stderr = os.pipe()
        os.set_blocking(self._stderr_fd, False)
        self._control = control
        control.setblocking(False)
        # The kernel reports its process id: in a pid namespace, its own word for it means nothing here.
        expect_pid(control)
        fds = [child_life.fileno(), child_control.fileno()]
        ends = list(map(str, fds))
        plan = -1 if self._confinement is None else self._confinement.open_plan()
        if self._confinement is not None:
            fds.append(plan)
        args = [self._mode, *ends, str(plan), *self._preload]
        if self._confinement is not None and self._confinement.has_own_root:
            args = ["boot", str(plan), *args]
        try:
            await self._launch(args, fds, child_stderr)
        except BaseException:
            if self._process is None:
                os.close(self._stderr_fd)
                self._close_life()
                control.close()
                self.dead = True
            raise
        finally:
            child_life.close()
            os.close(child_stderr)
            child_control.close()
            if plan >= 0:
                os.close(plan)
        self._loop.add_reader(control.fileno(), self._on_control)
        self._loop.add_reader(self._stderr_fd, self._on_stderr)
        self._loop.add_reader(self._life.fileno(), self._on_life)
        await asyncio.shield(self.ready)

    async def _launch(self, args: list[str], fds: list[int], stderr: int) -> None:
        launching = self._loop.run_in_executor(None, self._start_process, args, fds, stderr)
        try:
            self._process = await asyncio.shield(launching)
        except asyncio.CancelledError:
            # The start cannot be called off, and `stop` has to know the process.
            self._process = await launching
            raise

    def _start_process(self, args: list[str], fds: list[int], stderr: int) -> "subprocess.Popen[bytes]":
        """Start the process, and send the order for its self-test. Blocking, for a thread."""
        if self._confinement is not None:
            try:
                self._targets = self_test.AttackTargets(self._confinement.data_folder)
            except OSError as error:
                raise StartFailed(f"isolation cannot be tried: {error}; look at the data folder") from None
            # The order waits in the socket until the zygote reads it.
            self._control.send(messages.encode(self._targets.order))
        return start_process(self._python, args, fds, stderr, self._confinement)

    def _on_stderr(self) -> None:
        try:
            data = os.read(self._stderr_fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._stderr_fd)
        self._stderr += data
        del self._stderr[:-MAX_STDERR_BYTES]

    def _on_life(self) -> None:
        """Handle a message of the holder, which speaks when the zygote is dead."""
        assert self._life is not None
        try:
            data = self._life.recv(READ_BYTES)
            if not data:
                raise WireError("it closed its socket")
            for frame in self._life_reader.feed(data):
                self._handle(decode.decode(frame))
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._loop.remove_reader(self._life.fileno())
            self._holder_lost = True
            self._check_sweepers()

    def _check_sweepers(self) -> None:
        """End all waits for reports, if zygote and holder are gone."""
        if self.dead and self._holder_lost:
            self._sweeper.report_all(last=True)

    def _close_life(self) -> None:
        if self._life is not None:
            self._loop.remove_reader(self._life.fileno())
            self._life.close()
            self._life = None

    def _on_control(self) -> None:
        try:
            if self.pid is None:
                data, self.pid = receive_with_pid(self._control, READ_BYTES)
                self._watch_process()
            else:
                data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                raise WireError("it closed its socket")
            for frame in self._reader.feed(data):
                self._handle(decode.decode(frame))
        except WireError:
            self._on_death()

    def _watch_process(self) -> None:
        """Watch the process itself.

        Its socket stays open a moment longer, in the child that waits for an order, and an order would be lost then.
        """
        with contextlib.suppress(OSError, AttributeError):
            if self.pid is not None:
                self._pidfd = os.pidfd_open(self.pid)
                self._loop.add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        self._on_control()  # reads its last messages
        self._on_death()

    def _handle(self, message: Any) -> None:
        if isinstance(message, messages.Proof) and self._confinement is not None:
            self._tidy()
            why = self_test.read(message)
            if why is not None:
                self._fail(IsolationUnavailable(self._confinement.level, why))
            elif not self.held.done():
                self.held.set_result(None)
        elif isinstance(message, messages.ZygoteReady):
            if self._confinement is not None and not self.held.done():
                raise WireError("it is ready, and has proven nothing")
            if not self.ready.done():
                self.ready.set_result(message)
        elif isinstance(message, messages.Swept):
            if message.pid:
                self._sweeper.report(message.pid)
            else:
                self._sweeper.report_all()
        elif isinstance(message, messages.ForkFailed):
            worker = self._pending.pop(message.ticket, None)
            if worker is not None and not worker.ready.done():
                worker.ready.set_exception(
                    StartFailed(f"no process could be forked: {message.reason}; free memory or processes")
                )

    def _on_death(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._let_go()
        self._check_sweepers()
        if not self.ready.done():
            # A zygote that dies before it is ready says why on stderr, which is closed by now.
            self._loop.create_task(self._explain())

    def _let_go(self) -> None:
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def _explain(self) -> None:
        assert self._process is not None
        self._close_life()
        code = await asyncio.to_thread(self._process.wait)
        with contextlib.suppress(BlockingIOError):
            self._stderr += os.read(self._stderr_fd, READ_BYTES)
        said = self._stderr.decode("utf-8", "replace").strip()
        error: Exception
        if code == OLD_PYTHON:
            error = InterpreterRefused(said)
        elif code == CANNOT_CONFINE:
            assert self._confinement is not None
            error = IsolationUnavailable(self._confinement.level, self_test.with_remedy(said[-500:]))
        elif code > 128 or code < 0:
            error = ZygoteKilled(f"{self._python} was killed while it started (code {code}); try again")
        else:
            error = InterpreterRefused(
                f"{self._python} did not start as a Python (exit code {code}): {said[-500:] or 'it said nothing'}; "
                "name a CPython 3.10 or later"
            )
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        for future in (self.held, self.ready):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, since not every caller awaits both

    def _tidy(self) -> None:
        if self._targets is not None and self._tidying is None:
            self._tidying = self._loop.run_in_executor(None, self._targets.remove)

    async def fork(self, child: Forked, birth: Birth | None = None) -> None:
        """Order one more child, which gets the ends of `child`. If the zygote is dead, those are closed."""
        ends = _ends_of(child)
        try:
            async with self._sending:
                while not self.dead:
                    try:
                        self._order(child, ends, birth or Birth())
                        return
                    except BlockingIOError:
                        await self._wait_writable()
                    except OSError:
                        self._on_death()
        finally:
            ends.close()
            child.watch()

    @property
    def orders(self) -> int:
        """Number of ordered children that are not ready yet."""
        return len(self._pending)

    @property
    def idle_for(self) -> float:
        """Seconds since the last order."""
        return self._loop.time() - self._last_order

    def retire(self) -> None:
        """End the zygote. The workers that it has forked live on."""
        self._on_death()

    def _order(self, child: Forked, ends: ChildEnds, birth: Birth) -> None:
        ticket = self._tickets = self._tickets + 1
        self._last_order = self._loop.time()
        order = messages.Fork(ticket, birth.pooled, birth.user, birth.network, birth.grouped, birth.limits)
        socket.send_fds(self._control, [messages.encode(order)], ends.fds)
        if self._confinement is None or not self._confinement.has_own_root:
            child.init.sweeper = self._sweeper
        self._pending[ticket] = child
        child.ready.add_done_callback(lambda _: self._pending.pop(ticket, None))

    async def _wait_writable(self) -> None:
        writable: asyncio.Event = asyncio.Event()
        self._loop.add_writer(self._control.fileno(), writable.set)
        try:
            await writable.wait()
        finally:
            if not self.dead:
                self._loop.remove_writer(self._control.fileno())

    @property
    def last_words(self) -> str:
        """Return the last line on stderr, of the zygote or of a child that could not become a worker."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def over(self) -> bool:
        """Whether it is dead, and no session is left below its holder."""
        return self.dead and (self._process is None or self._process.poll() is not None)

    async def stop(self) -> None:
        """End the zygote and all processes below it."""
        self._tidy()
        if self._tidying is not None:
            await self._tidying
        if self._process is None:
            return
        if not self.dead:
            self.dead = True
            self._let_go()
        self._close_life()
        try:
            await asyncio.to_thread(self._process.wait, STOP_PATIENCE_SECONDS if self.ready.done() else 0)
        except subprocess.TimeoutExpired:
            # It is no Python, or did not come so far as to watch its socket. Its process group is its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        self._loop.remove_reader(self._stderr_fd)
        os.close(self._stderr_fd)
        self._process = None
        self._sweeper.report_all(last=True)
        for future in (self.held, self.ready):
            if not future.done():
                future.cancel()


def _ends_of(child: Forked) -> ChildEnds:
    try:
        return child.make_ends()
    except OSError as error:
        raise StartFailed(f"no pipe could be made: {error.strerror}; raise the limit of open files") from None


async def try_level(level: str, python: str, home: str) -> str | None:
    """Return why sessions of this interpreter cannot be confined at a level; None when they can."""
    zygote = Zygote(asyncio.get_running_loop(), python, [], confinement=Confinement(level, "none", home))
    try:
        async with asyncio.timeout(self_test.TIMEOUT_SECONDS):
            await zygote.start()
    except IsolationUnavailable as error:
        return error.why
    except (StartFailed, InterpreterRefused) as error:
        return error.message
    except TimeoutError:
        return self_test.TOO_LONG
    finally:
        await zygote.stop()
    return None
