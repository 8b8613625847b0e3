"""The verbs: what every door can ask for, with the same names, defaults and checks. Who may, and how much.

The service holds no session and knows no process; it asks placement. It acts for one caller, the owner unless
`acting_for` says otherwise: every verb turns the name of a session into that caller's own (`_own`), so that a tenant
sees nothing of another, and asks whether the caller's scopes and limits allow it.
"""

import asyncio
import contextlib
import copy
import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from ingle import errors
from ingle.callers import ADMIN, EXECUTE, OWNER, READ, Caller
from ingle.events import (
    AnyEvent,
    CellInfo,
    CheckpointInfo,
    Done,
    FileInfo,
    FileList,
    Isolation,
    Limits,
    Metrics,
    NewSession,
    Restored,
    Result,
    RolledBack,
    Saved,
    SessionInfo,
    SessionLimits,
    SnapshotInfo,
    Stdlib,
    StdlibChange,
    Task,
    Variables,
    VariableValue,
)
from ingle.isolation.policy import can_be_granted
from ingle.once import Once
from ingle.outputs.reading import OutputPage, Reading
from ingle.placement import OpenFile, Placement
from ingle.placement.local import Local
from ingle.sessions.manager import check_name
from ingle.settings import Settings, data_folder
from ingle.shell.log import TaskOutput
from ingle.state.stdlib import MAX_SIZE
from ingle_worker.wire import states

VARIABLE_LIMIT = 5.0
"""Seconds that the `__repr__` and `__str__` of one variable may take."""

MAX_NAME = 1000

MAX_ENVS = 1000

POLL = 1.0
"""How long each look at a cell lasts that is past its time, and about to be ended."""

PROBE = Caller("probe", ".probe")
"""Who asks whether a worker answers: a tenant that no token can have, so that nobody meets its sessions."""

PROBE_PATIENCE = 10.0

DEFAULT_WORKSPACE = ".owner"
"""The folder of the default tenant; no tenant's name begins with a dot."""

MAX_KEY = 255
"""Characters of an idempotency key."""


class Shared:
    """What a service has in common with those that act for other callers."""

    def __init__(self) -> None:
        self.stopping = False
        self.draining = False
        self.beginning: Counter[str] = Counter()
        """Cells of each tenant that were asked for and have not begun."""


