"""Contexts of a sandbox: sessions that share its folder. The default one is the sandbox's own session."""

import dataclasses
import itertools
import secrets
import time
from typing import Any

from ingle import errors
from ingle.compat.e2b.in_session import startup_code
from ingle.compat.e2b.sandboxes import ID_BYTES, Context, Sandbox
from ingle.events import SessionInfo
from ingle.http.auth.principals import Principal
from ingle.requests import NewCell, NewSession
from ingle_worker.wire import states

LANGUAGES = ("python", "py", "ipython", "python3")
PYTHON = "python"

HOME = "/home/user"
CONTEXT_BYTES = 6

PREPARE_SECONDS = 10.0
"""Time for the first cell of a context."""

RESTART_SECONDS = 10.0
"""Time for a running cell to end when its context is restarted."""


WITHOUT_PROCESS = (states.HIBERNATED, states.STARTING, states.DEAD)


class ContextNotFound(errors.NotFound):
    def __init__(self, context_id: str) -> None:
        super().__init__(f"Context {context_id[:80]} not found")


def check_language(language: str | None) -> None:
    if language is not None and language.strip().lower() not in LANGUAGES:
        raise errors.InvalidRequest(f"ingle runs Python, and not {language[:80]!r}")


class Contexts:
    """Makes and finds the contexts of sandboxes."""

    async def begin(self, sandbox: Sandbox, snapshot: str | None = None) -> None:
        """Create the session of a new sandbox, with the state of a snapshot if one is named."""
        if snapshot is not None:
            info = (await sandbox.service.load_session(snapshot, sandbox.id)).session
        else:
            new = NewSession(session_id=sandbox.id, own_folder=True, **self._options(sandbox))
            info = await sandbox.service.create(new)
        sandbox.contexts[sandbox.id] = await self._prepare(sandbox, info, None)

    async def create(self, sandbox: Sandbox, cwd: str | None) -> Context:
        """Create one more context, in the folder of the sandbox."""
        name = _new_name(sandbox)
        new = NewSession(session_id=name, shares=sandbox.id, **self._options(sandbox))
        made = await self._prepare(sandbox, await sandbox.service.create(new), cwd)
        sandbox.contexts[made.id] = made
        return made

    def _options(self, sandbox: Sandbox) -> dict[str, Any]:
        return {"env": sandbox.envs, "network": sandbox.network, "home": HOME, "include_stdlib": False}

    async def _prepare(self, sandbox: Sandbox, info: SessionInfo, cwd: str | None) -> Context:
        """Run the first cell of a session, which makes it show values as E2B does."""
        name = info.session_id
        try:
            result = await sandbox.service.execute_cell(name, NewCell(startup_code(cwd), PREPARE_SECONDS))
        except BaseException:
            await sandbox.service.end_session(name)
            raise
        return Context(name, name, cwd or info.cwd, result.cell)

    async def prepare_again(self, sandbox: Sandbox, context: Context) -> None:
        """Run the first cell once more if the session has lost its process since the last run."""
        if not context.exited:
            # ingle frees the processes of idle sessions only, and a description takes longer than a short run.
            if time.monotonic() - context.used_at < sandbox.service.settings.idle_timeout:
                return
            if (await sandbox.service.get_session(context.session_id)).state not in WITHOUT_PROCESS:
                return
        context.exited = False
        code = startup_code(None)
        await sandbox.service.execute_cell(context.session_id, NewCell(code, PREPARE_SECONDS, queue=True))
        context.hidden_cells += 1

    async def fork(self, original: Sandbox, count: int, principal: Principal) -> list[Sandbox]:
        """Make so many sandboxes with live copies of all contexts, which have the same ids there."""
        service = original.service
        default, *others = original.contexts.values()
        infos = await service.fork_session(default.session_id, secrets.token_hex(ID_BYTES), count=count)
        names = [info.session_id for info in infos]
        made = [
            Sandbox(
                name,
                principal,
                original.template,
                dict(original.metadata),
                original.envs,
                network=original.network,
                auto_pause=original.auto_pause,
                auto_resume=original.auto_resume,
                contexts={default.id: _copied(default, name)},
            )
            for name in names
        ]
        try:
            for sandbox, context in itertools.product(made, others):
                name = _new_name(sandbox)
                await service.fork_session(context.session_id, name, shares=sandbox.id)
                names.append(name)
                sandbox.contexts[context.id] = _copied(context, name)
        except BaseException:
            for name in reversed(names):
                await service.end_session(name)
            raise
        return made

    def find(self, sandbox: Sandbox, context_id: str | None) -> Context:
        if context_id is None:
            return sandbox.default_context
        if context_id not in sandbox.contexts:
            raise ContextNotFound(context_id)
        return sandbox.contexts[context_id]

    async def restart(self, sandbox: Sandbox, context: Context) -> None:
        """Give the context an empty namespace."""
        await sandbox.service.interrupt(context.session_id, wait=RESTART_SECONDS)
        await sandbox.service.clear_session(context.session_id)

    async def remove(self, sandbox: Sandbox, context: Context) -> None:
        if context is sandbox.default_context:
            raise errors.InvalidRequest("the default context ends with its sandbox; kill the sandbox instead")
        del sandbox.contexts[context.id]
        await sandbox.service.end_session(context.session_id)


def _new_name(sandbox: Sandbox) -> str:
    """Return a name for the session of a further context."""
    return f"{sandbox.id}.{secrets.token_hex(CONTEXT_BYTES)}"


def _copied(context: Context, session_id: str) -> Context:
    """Return a context of a fork: the same one for clients, in another session."""
    return dataclasses.replace(context, session_id=session_id, used_at=time.monotonic(), next_event=1)
