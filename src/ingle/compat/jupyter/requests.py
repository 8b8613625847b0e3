"""Requests of a kernel's client besides running code: completion, inspection, history, interrupt, shutdown."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from ingle import __version__, errors
from ingle.compat.jupyter.kernels import Kernel, Kernels
from ingle.render import jupyter
from ingle.service import Service


class ExecuteRequest(Struct):
    code: str
    silent: bool = False
    allow_stdin: bool = False
    stop_on_error: bool = True
    user_expressions: dict[str, str] = field(default_factory=dict)


class InputReply(Struct):
    value: str = ""


class CompleteRequest(Struct):
    code: str
    cursor_pos: jupyter.Natural | None = None


class InspectRequest(Struct):
    code: str
    cursor_pos: jupyter.Natural | None = None
    detail_level: int = 0


class IsCompleteRequest(Struct):
    code: str


class ShutdownRequest(Struct):
    restart: bool = False


class Requests:
    """Answers for one kernel."""

    def __init__(self, service: Service, kernels: Kernels, kernel: Kernel) -> None:
        self._service = service
        self._kernels = kernels
        self._kernel = kernel
        self._handlers: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "kernel_info_request": self._kernel_info,
            "connect_request": self._connect,
            "complete_request": self._complete,
            "inspect_request": self._inspect,
            "is_complete_request": self._is_complete,
            "history_request": self._history,
            "comm_info_request": self._comm_info,
            "interrupt_request": self._interrupt,
            "shutdown_request": self._shutdown,
        }

    async def answer(self, kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
        """Return the content of the reply; None for a message that has none."""
        handler = self._handlers.get(kind)
        if handler is None:
            if not kind.endswith("_request"):
                return None
            return jupyter.refusal(errors.NotFound(f"this kernel has no {kind[:80]}"))
        try:
            return await handler(content)
        except (errors.IngleError, msgspec.ValidationError) as error:
            return jupyter.refusal(error)

    async def _kernel_info(self, content: dict[str, Any]) -> dict[str, Any]:
        info = await self._service.get_session(self._kernel.session_id)
        return jupyter.kernel_info(__version__, info.python)

    async def _connect(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok"}

    async def _complete(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(content, CompleteRequest)
        cursor = _cursor(asked.code, asked.cursor_pos)
        return jupyter.complete_reply(await self._service.complete(self._kernel.session_id, asked.code, cursor))

    async def _inspect(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(content, InspectRequest)
        told = await self._service.inspect(
            self._kernel.session_id, asked.code, _cursor(asked.code, asked.cursor_pos), source=asked.detail_level > 0
        )
        return jupyter.inspect_reply(told)

    async def _is_complete(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(content, IsCompleteRequest)
        try:
            return jupyter.is_complete_reply(await self._service.is_complete(self._kernel.session_id, asked.code))
        except errors.Busy:
            return {"status": "unknown"}

    async def _history(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(content, jupyter.HistoryRequest)
        count = (await self._service.get_session(self._kernel.session_id)).execution_count
        first, number = asked.cells(count)
        cells = await self._service.cells(self._kernel.session_id, first, number) if number else []
        return {"status": "ok", "history": asked.lines(cells)}

    async def _comm_info(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "comms": {}}

    async def _interrupt(self, content: dict[str, Any]) -> dict[str, Any]:
        await self._service.interrupt(self._kernel.session_id, wait=0.0)
        return {"status": "ok"}

    async def _shutdown(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(content, ShutdownRequest)
        if asked.restart:
            await self._kernels.restart(self._service, self._kernel)
        else:
            await self._kernels.end(self._service, self._kernel)
        return {"status": "ok", "restart": asked.restart}


def _cursor(code: str, cursor: int | None) -> int:
    return len(code) if cursor is None else min(cursor, len(code))
