"""The translation of SandboxFusion: its routes, its tokens and its two forms of an error.

Failures of a program are in the answer. A request for something that this server does not offer is answered with the
status `SandboxError`. A request that cannot be read gets a status of HTTP and `detail`.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.callers import SERVICE
from ingle.compat.fusion.runs import ERROR, FINISHED, MAX_SECONDS, MEMORY, TIME_LIMIT, Cell, Command, Run, new_run
from ingle.compat.requests import authorization, no_route
from ingle.http.auth.principals import Principal, Principals
from ingle.http.routes.bodies import read_body
from ingle.requests import NewCell
from ingle.service import Service
from ingle.service.batch import limit_of

SUCCESS, FAILED, SANDBOX_ERROR = "Success", "Failed", "SandboxError"
LANGUAGES = ("python", "bash")

Seconds = Annotated[float, Meta(ge=0)]


class RunCode(Struct):
    code: str
    language: str
    stdin: str | None = None
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: float = -1
    files: dict[str, str | None] = field(default_factory=dict)
    fetch_files: list[str] = field(default_factory=list)


class RunJupyter(Struct):
    cells: list[str]
    cell_timeout: Seconds = 0.0
    total_timeout: Seconds = 45.0
    kernel: str = "python3"
    memory_limit_MB: float = -1
    files: dict[str, str | None] = field(default_factory=dict)
    fetch_files: list[str] = field(default_factory=list)


class Fusion:
    """Translation of SandboxFusion's API."""

    name = "sandboxfusion"
    paths: Sequence[str] = ("/run_code", "/run_jupyter", "/v1/ping")

    def __init__(self, service: Service) -> None:
        self._max_body = service.settings.max_batch
        self._routes = Router(
            [
                Route("/run_code", self._run_code, methods=["POST"]),
                Route("/run_jupyter", self._run_jupyter, methods=["POST"]),
                Route("/v1/ping", self._ping),
            ],
            redirect_slashes=False,
            default=no_route,
        )

    async def authenticate(self, scope: Scope, principals: Principals) -> Principal | None:
        """Return the caller by its token: as `Bearer`, or as the password in the address of the server."""
        scheme, given = authorization(scope)
        if scheme not in ("basic", "bearer"):
            return None
        return await principals.find(_password(given) if scheme == "basic" else given)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise errors.NotFound("there is no WebSocket here")
        await self._routes(scope, receive, send)

    def refuse(self, scope: Scope, error: errors.IngleError) -> Response:
        return JSONResponse({"detail": error.message}, error.status)

    async def _ping(self, request: Request) -> Response:
        return JSONResponse("pong")

    async def _run_code(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        asked = await read_body(request, RunCode, self._max_body)
        if asked.language not in LANGUAGES:
            return _refusal(f"the language {asked.language[:80]!r} is not offered; use python or bash")
        seconds, memory = min(asked.run_timeout, MAX_SECONDS), _memory(asked.memory_limit_MB)
        async with new_run(service, memory) as run:
            await run.put(asked.files)
            stdin = asked.stdin or ""
            if asked.language == "python":
                ended, message = await run.python(asked.code, stdin, seconds)
            else:
                ended, message = await run.bash(asked.code, stdin, seconds, memory)
            files = await run.fetch(asked.fetch_files)
        status = SUCCESS if (ended.status, ended.return_code) == (FINISHED, 0) else FAILED
        return _answer(status, message, files, compile_result=None, run_result=msgspec.to_builtins(ended))

    async def _run_jupyter(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        asked = await read_body(request, RunJupyter, self._max_body)
        if asked.kernel != "python3":
            return _refusal(f"the kernel {asked.kernel[:80]!r} is not offered; use python3")
        async with new_run(service, _memory(asked.memory_limit_MB)) as run:
            await run.put(asked.files)
            cells, driver, message = await _run_cells(run, asked)
            files = await run.fetch(asked.fetch_files)
        status = SUCCESS if driver.status == FINISHED else FAILED
        shown = [asdict(each) for each in cells]
        return _answer(status, message, files, driver=msgspec.to_builtins(driver), cells=shown)


async def _run_cells(run: Run, asked: RunJupyter) -> tuple[list[Cell], Command, str]:
    """Run cells one after another, those after an error too. A limit ends them all."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    cells: list[Cell] = []
    status, message = FINISHED, ""
    for code in asked.cells:
        left = asked.total_timeout - (loop.time() - began)
        seconds = min(left, asked.cell_timeout or left, MAX_SECONDS)
        if seconds <= 0:
            status, message = TIME_LIMIT, f"time limit of {asked.total_timeout:g} s exceeded"
            break
        shown = Cell()
        cells.append(shown)
        limit = limit_of(await run.cell(NewCell(code, seconds), shown))
        if limit is not None:
            is_time = limit == "time"
            status = TIME_LIMIT if is_time else ERROR
            message = f"time limit of {seconds:g} s exceeded" if is_time else MEMORY
            break
    returned = 0 if status == FINISHED else None
    return cells, Command(status, loop.time() - began, returned, "", message), message


def _answer(status: str, message: str, files: dict[str, str], **parts: Any) -> Response:
    return JSONResponse({"status": status, "message": message, **parts, "executor_pod_name": None, "files": files})


def _refusal(message: str) -> Response:
    return _answer(SANDBOX_ERROR, message, {}, compile_result=None, run_result=None, driver=None, cells=[])


def _memory(megabytes: float) -> int | None:
    return int(min(megabytes, 2**40) * 1024**2) if megabytes > 0 else None


def _password(encoded: bytes) -> bytes:
    """Return the password of basic authentication. Without one, return the user name."""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b""
    return password or user
