"""All sessions of a tenant over a WebSocket: each of them once, then what changes.

However many pages look, the sessions of a tenant are listed once a second, and each change is encoded once. A client
that falls behind gets the whole list again, so a slow one costs no memory.
"""

import asyncio
import os
import shutil
import time
from collections import deque
from contextlib import suppress

import msgspec
from msgspec import Struct
from starlette.types import Receive, Send

from ingle import errors
from ingle.callers import ADMIN, READ, Caller
from ingle.events import SessionInfo
from ingle.grants import ApprovalInfo
from ingle.http.problems import POLICY_VIOLATION
from ingle.requests import Author
from ingle.service import Service
from ingle_worker.wire import states

PATH = "/v1/overview"

TICK_SECONDS = 1.0

KEPT_CHANGES = 8
"""Changes that are kept for clients that are a little late."""

CODE_CHARS = 160
NOTICE_CHARS = 400

WAITING_STATES = (states.WAITING, states.APPROVAL)

_encoder = msgspec.json.Encoder()


class SessionRow(Struct, frozen=True, omit_defaults=True):
    """One session, as the list of the console shows it."""

    session_id: str
    state: str
    created_at: float
    cells: int
    """Number of cells that ran."""
    since: float | None = None
    """When the last cell began."""
    memory: int | None = None
    memory_limit: int | None = None
    cpu: float | None = None
    """Cores in use since the last look."""
    durable: bool = False
    code: str = ""
    """First line of the last cell that does something."""
    author: Author | None = None
    """Who ran it."""
    status: str = ""
    """How the last cell ended."""
    prompt: str | None = None
    """What a waiting cell asks."""
    secret: bool = False
    """The answer is not to be shown."""
    approval: ApprovalInfo | None = None
    """The call of a tool that waits for a person."""
    notice: str = ""
    """The last notice of the session."""
    isolation: str = ""
    parent: str | None = None
    """The session that it was forked from."""
    trial: str | None = None
    """The open trial that it waits for."""


class Machine(Struct, frozen=True):
    """Totals of the machine."""

    cores: int
    load: float
    memory: int
    memory_used: int
    disk: int
    disk_used: int


class All(Struct, tag_field="type", tag="all"):
    sessions: list[SessionRow]
    machine: Machine | None


class Changed(Struct, tag_field="type", tag="changed"):
    sessions: list[SessionRow]
    gone: list[str]
    machine: Machine | None


class Overviews:
    """One `Overview` for each tenant that somebody looks at."""

    def __init__(self) -> None:
        self._by_tenant: dict[tuple[str, bool], Overview] = {}

    async def follow(self, service: Service, receive: Receive, send: Send) -> None:
        """Serve one client until it goes."""
        service.check(READ)
        caller = service.caller
        key = (caller.tenant, ADMIN in caller.scopes)
        if key not in self._by_tenant:
            # Looks go on for others when the token of the first one is revoked.
            acting = service.acting_for(Caller("overview", caller.tenant, frozenset({READ})))
            self._by_tenant[key] = Overview(acting, shows_machine=key[1])
        await receive()
        await send({"type": "websocket.accept"})
        leaving = asyncio.get_running_loop().create_task(_wait_closed(receive))
        sending = asyncio.get_running_loop().create_task(self._send(key, caller, send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, sending):
                task.cancel()
            results = await asyncio.gather(leaving, sending, return_exceptions=True)
        for failure in results:
            # Sending to a client that is gone raises OSError.
            if isinstance(failure, Exception) and not isinstance(failure, OSError):
                raise failure

    async def _send(self, key: tuple[str, bool], caller: Caller, send: Send) -> None:
        overview = self._by_tenant[key]
        overview.enter()
        try:
            seen = 0
            while not caller.revoked:
                seen, texts = await overview.after(seen)
                for text in texts:
                    await send({"type": "websocket.send", "text": text})
        finally:
            if overview.leave():
                self._by_tenant.pop(key, None)
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "the token was revoked"})


async def _wait_closed(receive: Receive) -> None:
    while (await receive())["type"] == "websocket.receive":
        pass


