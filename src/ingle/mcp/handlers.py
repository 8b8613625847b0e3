"""The handlers of the tools: each calls the service and returns text for a model.

A call does not own its cell. After a cancelled call, a closed connection or a timeout the code continues, and `wait`
finds it. State depends on `session_id` alone, not on the connection. Every call answers within `MAX_WAIT_SECONDS`.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ingle import errors
from ingle.events import LIVE_STATUSES, Result, Task
from ingle.mcp import arguments, content, texts, tools, trials
from ingle.mcp.advice import MAIN, Refused, refusal_text
from ingle.mcp.arguments import MAX_WAIT_SECONDS
from ingle.mcp.content import Answer
from ingle.mcp.facts import Facts, facts_of
from ingle.mcp.following import Following
from ingle.mcp.progress import PROGRESS_SECONDS, Progress, Send, last_line
from ingle.render.diff import diff_text
from ingle.render.model import Text, weight
from ingle.requests import NewCell, NewSession, NewTask
from ingle.service import Service
from ingle.sessions.spec import check_name
from ingle_worker.wire import states

INTERRUPT_SECONDS = 1.0
"""Least time that an interrupt waits for its effect, so that its answer has the traceback."""

NEEDS_NO_MAIN = ("create_repl_session", "load_repl_session", "destroy_repl_session")
"""Tools for which a missing `main` is not created."""

RENDER_SECONDS = 0.5
"""Part of the longest wait that is reserved for rendering the answer."""

MAX_SHOWN = 1000
"""Sessions of which is known what their last answer showed."""

PATH_CHARS = 200

MAX_INLINE_CHARS = 20_000
"""Characters that are rendered in a few milliseconds; longer answers are rendered in a thread."""

MCP = "mcp"
"""Interface that cells name as the one they came through."""

_client: ContextVar[str] = ContextVar("client", default="")
"""Name of the client whose call is answered. Each call is a task, so that calls have their own."""

Done = TypeVar("Done")


@dataclass(frozen=True)
class Shown:
    """What a model has seen of a cell."""

    cell: int
    next_event: int
    notices: frozenset[str]


NOTHING_SHOWN = Shown(0, 0, frozenset())


class UnknownTool(Exception):
    """No tool of that name exists."""


class Tools:
    def __init__(
        self,
        service: Service,
        listed: tuple[tools.Tool, ...] = (),
        *,
        cwd: str | None = None,
        durable: bool = False,
        longest_wait: float = MAX_WAIT_SECONDS,
        progress_interval: float = PROGRESS_SECONDS,
    ) -> None:
        self._service = service
        self.listed = listed or tools.chosen()
        if service.tool_servers:
            self.listed = tools.with_search(self.listed)
        self._cwd = cwd
        self._durable = durable
        """Whether `main` is restored when the server restarts."""
        self._longest = longest_wait
        self._interval = progress_interval
        self._clock = time.monotonic
        self._by_name = {tool.name: tool for tool in tools.answered(self.listed)}
        self._background: set[asyncio.Task[Any]] = set()
        self._making_main: asyncio.Task[None] | None = None
        self._shown: dict[str, Shown] = {}
        """By session: what its last answer showed."""

    @property
    def service(self) -> Service:
        """The service, for the client of the current call."""
        return self._service.sent_by(MCP, _client.get())

    async def facts(self) -> Facts:
        """Return the facts of this server for its caller."""
        return await facts_of(self.service, self._cwd, durable=self._durable, tools=self._by_name)

    async def call(self, name: str, given: dict[str, Any] | None, send: Send, client: str = "") -> Answer:
        """Answer a call. `send` tells the client that waits of its progress. `client` is what it calls itself."""
        _client.set(client)
        tool = self._by_name.get(tools.ALIASES.get(name, name))
        if tool is None:
            raise UnknownTool(f"there is no tool {name[:80]!r}; the tools are {', '.join(self._by_name)}")
        session_id = str((given or {}).get("session_id") or MAIN)
        progress = Progress(send, self._interval)
        try:
            checked = arguments.read(name, tool.arguments, given)
            with progress.kept_up(f"{tool.name} has not finished"):
                async with asyncio.timeout(self._longest):
                    return await self._answer(tool.name, session_id, checked, progress)
        except TimeoutError:
            slow = f"{name} did not finish within {self._longest:g} s. Nothing was started by this call; retry"
            return content.failure(errors.Unavailable(slow))
        except errors.IngleError as error:
            refused = Refused(error, tool.name, session_id, frozenset(self._by_name))
            return content.failure(error, await refusal_text(refused, self.service))

    async def _answer(self, tool: str, session_id: str, given: Any, progress: Progress) -> Answer:
        handler = getattr(self, f"_{tool}")
        answer: Answer
        try:
            answer = await handler(given, progress)
        except errors.SessionNotFound:
            if session_id != MAIN or tool in NEEDS_NO_MAIN:
                raise
            await self._make_main()
            answer = await handler(given, progress)
        return answer

    # --- cells ---

    async def _python_session(self, given: arguments.PythonSession, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        cell = await self.service.begin_cell(given.session_id, NewCell(given.code, given.timeout))
        return await self._show(await self._follow(given.session_id, cell, deadline, progress), new=True)

    async def _python(self, given: arguments.Python, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        result = await self.service.execute_once(given.code, timeout=given.timeout, wait=0, cwd=self._cwd)
        if result.status == "running":
            result = await self._follow(result.session_id, result.cell, deadline, progress)
        if result.status in states.FINAL_STATUSES:
            return await _render(weight(result), partial(content.of_result, gone=True), result)
        return await self._show(result)

    async def _wait(self, given: arguments.WaitFor, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        last = (await self.service.get_session(given.session_id)).execution_count
        if not last:
            return _nothing_yet(given.session_id)
        result = await self._follow(given.session_id, last, deadline, progress, given.from_event)
        return await self._show(result, new=given.from_event > 0)

    async def _send_input(self, given: arguments.SendInput, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        taken = await self.service.input(given.session_id, given.text, eof=given.eof, wait=0)
        # Output that the model has seen is not repeated: a debugger session would grow with each step.
        shown = self._shown.get(given.session_id, NOTHING_SHOWN)
        from_event = shown.next_event if shown.cell == taken.cell else 0
        result = await self._follow(given.session_id, taken.cell, deadline, progress, from_event)
        return await self._show(result, new=True)

    async def _interrupt(self, given: arguments.Interrupt, progress: Progress) -> Answer:
        deadline = self._deadline(max(given.wait, INTERRUPT_SECONDS))
        stopped = await self.service.interrupt(given.session_id, wait=0)
        if stopped is None:
            return Answer([Text(f"[nothing was running · session {given.session_id}]")])
        result = await self._follow(given.session_id, stopped.cell, deadline, progress)
        if result.status not in states.FINAL_STATUSES:
            ends = "destroy_repl_session" in self._by_name
            result.notices = [*result.notices, texts.no_effect_text(result, ends=ends)]
        return await self._show(result)

    def _deadline(self, wait: float) -> float:
        return self._clock() + min(wait, max(0.0, self._longest - RENDER_SECONDS))

    async def _follow(
        self, session_id: str, cell: int | None, deadline: float, progress: Progress, from_event: int = 0
    ) -> Result:
        """Wait until the cell has ended or waits for input or approval, or until the deadline, and report progress."""
        following = Following(self.service, session_id, progress, lambda: deadline - self._clock(), from_event)
        return await following.follow(cell)

    async def _show(self, result: Result, *, new: bool = False) -> Answer:
        """Return the answer. With `new`, notices that the model has seen are left out, as its text is."""
        before = self._shown.get(result.session_id, NOTHING_SHOWN)
        self._remember(result.session_id, Shown(result.cell, result.next_event, frozenset(result.notices)))
        if new and before.cell == result.cell:
            result.notices = [notice for notice in result.notices if notice not in before.notices]
        return await _render(weight(result), content.of_result, result)

    def _remember(self, session_id: str, shown: Shown) -> None:
        self._shown.pop(session_id, None)
        self._shown[session_id] = shown
        if len(self._shown) > MAX_SHOWN:
            # Sessions that ended by themselves. One that lives would only be shown something twice.
            del self._shown[next(iter(self._shown))]

    async def _make_main(self) -> None:
        """Create `main` if it is missing. Concurrent calls share one task, and cancelling one affects no other."""
        if self._making_main is None or self._making_main.done():
            self._making_main = asyncio.get_running_loop().create_task(self._create_main())
        await asyncio.shield(self._making_main)

    async def _create_main(self) -> None:
        try:
            await self.service.create_session(MAIN, cwd=self._cwd, durable=self._durable)
        except errors.SessionExists:
            pass  # created through another API meanwhile

    # --- reading ---

    async def _read_output(self, given: arguments.ReadOutput, progress: Progress) -> Answer:
        cell = given.cell
        if cell is None:
            cell = (await self.service.get_session(given.session_id)).execution_count
            if not cell:
                return _nothing_yet(given.session_id)
        page = await self.service.read_output(
            given.session_id,
            cell,
            stream=given.stream,
            from_line=given.from_line,
            lines=given.lines,
            grep=given.grep,
            context=given.context,
            offset=given.offset,
        )
        return content.of_page(page)

    # --- shell ---

    async def _shell(self, given: arguments.Shell, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        # A relative path is below the folder of the session, or that where commands start.
        cwd = self._path("cwd", given.cwd or "")
        if given.session_id is None and self._cwd is not None:
            cwd = os.path.join(self._cwd, cwd) if cwd else self._cwd
        new = NewTask(
            given.command,
            cwd=cwd,
            env=given.env or {},
            timeout=given.timeout,
            interactive=given.interactive,
            session_id=given.session_id,
        )
        # It returns before progress is due, and then the last line of output is reported.
        soon = min(progress.left - self._interval / 10, deadline - self._clock())
        task = await self.service.run_task(new, max(0.0, soon))
        if _shell_runs(task):
            task = await self._follow_task(task, deadline, progress)
        return await _show_task(task)

    async def _shell_status(self, given: arguments.ShellStatus, progress: Progress) -> Answer:
        deadline = self._deadline(given.wait)
        task_id, from_line, service = given.task_id, given.from_line, self.service
        if given.action == "pause":
            await service.shell_pause(task_id)
            return await _show_task(await service.shell_status(task_id, wait=0, from_line=from_line), from_line)
        if given.action == "cancel":
            await service.shell_cancel(task_id, wait=min(given.wait, self._interval))
        elif given.action == "resume":
            await service.shell_resume(task_id, wait=0)
        elif given.action == "input":
            await service.shell_input(task_id, given.text, eof=given.eof, wait=0)
        task = await service.shell_status(task_id, wait=0, from_line=from_line)
        return await _show_task(await self._follow_task(task, deadline, progress, from_line), from_line)

    async def _follow_task(self, task: Task, deadline: float, progress: Progress, from_line: int = 0) -> Task:
        """Wait until the command's shell has ended or until the deadline, and report progress.

        If the shell had already ended, wait for the processes that it left running.
        """
        for_all = not _shell_runs(task)
        with progress.by_handler():
            while (task.status == "running" if for_all else _shell_runs(task)) and deadline > self._clock():
                if not progress.left:
                    line = last_line(task.stdout, task.stderr) or f"task {task.task_id} is running"
                    await progress.report(line)
                left = min(max(0.0, deadline - self._clock()), progress.left)
                task = await self.service.shell_status(task.task_id, wait=left, from_line=from_line)
        return task

    # --- sessions ---

    async def _create_repl_session(self, given: arguments.CreateSession, progress: Progress) -> Answer:
        cwd = self._path("cwd", given.cwd or "") or None
        start = None if given.shares or given.home else self._cwd
        new = NewSession(
            session_id=given.session_id,
            python=self._path("python", given.python) if given.python else None,
            environment=given.environment,
            cwd=os.path.join(self._cwd, cwd) if cwd and self._cwd else cwd or start,
            env=given.env or {},
            include_stdlib=given.include_stdlib,
            checkpoints=given.checkpoints,
            durable=given.durable or (self._durable and given.session_id == MAIN and given.shares is None),
            shares=given.shares,
            home=given.home,
            gpus=given.gpus,
        )
        info = await self.service.create(new)
        name = info.session_id
        text = f"session {name} is ready: Python {info.python} in {info.cwd}. Use it with session_id={name!r}."
        return Answer([Text(text)], content.data("ingle/session", info))

    async def _list_repl_sessions(self, given: arguments.ListSessions, progress: Progress) -> Answer:
        infos = await self.service.list_sessions()
        tasks = [each for each in await self.service.shell_tasks() if each.status in LIVE_STATUSES]
        saved = [each.name async for each in self.service.each_snapshot()]
        return Answer([Text(texts.listing_text(infos, tasks, saved))], content.data("ingle/sessions", infos))

    async def _get_session_namespace(self, given: arguments.Namespace, progress: Progress) -> Answer:
        if given.variable_name is None:
            listed = await self.service.variables(given.session_id)
            return Answer([Text(texts.variables_text(listed))], content.data("ingle/variables", listed))
        found = await self.service.variable(given.session_id, given.variable_name)
        return Answer([Text(texts.value_text(found))], content.data("ingle/variable", found))

    async def _clear_repl_session(self, given: arguments.ClearSession, progress: Progress) -> Answer:
        info = await self.service.clear_session(given.session_id)
        text = f"session {info.session_id} is cleared; its next cell is {info.execution_count + 1}."
        return Answer([Text("\n".join([text, *info.notices]))], content.data("ingle/session", info))

    async def _save_repl_session(self, given: arguments.SaveSession, progress: Progress) -> Answer:
        filepath = self._path("filepath", given.filepath)
        saving = self.service.save_session(given.session_id, filepath, start=self._cwd)
        saved = await self._within_call(saving)
        if saved is None:
            return Answer(
                [Text(f"session {given.session_id} is large and still being saved; it can be used meanwhile.")]
            )
        return Answer([Text(texts.saved_text(saved))], content.data("ingle/saved", saved))

    async def _load_repl_session(self, given: arguments.LoadSession, progress: Progress) -> Answer:
        filepath = self._path("filepath", given.filepath)
        name = given.session_id or await self._free_name(filepath)
        loading = self.service.load_session(
            filepath,
            name,
            cwd=self._cwd,
            start=self._cwd,
            rerun=given.rerun,
            durable=self._durable and name == MAIN,
        )
        restored = await self._within_call(loading)
        if restored is None:
            return Answer([Text(f"it is large and still being loaded; list_repl_sessions will show {name}.")])
        self._shown.pop(restored.session.session_id, None)
        return Answer([Text(texts.restored_text(restored))], content.data("ingle/restored", restored))

    async def _free_name(self, filepath: str) -> str:
        """Return the name for a loaded session: `main`, or that of the save, or that with a number."""
        taken = {info.session_id for info in await self.service.list_sessions()}
        base = os.path.basename(filepath).removesuffix(".ingle")
        if not is_name(f"{base}-{len(taken) + 1}"):
            base = "loaded"
        names = [MAIN, base, *(f"{base}-{number}" for number in range(2, len(taken) + 2))]
        return next(name for name in names if name not in taken)

    def _path(self, argument: str, path: str) -> str:
        """Return a path with the owner's `~` expanded. A server does not know the home folder of its other callers."""
        if not path.startswith("~"):
            return path
        expanded = os.path.expanduser(path) if self.service.caller.tenant == "" else path
        if expanded.startswith("~"):
            raise errors.InvalidRequest(f"{argument}: write the path in full instead of {path[:PATH_CHARS]!r}")
        return expanded

    async def _within_call(self, work: Coroutine[Any, Any, Done]) -> Done | None:
        """Return the result, or None if it takes too long; the work then continues."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await asyncio.wait({task}, timeout=self._deadline(self._longest) - self._clock())
        if task.done():
            return task.result()
        # A later failure is not reported: the session or snapshot is just missing.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return None

    async def _fork_repl_session(self, given: arguments.ForkSession, progress: Progress) -> Answer:
        made = await self.service.fork_session(
            given.session_id, given.new_session_id, count=given.count, reseed=given.reseed
        )
        return Answer([Text(texts.forks_text(given.session_id, made))], content.data("ingle/sessions", made))

    async def _rollback_repl_session(self, given: arguments.RollbackSession, progress: Progress) -> Answer:
        if given.action == "rollback":
            back = await self.service.rollback(given.session_id, given.checkpoint)
            # The next cell's result tells of the rollback too, for callers that do not know of it.
            told = frozenset([back.notice, *back.checkpoint.notices])
            self._remember(given.session_id, Shown(back.session.execution_count + 1, 0, told))
            return Answer([Text(texts.rolled_back_text(back))], content.data("ingle/rollback", back))
        if given.action == "list":
            found = await self.service.checkpoints(given.session_id)
            return Answer([Text(texts.checkpoints_text(found))], content.data("ingle/checkpoints", found))
        if given.checkpoint is None:
            raise errors.InvalidRequest("a checkpoint needs a name: pass checkpoint=…; nothing was done")
        if given.action == "drop":
            await self.service.drop_checkpoint(given.session_id, given.checkpoint)
            return Answer([Text(f"checkpoint {given.checkpoint} of {given.session_id} is dropped.")])
        kept = await self.service.checkpoint(given.session_id, given.checkpoint)
        return Answer([Text(texts.checkpoint_text(given.session_id, kept))], content.data("ingle/checkpoint", kept))

    async def _diff(self, given: arguments.CompareSession, progress: Progress) -> Answer:
        return Answer([Text(diff_text(await self.service.diff(given.session_id, given.to)))])

    async def _trial(self, given: arguments.Trial, progress: Progress) -> Answer:
        return await trials.trial(self.service, given, given.wait)

    async def _try_cells(self, given: arguments.TryCells, progress: Progress) -> Answer:
        return await trials.try_cells(self.service, given)

    async def _inspect_failure(self, given: arguments.InspectFailure, progress: Progress) -> Answer:
        return await trials.inspect_failure(self.service, given)

    async def _search_tools(self, given: arguments.SearchTools, progress: Progress) -> Answer:
        found = await self.service.search_tools(given.session_id, given.query)
        return Answer([Text(texts.tools_text(found))], content.data("ingle/tools", found))

    async def _add_to_stdlib(self, given: arguments.AddToStdlib, progress: Progress) -> Answer:
        change = await self.service.add_to_stdlib(given.function_code)
        return Answer([Text(texts.stdlib_change_text(change))], content.data("ingle/stdlib", change))

    async def _list_stdlib_functions(self, given: arguments.ListStdlib, progress: Progress) -> Answer:
        stdlib = await self.service.list_stdlib()
        return Answer([Text(texts.stdlib_text(stdlib))], content.data("ingle/stdlib", stdlib))

    async def _destroy_repl_session(self, given: arguments.DestroySession, progress: Progress) -> Answer:
        before = await self.service.get_session(given.session_id)
        ended = await self.service.end_session(given.session_id)
        # An ended session has no variables and memory, so the last values are shown. Its notices are of no use.
        info = msgspec.structs.replace(before, state=ended.state, execution_count=ended.execution_count, notices=[])
        self._shown.pop(given.session_id, None)
        return Answer([Text(f"ended: {texts.session_line(info)}")], content.data("ingle/session", info))


def _shell_runs(task: Task) -> bool:
    """Return whether the shell of a command runs. Processes that it has left running do not count."""
    return task.status == "running" and task.exit_code is None and task.signal is None


def _nothing_yet(session_id: str) -> Answer:
    return Answer([Text(f"[nothing has run yet · session {session_id}]")])


async def _show_task(task: Task, from_line: int = 0) -> Answer:
    return await _render(len(task.stdout) + len(task.stderr), content.of_task, task, from_line)


async def _render(characters: int, make: Callable[..., Answer], *given: Any) -> Answer:
    """Make the answer, in a thread if it is long: cleaning hostile text can take long."""
    return make(*given) if characters <= MAX_INLINE_CHARS else await asyncio.to_thread(make, *given)


def is_name(text: str) -> bool:
    try:
        check_name(text)
    except errors.InvalidName:
        return False
    return True