class Service:
    caller: Caller = OWNER
    workspace: Path | None = None
    """Where code runs that has no session of its own; None is a folder of its own for each."""

    def __init__(self, settings: Settings, placement: Placement) -> None:
        self.settings = settings
        self._placement = placement
        self.once = Once()
        self._shared = Shared()

    @classmethod
    def local(cls, settings: Settings, home: Path | None = None, kind: str = "local") -> "Service":
        """A service whose sessions live on this machine. Needs a running event loop.

        Durable sessions come back in the next service of this kind that is started in the same folder.
        """
        home = home or data_folder()
        service = cls(settings, Local(settings, home, f"{kind}:{os.getcwd()}"))
        service.workspace = home / "workspace"
        return service

    @classmethod
    def beginning_in(cls, folder: str, settings: Settings, home: Path, kind: str) -> tuple["Service", str | None]:
        """A service whose sessions are granted this folder, to begin in; None in its place where they cannot be."""
        granted = can_be_granted(folder, home)
        if granted:
            settings = replace(settings, mount=[*settings.mount, folder])
        return cls.local(settings, home, kind), folder if granted or settings.isolation == "none" else None

    def acting_for(self, caller: Caller) -> "Service":
        """The same service, with the rights and the sessions of this caller."""
        bound = copy.copy(self)
        bound.caller = caller
        return bound

    @property
    def stopping(self) -> bool:
        return self._shared.stopping

    async def start(self) -> None:
        await self._placement.start()

    async def warm(self) -> None:
        """Have workers ready, so that the first sessions start as quickly as later ones."""
        await self._placement.warm()

    async def drain(self) -> int:
        """Begin nothing more; how many cells are still running."""
        self._shared.draining = True
        states_now = (await self._placement.metrics()).sessions
        return states_now.get(states.RUNNING, 0) + states_now.get(states.WAITING, 0)

    async def stop(self) -> None:
        self._shared.stopping = True
        await self._placement.stop()

    async def __aenter__(self) -> "Service":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # --- who may, and how much ---

    def check(self, scope: str) -> None:
        """Whether the caller may do what needs this scope; an error says why not."""
        caller = self.caller
        if scope not in caller.scopes:
            raise errors.Forbidden(
                f"this token has not the scope {scope!r}; make one that has it with `ingle token new`"
            )
        if caller.revoked:
            raise errors.Unauthorized("this token was revoked; ask for another")

    def _own(self, session_id: str, scope: str = READ) -> str:
        """The id by which placement knows a session of this caller, who must have the scope."""
        self.check(scope)
        if "/" in session_id:
            raise errors.SessionNotFound(session_id)
        tenant = self.caller.tenant
        return f"{tenant}/{session_id}" if tenant else session_id

    async def _check_sessions(self, more: int = 1) -> None:
        limit = self.caller.limits.sessions
        if limit is not None and (await self._placement.load(self.caller.tenant)).sessions + more > limit:
            raise errors.QuotaExceeded(f"this token may have {limit} sessions, and they are in use; end one", 10.0)

    def _check_beginning(self) -> None:
        if self._shared.draining:
            raise errors.Unavailable("the server is stopping; start it again")

    async def _begin(
        self,
        own_id: str,
        code: str,
        timeout: float | None,
        envs: dict[str, str] | None,
        queue: bool = False,
        key: str | None = None,
    ) -> int:
        """Start a cell, if the caller may have one more; its number."""
        self._check_beginning()
        tenant, limit = self.caller.tenant, self.caller.limits.running
        beginning = self._shared.beginning
        if limit is not None and (await self._placement.load(tenant)).running + beginning[tenant] >= limit:
            raise errors.QuotaExceeded(f"this token may run {limit} cells at once; wait for one of them to end")
        beginning[tenant] += 1
        try:
            return await self._placement.begin(own_id, code, timeout=timeout, envs=envs, queue=queue, key=key)
        finally:
            beginning[tenant] -= 1

    # --- sessions ---

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        include_stdlib: bool = True,
        durable: bool = False,
        isolation: str | None = None,
        network: str | None = None,
        limits: SessionLimits | None = None,
        checkpoints: str | None = None,
    ) -> SessionInfo:
        self.check(EXECUTE)
        _check_environment(env)
        _check_choice("checkpoints", checkpoints, ("manual", "auto"))
        _check_seconds("idle_timeout", idle_timeout)
        await self._check_sessions()
        return await self._placement.create(
            NewSession(
                session_id=session_id,
                tenant=self.caller.tenant,
                python=python,
                cwd=cwd,
                env=env or {},
                idle_timeout=idle_timeout,
                include_stdlib=include_stdlib,
                durable=durable,
                isolation=isolation,
                network=network,
                limits=limits or SessionLimits(),
                checkpoints=checkpoints,
                bounds=self.caller.bounds,
            )
        )

    async def list_sessions(self) -> list[SessionInfo]:
        self.check(READ)
        return await self._placement.sessions(self.caller.tenant)

    async def get_session(self, session_id: str) -> SessionInfo:
        return await self._placement.info(self._own(session_id))

    async def end_session(self, session_id: str) -> SessionInfo:
        return await self._placement.end(self._own(session_id, EXECUTE))

    async def clear_session(self, session_id: str) -> SessionInfo:
        """Reset the namespace to the initial one; the session, its count and its outputs stay."""
        return await self._placement.clear(self._own(session_id, EXECUTE))

    # --- copies of a session ---

    async def fork_session(
        self, session_id: str, new_id: str | None = None, *, count: int = 1, reseed: bool = False
    ) -> list[SessionInfo]:
        """Live copies of a session as it is now. Several are named `new_id-1` and so on; without a name, at random."""
        own_id = self._own(session_id, EXECUTE)
        most = self.settings.max_forks
        if not 1 <= count <= most:
            raise errors.InvalidRequest(f"count is {count}; it must be 1 to {most}")
        self._check_beginning()
        await self._check_sessions(count)
        names: list[str | None] = [new_id]
        if count > 1:
            names = [None if new_id is None else f"{new_id}-{number}" for number in range(1, count + 1)]
        return await self._placement.fork(own_id, names, reseed=reseed)

    async def checkpoint(self, session_id: str, name: str) -> CheckpointInfo:
        """Keep the session as it is now, in memory, under this name."""
        own_id = self._own(session_id, EXECUTE)
        check_name(name)
        return await self._placement.checkpoint(own_id, name)

    async def checkpoints(self, session_id: str) -> list[CheckpointInfo]:
        return await self._placement.checkpoints(self._own(session_id))

    async def rollback(self, session_id: str, name: str | None = None) -> RolledBack:
        """Go back to a checkpoint; without a name to before the last cell, or to the newest where that is not kept."""
        return await self._placement.rollback(self._own(session_id, EXECUTE), name)

    # --- snapshots ---

    async def save_session(self, session_id: str, target: str, *, start: str | None = None) -> Saved:
        """Save a session under a name, or as a file below its folder, or below `start` where a door has such a folder.

        The session is held up for a moment only; what cannot be saved is named in the answer.
        """
        return await self._placement.save(self._own(session_id, EXECUTE), target, start)

    async def load_session(
        self,
        source: str,
        session_id: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        idle_timeout: float | None = None,
        isolation: str | None = None,
        start: str | None = None,
        trust: bool = False,
        rerun: bool = False,
    ) -> Restored:
        """A new session with what a snapshot holds; without a name it has the one that the saved session had.

        What could not be saved is named, with the cells that made it; `rerun` runs these again.

        A snapshot that this ingle did not write for this caller is refused, unless one who may administer the server
        says to `trust` it. It is confined at least as far as the saved session was.
        """
        self.check(EXECUTE)
        if trust:
            self.check(ADMIN)
        _check_seconds("idle_timeout", idle_timeout)
        await self._check_sessions()
        wanted = NewSession(
            session_id=session_id,
            tenant=self.caller.tenant,
            python=python,
            cwd=cwd,
            idle_timeout=idle_timeout,
            isolation=isolation,
            bounds=self.caller.bounds,
        )
        return await self._placement.restore(wanted, source, start, trust=trust, rerun=rerun)

    async def list_snapshots(self) -> list[SnapshotInfo]:
        self.check(READ)
        return await self._placement.snapshots(self.caller.tenant)

    async def delete_snapshot(self, name: str) -> None:
        self.check(EXECUTE)
        await self._placement.delete_snapshot(self.caller.tenant, name)

    async def open_snapshot(self, name: str) -> OpenFile:
        """A snapshot as one portable file; whoever has it closes it."""
        self.check(READ)
        return await self._placement.open_snapshot(self.caller.tenant, name)

    async def write_snapshot(self, name: str, chunks: AsyncIterator[bytes]) -> SnapshotInfo:
        """Keep a portable file under a name. Whether it is to be trusted is asked when it is loaded."""
        self.check(EXECUTE)
        check_name(name)
        return await self._placement.write_snapshot(self.caller.tenant, name, chunks)

    # --- the user's library ---

    async def list_stdlib(self) -> Stdlib:
        self.check(READ)
        return await self._placement.stdlib(self.caller.tenant)

    async def add_to_stdlib(self, function_code: str) -> StdlibChange:
        """Add code to the library that new sessions begin with, once it has been seen to compile and run."""
        self.check(EXECUTE)
        self._check_beginning()
        if len(function_code) > MAX_SIZE:
            raise errors.InvalidRequest(f"the code has more than {MAX_SIZE} characters; put data into files")
        return await self._placement.add_to_stdlib(self.caller.tenant, function_code, self.caller.bounds)

    # --- cells ---

    async def execute(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        key: str | None = None,
    ) -> Result:
        """Run a cell and answer when it has ended or waits for input, or after `wait` seconds, whichever is first.

        A request that is repeated with its `key` gets the result of the cell that the first one began.
        """
        own_id = self._own(session_id, EXECUTE)
        if envs or timeout is not None or key is not None:
            _check_environment(envs)
            _check_seconds("timeout", timeout)
            _check_key(key)
        seconds = self._wait(wait)
        cell = await self._begin(own_id, code, timeout, envs, queue, key)
        return await self._placement.wait(own_id, cell, seconds)

    async def begin(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        key: str | None = None,
    ) -> int:
        """Start a cell and answer with its number."""
        own_id = self._own(session_id, EXECUTE)
        _check_environment(envs)
        _check_seconds("timeout", timeout)
        _check_key(key)
        return await self._begin(own_id, code, timeout, envs, queue, key)

    async def execute_once(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        python: str | None = None,
        cwd: str | None = None,
        include_stdlib: bool = True,
    ) -> Result:
        """Run code in a fresh session that is ended after its answer.

        When the answer is `running`, the session can be waited for by its id, and ends once that was read.
        """
        self.check(EXECUTE)
        _check_environment(envs)
        _check_seconds("timeout", timeout)
        seconds = self._wait(wait)
        await self._check_sessions()
        session = await self._placement.create(
            NewSession(
                tenant=self.caller.tenant,
                python=python,
                cwd=cwd,
                one_off=True,
                include_stdlib=include_stdlib,
                bounds=self.caller.bounds,
            )
        )
        own_id = self._own(session.session_id)
        try:
            cell = await self._begin(own_id, code, timeout, envs)
        except BaseException:
            # Nobody will learn of this session: without a cell there is nothing to wait for.
            await self._placement.end(own_id)
            raise
        return await self._placement.wait(own_id, cell, seconds)

    async def interpret(self, code: str, *, timeout: float, envs: dict[str, str] | None = None) -> Result:
        """Run code in a fresh session, in the server's workspace, to its end. Whatever it reads has ended."""
        cwd = None
        if self.workspace is not None:
            # Tenants do not meet in it.
            folder = self.workspace / (self.caller.tenant or DEFAULT_WORKSPACE)
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            cwd = str(folder)
        result = await self.execute_once(code, timeout=timeout, wait=timeout, envs=envs, cwd=cwd)
        while result.status not in states.FINAL_STATUSES:
            if result.status == states.WAITING:
                try:
                    result = await self.input(result.session_id, eof=True, wait=timeout)
                    continue
                except errors.NotWaiting:
                    pass  # it was interrupted in this moment
            result = await self.wait(result.session_id, result.cell, wait=POLL)
        return result

    async def isolation(self) -> Isolation:
        """How far sessions are held here, once it is known."""
        return await self._placement.isolation()

    async def check_ready(self) -> None:
        """Have a fresh worker answer; an error says why none does."""
        try:
            result = await self.acting_for(PROBE).execute_once("1", timeout=PROBE_PATIENCE, wait=PROBE_PATIENCE)
        except errors.IngleError as error:
            raise errors.Unavailable(f"no worker answers: {error.message}") from None
        if not result.success:
            raise errors.Unavailable(f"a worker answers wrongly: {result.status}; see the log")

    async def wait(
        self, session_id: str, cell: int | None = None, *, wait: float | None = None, from_event: int = 0
    ) -> Result:
        """The result of a cell, the last one unless named, as soon as it has settled."""
        return await self._placement.wait(self._own(session_id), cell, self._wait(wait), from_event)

    async def input(self, session_id: str, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input; the answer comes when the cell has gone on."""
        own_id, seconds = self._own(session_id, EXECUTE), self._wait(wait)
        cell = await self._placement.input(own_id, text, eof=eof)
        return await self._placement.wait(own_id, cell, seconds)

    async def interrupt(self, session_id: str, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell and answer when the session is ready again; None when nothing ran."""
        own_id, seconds = self._own(session_id, EXECUTE), self._wait(wait)
        cell = await self._placement.interrupt(own_id)
        if cell is None:
            return None
        return await self._placement.wait(own_id, cell, seconds)

    async def cells(self, session_id: str, first: int = 1, count: int = 100) -> list[CellInfo]:
        return await self._placement.cells(self._own(session_id), first, count)

    async def read_output(
        self,
        session_id: str,
        cell: int,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
        context: int = 0,
        offset: int = 0,
        raw: bool = False,
    ) -> OutputPage:
        """Lines of what a cell printed or showed: from a number on, those that match, on a long line from an offset."""
        reading = Reading(stream, from_line, lines, grep, context, offset, raw)
        return await self._placement.output(self._own(session_id), cell, reading)

    async def figure(self, session_id: str, file_id: str) -> bytes:
        """An image in full size, by the id in the metadata of the display that shows it smaller."""
        return await self._placement.figure(self._own(session_id), file_id)

    def events(self, session_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self._placement.events(self._own(session_id), first)

    async def cell_events(self, session_id: str, cell: int) -> AsyncIterator[AnyEvent]:
        """The events of one cell, those to come included, from its first to its `done`."""
        own_id = self._own(session_id)
        first = 1
        if cell > 1:
            # A cell begins after the one before it has ended; asked for from so far on, that one brings no text.
            with contextlib.suppress(errors.CellForgotten):
                before = await self._placement.wait(own_id, cell - 1, 0.0, from_event=sys.maxsize)
                first = before.next_event
        async for event in self._placement.events(own_id, first):
            if event.cell == cell:
                yield event
                if isinstance(event, Done):
                    return

    # --- variables ---

    async def variables(self, session_id: str) -> Variables:
        """Each variable with type, shape or length, size and preview; runs no code of the user's."""
        return await self._placement.variables(self._own(session_id))

    async def variable(self, session_id: str, name: str, *, limit: float | None = None) -> VariableValue:
        """One variable in full, by its plain name: its `__repr__` and `__str__` run in the session, within a limit."""
        if len(name) > MAX_NAME or not name.isidentifier():
            raise errors.InvalidRequest(f"{name[:80]!r} is not the name of a variable; give a plain name")
        _check_seconds("limit", limit)
        return await self._placement.variable(
            self._own(session_id, EXECUTE), name, VARIABLE_LIMIT if limit is None else limit
        )

    # --- shell tasks ---

    async def shell(
        self,
        command: str,
        *,
        wait: float | None = None,
        timeout: float | None = None,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        interactive: bool = False,
        pty: bool = False,
        size: tuple[int, int] = (24, 80),
        limits: Limits | None = None,
        shell_session: str | None = None,
        request_key: str | None = None,
    ) -> Task:
        """Run a command; answer when its shell has ended, or after `wait` seconds with what there is so far.

        `stdin` is its whole input; with `interactive` or `pty` the input stays open for `shell_input`. With
        `shell_session` it runs in the persistent shell of that name. The same `request_key` never runs it twice.
        """
        _check_environment(env)
        _check_seconds("timeout", timeout)
        _check_seconds("wait", wait)
        _check_limits(limits)
        _check_size(*size)
        _check_key(request_key)
        if shell_session is not None:
            check_name(shell_session)
            if pty or interactive:
                raise errors.InvalidRequest(
                    "a command in a persistent shell has no terminal and no open input; "
                    "give stdin, or leave shell_session out"
                )
            if limits is not None and limits != Limits(output=limits.output):
                raise errors.InvalidRequest(
                    "a command in a persistent shell can be limited in its output only, since the shell lives on; "
                    "leave shell_session out to limit memory, CPU time, processes or files"
                )
        self.check(EXECUTE)
        if self._shared.draining:
            raise errors.Unavailable("the server is stopping; start it again")
        tenant = self.caller.tenant
        own_session = self._own(session_id, EXECUTE) if session_id is not None else None
        request = ("shell", command, timeout, session_id, cwd, env, stdin, interactive, pty, limits, shell_session)
        task_id = await self.once(
            f"{tenant}/{request_key}" if request_key is not None else None,
            request,
            lambda: self._placement.shell_begin(
                command,
                timeout=timeout,
                session_id=own_session,
                cwd=cwd,
                env=env,
                stdin=stdin,
                interactive=interactive,
                pty=pty,
                size=size,
                limits=limits,
                shell_session=shell_session,
                tenant=tenant,
                bounds=self.caller.bounds,
            ),
        )
        return await self._placement.shell_wait(self._task(task_id), self._shell_wait(wait))

    def _task(self, task_id: str, scope: str = READ) -> str:
        """The id by which placement knows a task of this caller, who must have the scope."""
        self.check(scope)
        if "/" in task_id:
            raise errors.TaskNotFound(task_id)
        return f"{self.caller.tenant}/{task_id}" if self.caller.tenant else task_id

    async def shell_status(
        self, task_id: str, *, wait: float | None = None, from_line: int = 0, from_event: int = 0
    ) -> Task:
        """The task once its shell has ended (or, if it had, once all of it has), or after `wait` seconds.

        From a line or an event on, if asked for. Reading changes nothing.
        """
        return await self._placement.shell_wait(
            self._task(task_id), self._shell_wait(wait), from_event=from_event, from_line=from_line
        )

    async def shell_cancel(self, task_id: str, *, wait: float | None = None) -> Task:
        """End all of a task: SIGTERM, a grace, SIGKILL. One that is over is answered as it is."""
        own_id = self._task(task_id, EXECUTE)
        await self._placement.shell_order(own_id, "cancel")
        return await self._until_over(own_id, wait)

    async def shell_interrupt(self, task_id: str, *, wait: float | None = None) -> Task:
        """SIGINT, as by Ctrl-C; a persistent shell stays alive."""
        own_id = self._task(task_id, EXECUTE)
        await self._placement.shell_order(own_id, "interrupt")
        return await self._placement.shell_wait(own_id, self._shell_wait(wait))

    async def shell_pause(self, task_id: str) -> Task:
        own_id = self._task(task_id, EXECUTE)
        await self._placement.shell_order(own_id, "pause")
        return await self._placement.shell_wait(own_id, 0.0)

    async def shell_resume(self, task_id: str, *, wait: float | None = 0.0) -> Task:
        own_id = self._task(task_id, EXECUTE)
        await self._placement.shell_order(own_id, "resume")
        return await self._placement.shell_wait(own_id, self._shell_wait(wait))

    async def shell_input(self, task_id: str, text: str = "", *, eof: bool = False, wait: float | None = 0.0) -> Task:
        """Send text to a task's input as it is: a line needs its own newline; on a terminal, `\\x03` is Ctrl-C."""
        own_id = self._task(task_id, EXECUTE)
        await self._placement.shell_input(own_id, text, eof=eof)
        return await self._placement.shell_wait(own_id, self._shell_wait(wait))

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None:
        """The size of a task's terminal."""
        _check_size(rows, columns)
        await self._placement.shell_resize(self._task(task_id, EXECUTE), rows, columns)

    async def shell_tasks(self) -> list[Task]:
        """All tasks that run or are still kept, without their text, in the order of their start."""
        self.check(READ)
        return await self._placement.shell_tasks(self.caller.tenant)

    async def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        return await self._placement.shell_output(
            self._task(task_id), stream=stream, from_line=from_line, lines=lines, grep=grep
        )

    def shell_events(self, task_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        """The events of a task, those to come included, until it is over. Their `session_id` is the task's id."""
        return self._placement.shell_events(self._task(task_id), first)

    async def shell_end(self, shell_session: str, *, session_id: str | None = None) -> bool:
        """End a persistent shell and what runs in it; False when there is none of that name."""
        self.check(EXECUTE)
        own_session = self._own(session_id, EXECUTE) if session_id is not None else None
        return await self._placement.shell_end(shell_session, own_session, self.caller.tenant)

    async def _until_over(self, task_id: str, wait: float | None) -> Task:
        """The task when all of it has gone, not only its shell."""
        seconds = self._shell_wait(wait)
        task = await self._placement.shell_wait(task_id, seconds)
        if task.status in ("running", "paused") and seconds:
            task = await self._placement.shell_wait(task_id, seconds)
        return task

    def _shell_wait(self, wait: float | None) -> float:
        _check_seconds("wait", wait)
        return self.settings.shell_wait if wait is None else wait

    # --- files ---

    async def list_files(self, session_id: str, folder: str = "") -> FileList:
        return await self._placement.files(self._own(session_id), folder)

    async def open_file(self, session_id: str, path: str) -> OpenFile:
        """A file of the session's folder; whoever asked closes it."""
        return await self._placement.open_file(self._own(session_id), path)

    async def write_file(self, session_id: str, path: str, chunks: AsyncIterator[bytes]) -> tuple[FileInfo, bool]:
        """Put a file into the session's folder, in one step; what it is, and whether it is new."""
        own_id = self._own(session_id, EXECUTE)
        return await self._placement.write_file(own_id, path, chunks, self.settings.max_file)

    async def remove_file(self, session_id: str, path: str) -> None:
        await self._placement.remove_file(self._own(session_id, EXECUTE), path)

    # --- the server ---

    async def metrics(self) -> Metrics:
        self.check(ADMIN)
        return await self._placement.metrics()

    def _wait(self, wait: float | None) -> float:
        if wait is None:
            return self.settings.wait
        _check_seconds("wait", wait)
        return wait


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise errors.InvalidRequest(f"{name} is {value}; it must be a number of seconds, 0 or more")


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise errors.InvalidRequest(f"{name} is {value[:80]!r}; it must be one of {', '.join(choices)}")


def _check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise errors.InvalidRequest(f"an idempotency key is 1 to {MAX_KEY} printable ASCII characters")


def _check_environment(envs: dict[str, str] | None) -> None:
    for name, value in (envs or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise errors.InvalidRequest(
                f"the environment variable {name[:80]!r} cannot be set: no '=' or NUL in names, no NUL in values"
            )
    if envs is not None and len(envs) > MAX_ENVS:
        raise errors.InvalidRequest(f"{len(envs)} environment variables are more than {MAX_ENVS}")


def _check_limits(limits: Limits | None) -> None:
    for name in Limits.__struct_fields__ if limits is not None else ():
        value = getattr(limits, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise errors.InvalidRequest(f"the limit {name} is {value}; it must be more than 0, or left out")


def _check_size(rows: int, columns: int) -> None:
    if not (0 < rows < 65536 and 0 < columns < 65536):
        raise errors.InvalidRequest(f"a terminal of {rows} rows and {columns} columns cannot be; both are 1 to 65535")
