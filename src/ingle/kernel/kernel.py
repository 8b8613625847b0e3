"""The kernel: translates requests of Jupyter to a session, and its events to messages.

Requests arrive in the main thread, and those of the control channel in another. A request that interrupts or ends the
kernel is handed to the loop of the main thread, which owns the client.
"""

import asyncio
import secrets
import signal
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar

from ipykernel.kernelbase import Kernel

from ingle import AsyncClient, __version__, errors
from ingle.client.aio.session import AsyncSession
from ingle.events import Done, ErrorRaised, InputWanted, Result
from ingle.render import jupyter
from ingle.render.prompts import without_prompts

END_SECONDS = 10.0
"""Time for a request of the control channel."""

NAME_BYTES = 5
EXIT_CODE = "raise SystemExit"

NO_INPUT = jupyter.error("StdinNotImplementedError", "this frontend does not support input requests", "")


class IngleKernel(Kernel):
    """Kernel on a session of its own, or on one that lives already."""

    implementation = "ingle"
    implementation_version = __version__
    banner = "Python in an ingle session"
    language_info = jupyter.language_info("3")

    environment: ClassVar[str | None] = None
    """Environment of its session. Default: the service's own interpreter."""

    joined: ClassVar[str | None] = None
    """Name of a session that lives already, and outlives the kernel."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._client: AsyncClient | None = None
        self._attached: AsyncSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        """Whether the main thread waits for an answer of the person."""

    async def _session(self) -> AsyncSession:
        """Return the session, which is found or created on first use."""
        if self._attached is None:
            self._loop = asyncio.get_running_loop()
            self._client = AsyncClient()
            await self._client.__aenter__()
            if self.joined is not None:
                self._attached = self._client.session(self.joined, create=False, keep=True)
            else:
                name = f"kernel-{secrets.token_hex(NAME_BYTES)}"
                self._attached = self._client.session(name, environment=self.environment, create=True)
            await self._attached.__aenter__()
        return self._attached

    # --- code ---

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, Any] | None = None,
        allow_stdin: bool = False,
        **given: Any,
    ) -> dict[str, Any]:
        if not code.strip():
            return self._ok()
        self._allow_stdin = allow_stdin  # the base class reads it in `raw_input`
        values: dict[str, Any] = {}
        try:
            result = await self._run(code, silent=silent, allow_stdin=allow_stdin)
            if result is not None and result.success:
                values = await self._evaluate(user_expressions or {})
        except errors.IngleError as error:
            told = jupyter.error(type(error).__name__, error.message, "")
            self._publish("error", told)
            return {"status": "error", "execution_count": self.execution_count, **told}
        if result is None:
            return {"status": "error", "execution_count": self.execution_count, **NO_INPUT}
        reply = {**jupyter.execute_reply(result), "execution_count": self.execution_count}
        return {**reply, "user_expressions": values} if reply["status"] == "ok" else reply

    async def _evaluate(self, expressions: dict[str, str]) -> dict[str, Any]:
        """Return the values of expressions that a client wants with its reply. Each is a cell that shows nothing."""
        found: dict[str, Any] = {}
        for name, code in expressions.items():
            result = await self._run(code, silent=True, allow_stdin=False)
            found[name] = {"status": "error", **NO_INPUT} if result is None else jupyter.user_expression(result)
        return found

    def _ok(self) -> dict[str, Any]:
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    async def _run(self, code: str, *, silent: bool, allow_stdin: bool) -> Result | None:
        """Run a cell and show what it shows. Return None if it read input and the client takes no requests for it."""
        session = await self._session()
        refused = False
        async for event in without_prompts(session.stream(code, queue=True)):
            if isinstance(event, InputWanted):
                refused = refused or not allow_stdin
                if refused:
                    await session.interrupt(wait=0.0)
                else:
                    await self._answer(session, event)
            elif isinstance(event, Done):
                for kind, content in jupyter.ending(event.result):
                    self._publish(kind, content)
                if refused:
                    self._publish("error", NO_INPUT)
                    return None
                return event.result
            elif not (silent or (refused and isinstance(event, ErrorRaised))):
                shown = jupyter.output(event)
                if shown is not None:
                    kind, content = shown
                    if kind == "execute_result":
                        content = {**content, "execution_count": self.execution_count}
                    self._publish(kind, content)
        raise errors.SessionNotFound(session.name)

    async def _answer(self, session: AsyncSession, asked: InputWanted) -> None:
        """Ask the person, and give the answer to the cell."""
        self._reading = True
        try:
            text: str | None = (self.getpass if asked.secret else self.raw_input)(asked.prompt)
        except EOFError:
            text = None
        except KeyboardInterrupt:
            await session.interrupt(wait=0.0)
            return
        finally:
            self._reading = False
        try:
            await session.input(text or "", eof=text is None, wait=0.0)
        except errors.NotWaiting:
            return  # the cell was interrupted meanwhile

    def _publish(self, kind: str, content: dict[str, Any]) -> None:
        self.send_response(self.iopub_socket, kind, content)

    # --- help for people who write code ---

    async def do_complete(self, code: str, cursor_pos: int | None) -> dict[str, Any]:
        cursor = len(code) if cursor_pos is None else cursor_pos
        return jupyter.complete_reply(await (await self._session()).complete(code, cursor))

    async def do_inspect(
        self, code: str, cursor_pos: int | None, detail_level: int = 0, omit_sections: Any = ()
    ) -> dict[str, Any]:
        cursor = len(code) if cursor_pos is None else cursor_pos
        return jupyter.inspect_reply(await (await self._session()).inspect(code, cursor, source=detail_level > 0))

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        return jupyter.is_complete_reply(await (await self._session()).is_complete(code))

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
    ) -> dict[str, Any]:
        attached = await self._session()
        count = (await attached.info()).execution_count
        wanted = jupyter.HistoryRequest(hist_access_type, output, n, start, stop, pattern, unique)
        first, number = wanted.cells(count)
        cells = await attached.cells(first, number) if number else []
        return {"status": "ok", "history": wanted.lines(cells)}

    # --- the control channel, in a thread of its own ---

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        content = {"status": "ok"}
        if self._reading:
            # The main thread waits for the person, and its loop does not run.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif self._attached is not None:
            await self._in_main_loop(self._attached.interrupt(wait=0.0))
        self.session.send(stream, "interrupt_reply", content, parent, ident=ident)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        if self._attached is not None and not self._reading:
            await self._in_main_loop(self._end(self._attached, restart))
        return {"status": "ok", "restart": restart}

    async def _end(self, session: AsyncSession, restart: bool) -> None:
        """End the session, or leave one that was joined; a restart gives that one a new process."""
        try:
            if self.joined is not None and restart:
                await session.interrupt()
                await session.run(EXIT_CODE)
            await session.__aexit__(None, None, None)
        except errors.IngleError as error:
            self.log.warning("the session could not be ended: %s", error)
        if self._client is not None:
            await self._client.close()
        self._client = self._attached = None

    async def _in_main_loop(self, work: Coroutine[Any, Any, Any]) -> None:
        assert self._loop is not None
        if asyncio.get_running_loop() is self._loop:
            await work
            return
        done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        async with asyncio.timeout(END_SECONDS):
            await done


def run(connection_file: str, environment: str | None, joined: str | None) -> None:
    """Run a kernel until its client ends it."""
    from ipykernel.kernelapp import IPKernelApp

    IngleKernel.environment, IngleKernel.joined = environment, joined
    IPKernelApp.launch_instance(argv=["-f", connection_file], kernel_class=IngleKernel)
