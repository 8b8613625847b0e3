"""`AsyncClient`: a service, found, started or named."""

from types import TracebackType
from typing import Any

from msgspec import Struct

from ingle.client.address import snapshot_path
from ingle.client.aio.connection import AsyncConnection
from ingle.client.aio.session import AsyncSession
from ingle.client.aio.shell import AsyncShell
from ingle.client.decode import read
from ingle.events import Restored, SessionInfo, SnapshotInfo, Stdlib, StdlibChange

ADDING = 30.0
"""Seconds for trying out what is added to the library."""


class SessionList(Struct):
    sessions: list[SessionInfo]


class SnapshotList(Struct):
    snapshots: list[SnapshotInfo]


LOADING = 3600.0
"""How long loading may take: a snapshot may hold many gigabytes."""


class AsyncClient(AsyncShell):
    """A service that holds sessions.

        async with AsyncClient() as client, client.session("main") as session:
            result = await session.run("6 * 7")
            print(result.text)

    Without a `url` (or `INGLE_URL`) it takes the service that runs on this user's data folder (`ingle serve`), through
    its private socket, for which no token is needed. If there is none it starts one, which ends with this client,
    and its sessions with it; `start=False` refuses that. With a `url` give the `token` too, or set `INGLE_TOKEN`.

    It connects at its first use. Any number of threads may share a `Client`, and any number of tasks of one event
    loop an `AsyncClient`; a `Client` needs no loop, and works where one is running.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, start: bool = True) -> None:
        super().__init__(AsyncConnection(url, token, start))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.where}>"

    async def __aenter__(self) -> "AsyncClient":
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the service, and end it if this client started it. Sessions of others, and kept ones, go on."""
        await self._connection.close()

    def session(
        self,
        name: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        include_stdlib: bool | None = None,
        checkpoints: str | None = None,
        durable: bool | None = None,
        keep: bool = False,
    ) -> AsyncSession:
        """The session of that name, made when there is none; without a name, a new one.

        `python`, `cwd`, `env`, `idle_timeout`, `include_stdlib` (False leaves the user's library out), `checkpoints`
        ("auto" keeps the state before each cell) and `durable` (it is saved after each cell, and outlives the service)
        say how it is made, and mean nothing for one that is there already.
        """
        options = {
            "python": python,
            "cwd": cwd,
            "env": env,
            "idle_timeout": idle_timeout,
            "include_stdlib": include_stdlib,
            "checkpoints": checkpoints,
            "durable": durable,
        }
        return AsyncSession(self._connection, name, options, keep)

    async def load(
        self,
        snapshot: str,
        name: str | None = None,
        *,
        trust: bool = False,
        rerun: bool = False,
        keep: bool = True,
    ) -> AsyncSession:
        """A new session with what a snapshot holds; without a `name` it has that of the session that was saved.

        A snapshot that the service did not write is refused; `trust` loads it all the same, and runs the code in it.
        What is missing is told in the session's `restored`; `rerun` runs the cells again that made it.
        """
        body: dict[str, Any] = {"trust": trust, "rerun": rerun}
        if name is not None:
            body["session_id"] = name
        said = await self._connection.request("POST", snapshot_path(snapshot) + "/load", body=body, wait=LOADING)
        restored = read(said, Restored)
        session = AsyncSession(self._connection, restored.session.session_id, {}, keep)
        session.made, session.restored = True, restored
        return session

    async def snapshots(self) -> list[SnapshotInfo]:
        """The saved sessions."""
        return read(await self._connection.request("GET", "/v1/snapshots", repeatable=True), SnapshotList).snapshots

    async def delete_snapshot(self, name: str) -> None:
        await self._connection.request("DELETE", snapshot_path(name))

    async def sessions(self) -> list[SessionInfo]:
        """The live sessions of the service."""
        return read(await self._connection.request("GET", "/v1/sessions", repeatable=True), SessionList).sessions

    async def stdlib(self) -> Stdlib:
        """What the user's library holds, which new sessions begin with."""
        return read(await self._connection.request("GET", "/v1/stdlib", repeatable=True), Stdlib)

    async def add_to_stdlib(self, function_code: str) -> StdlibChange:
        """Add a function, or other code, to the user's library; a function of that name is replaced.

        It is tried out first: what does not compile or run raises `StdlibRefused`, and nothing has changed. New
        sessions have it, those that run do not.
        """
        body = {"function_code": function_code}
        return read(await self._connection.request("POST", "/v1/stdlib", body=body, wait=ADDING), StdlibChange)