class Overview:
    """Rows of one tenant's sessions, and the last changes."""

    def __init__(self, service: Service, shows_machine: bool) -> None:
        self._service = service
        self._shows_machine = shows_machine
        self._rows: dict[str, SessionRow] = {}
        self._machine: Machine | None = None
        self._cpu: dict[str, tuple[float, float]] = {}
        self._version = 0
        self._changes: deque[tuple[int, str]] = deque(maxlen=KEPT_CHANGES)
        self._news = asyncio.Event()
        self._clients = 0
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self._clients += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_on())

    def leave(self) -> bool:
        """Count one client less. Return whether it was the last, and looking has ended."""
        self._clients -= 1
        if self._clients or self._task is None:
            return False
        self._task.cancel()
        self._task = None
        return True

    async def after(self, seen: int) -> tuple[int, list[str]]:
        """Wait a while for more than the version `seen`. Return the version and the texts to send, perhaps none."""
        if self._version == seen:
            if self._task is None or self._task.done():
                raise errors.Unavailable("the list of sessions cannot be read; see the log")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS * 2):
                    await self._news.wait()
        if self._version == seen:
            return seen, []
        texts = [text for version, text in self._changes if version > seen]
        if seen == 0 or len(texts) < self._version - seen:
            whole = All(list(self._rows.values()), self._machine)
            texts = [_encoder.encode(whole).decode()]
        return self._version, texts

    async def _look_on(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(TICK_SECONDS)

    async def _look(self) -> None:
        rows: dict[str, SessionRow] = {}
        for info in await self._service.list_sessions():
            with suppress(errors.IngleError):
                rows[info.session_id] = await self._row(info)
        machine = await asyncio.to_thread(read_machine) if self._shows_machine else None
        changed = [row for name, row in rows.items() if self._rows.get(name) != row]
        gone = [name for name in self._rows if name not in rows]
        for name in gone:
            self._cpu.pop(name, None)
        if changed or gone or machine != self._machine or not self._version:
            self._rows, self._machine = rows, machine
            self._version += 1
            self._changes.append((self._version, _encoder.encode(Changed(changed, gone, machine)).decode()))
            self._news.set()
            self._news = asyncio.Event()

    async def _row(self, info: SessionInfo) -> SessionRow:
        before = self._rows.get(info.session_id)
        code, status, author = "", "", None
        prompt, secret, approval = None, False, None
        same = before is not None and (before.state, before.cells) == (info.state, info.execution_count)
        if before is not None and same and info.state not in WAITING_STATES:
            code, status, author = before.code, before.status, before.author
            prompt, secret = before.prompt, before.secret
        elif info.execution_count:
            for cell in await self._service.cells(info.session_id, info.execution_count, 1):
                code, status, author = _first_line(cell.code), cell.status, cell.author
            if info.state in WAITING_STATES:
                result = await self._service.wait(info.session_id, info.execution_count, wait=0.0)
                prompt, secret, approval = result.prompt, result.prompt_secret, result.approval
        return SessionRow(
            session_id=info.session_id,
            state=info.state,
            created_at=info.created_at,
            cells=info.execution_count,
            since=info.last_executed,
            memory=info.memory,
            memory_limit=info.limits.memory,
            cpu=self._rate(info),
            durable=info.durable,
            code=code,
            status=status,
            author=author,
            prompt=prompt,
            secret=secret,
            approval=approval,
            notice=info.notices[-1][:NOTICE_CHARS] if info.notices else "",
            isolation=info.isolation,
            parent=info.parent,
            trial=info.trial,
        )

    def _rate(self, info: SessionInfo) -> float | None:
        """Return the cores that a session used since the last look; None where that is not known."""
        if info.cpu_seconds is None:
            self._cpu.pop(info.session_id, None)
            return None
        now = time.monotonic()
        then, used = self._cpu.get(info.session_id, (now, info.cpu_seconds))
        self._cpu[info.session_id] = (now, info.cpu_seconds)
        if now <= then:
            return None
        # Rounded, so that an idle session does not change all the time.
        return round(max(0.0, info.cpu_seconds - used) / (now - then), 2)


def _first_line(code: str) -> str:
    """Return the first line of a cell that does something, or else its first line."""
    lines = [line.strip() for line in code[: CODE_CHARS * 10].splitlines() if line.strip()]
    busy = (line for line in lines if not line.startswith(("#", "import ", "from ", "@")))
    return next(busy, lines[0] if lines else "")[:CODE_CHARS]


def read_machine() -> Machine:
    """Return the totals of this machine. Blocks for a moment."""
    facts: dict[str, int] = {}
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as opened:
        for line in opened:
            name, _, rest = line.partition(":")
            facts[name] = int(rest.split()[0]) * 1024
    memory = facts.get("MemTotal", 0)
    disk = shutil.disk_usage("/")
    # In steps of 16 MB, so that an idle machine does not change all the time.
    step = 1 << 24
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        load=round(os.getloadavg()[0], 1),
        memory=memory,
        memory_used=(memory - facts.get("MemAvailable", memory)) // step * step,
        disk=disk.total,
        disk_used=(disk.total - disk.free) // step * step,
    )
