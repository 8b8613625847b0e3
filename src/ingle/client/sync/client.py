# Generated from ../aio/client.py by tools/unasync.py: edit that file, and run the script.
"""`Client`: the connection to a service, which it finds or starts."""

import os
from collections.abc import Iterable
from os import PathLike
from types import TracebackType
from typing import Any

from msgspec import Struct

from ingle import errors
from ingle.client.address import Folder, snapshot_path
from ingle.client.batch import parts_of
from ingle.client.decode import read
from ingle.client.results import ItemResult
from ingle.client.sync.connection import Connection
from ingle.client.sync.io import ItemResults, closing
from ingle.client.sync.session import Session
from ingle.client.sync.shell import Shell
from ingle.events import Restored, SessionInfo, SnapshotInfo, Stdlib, StdlibChange
from ingle.requests import SessionLimits

ADD_SECONDS = 30.0
"""Time in which the server tests an addition to the library."""


ITEM_SECONDS = 300.0
"""Default time limit of an item of a batch."""

ITEM_SLACK_SECONDS = 400.0
"""Time in addition to that limit, in which an item waits for its turn, starts and ends."""


class SessionList(Struct):
    sessions: list[SessionInfo]


class SnapshotList(Struct):
    snapshots: list[SnapshotInfo]


LOAD_SECONDS = 3600.0
"""Maximum time of a load: a snapshot may have many gigabytes."""


class Client(Shell):
    """Client of a service with sessions.

        with Client() as client, client.session("main") as session:
            result = session.run("6 * 7")
            print(result.text)

    Without a `url` (or `INGLE_URL`) it uses the service of this user's data folder (`ingle serve`) through its private
    socket, which needs no token. If there is none, it starts one that ends with this client, together with its
    sessions; `start=False` prevents that. With a `url` pass the `token` too, or set `INGLE_TOKEN`.

    Sessions start in the `folder` and may read and write it, or with `DIR:ro` read it. A service on this machine is
    asked to grant it to this user's sessions. The service at a `url` has to grant it already. Without a `folder` they
    start where the service says: in the first folder of `ingle serve --folder`, or else each in its own.

    Its cells name it as their author by `name`.

    It connects on first use. Any number of threads may share a synchronous client, and any number of tasks of one
    event loop an asynchronous one. A synchronous client needs no event loop, and works while one is running.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        folder: str | PathLike[str] | None = None,
        name: str | None = None,
        start: bool = True,
    ) -> None:
        self._folder = None if folder is None else Folder.read(folder)
        super().__init__(Connection(url, token, start, self._folder, name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.where}>"

    def __enter__(self) -> "Client":
        self._connection.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and end the service with its sessions if this client started it."""
        self._connection.close()

    def session(
        self,
        name: str | None = None,
        *,
        python: str | None = None,
        environment: str | None = None,
        cwd: str | PathLike[str] | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        include_stdlib: bool | None = None,
        checkpoints: str | None = None,
        keep_failures: int | None = None,
        durable: bool | None = None,
        isolation: str | None = None,
        network: str | None = None,
        gpus: str | None = None,
        limits: SessionLimits | dict[str, int] | None = None,
        shares: str | None = None,
        home: str | None = None,
        create: bool | None = None,
        keep: bool = False,
    ) -> Session:
        """Return the session of that name, which is created if missing; without a name, a new one.

        With `create=True` it must be new, and `SessionExists` is raised at its first use if it is not. With
        `create=False` it must exist, or `SessionNotFound` is raised.

        The options apply when it is created. On an existing session they have no effect, except that `SessionDiffers`
        is raised if it has another `environment`, or an `isolation` that is weaker. A relative `cwd` starts at this
        program's folder; the default is the client's `folder`. `include_stdlib=False` leaves out the user's library.
        `checkpoints="auto"` stores the state before each cell. A `durable` session is saved after each cell, and
        outlives the service. `environment` names an interpreter with packages, made by `ingle env create`.
        `isolation`, `network` and `limits` (such as `{"memory": 2 * 1024**3}`) can only be stricter than those of the
        service. `shares` names another session, whose folder it uses. In a sandbox it sees its folder as `home`.
        `keep_failures` is the number of failed cells whose moment is kept for `inspect_failure()`.
        `gpus` is `"all"` that the service grants, `"none"`, or numbers such as `"0,1"`.
        """
        if cwd is None and self._folder is not None and shares is None and home is None:
            cwd = self._folder.path
        options = {
            "python": python,
            "environment": environment,
            "cwd": None if cwd is None else os.path.abspath(cwd),
            "env": env,
            "idle_timeout": idle_timeout,
            "include_stdlib": include_stdlib,
            "checkpoints": checkpoints,
            "keep_failures": keep_failures,
            "durable": durable,
            "isolation": isolation,
            "network": network,
            "gpus": gpus,
            "limits": limits,
            "shares": shares,
            "home": home,
        }
        return Session(self._connection, name, options, keep, create)

    def map(
        self,
        code: str,
        inputs: Iterable[Any],
        *,
        concurrency: int | None = None,
        timeout: float = ITEM_SECONDS,
        limits: SessionLimits | dict[str, int] | None = None,
        ordered: bool = True,
        python: str | None = None,
        environment: str | None = None,
        cwd: str | PathLike[str] | None = None,
        include_stdlib: bool | None = None,
        isolation: str | None = None,
        network: str | None = None,
    ) -> ItemResults:
        """Run code once for each input, each time in a new session, and yield the results.

        The code has its input as the variable `item`: any value that JSON can hold. An input that is an `Item` can
        also have `stdin`, `files`, `env` and an `id`. Results come in the order of the inputs, or with `ordered=False`
        as they end. Failures are in the results: `limit` is `time` or `memory` if an item met that limit.

        `concurrency` items run at once; by default two for each core of the service. `timeout` and `limits` apply to
        each item. Each starts in a folder of its own, or all of them in `cwd`. Closing the generator, or leaving it by
        an exception, ends the items that run.
        """
        if not isinstance(code, str):
            raise errors.InvalidRequest("the code is not a text; pass the source of what to run for each `item`")
        options = {
            "concurrency": concurrency,
            "limits": limits,
            "python": python,
            "environment": environment,
            "cwd": None if cwd is None else os.path.abspath(cwd),
            "include_stdlib": include_stdlib,
            "isolation": isolation,
            "network": network,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return self._map({"code": code, "timeout": timeout, **given}, inputs, ordered, timeout + ITEM_SLACK_SECONDS)

    def _map(self, batch: dict[str, Any], inputs: Iterable[Any], ordered: bool, pause: float) -> ItemResults:
        for part in parts_of(inputs, ordered):
            lines = self._connection.lines("/v1/batch", {**batch, "items": part.items}, pause)
            with closing(lines) as answers:
                for line in answers:
                    for result in part.take(read(line, ItemResult)):
                        yield result
            part.check_complete()

    def load(
        self,
        snapshot: str,
        name: str | None = None,
        *,
        trust: bool = False,
        rerun: bool = False,
        keep: bool = True,
    ) -> Session:
        """Return a new session with the contents of a snapshot; its default name is that of the saved session.

        A snapshot that the service did not write is refused; `trust` loads it anyway, and runs the code in it.
        The session's `restored` lists what is missing; `rerun` runs the cells that made it again.
        """
        body: dict[str, Any] = {"trust": trust, "rerun": rerun}
        if name is not None:
            body["session_id"] = name
        said = self._connection.request("POST", snapshot_path(snapshot) + "/load", body=body, wait=LOAD_SECONDS)
        restored = read(said, Restored)
        session = Session(self._connection, restored.session.session_id, {}, keep)
        session.made, session.restored = True, restored
        return session

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots."""
        return read(self._connection.request("GET", "/v1/snapshots", repeatable=True), SnapshotList).snapshots

    def delete_snapshot(self, name: str) -> None:
        self._connection.request("DELETE", snapshot_path(name))

    def sessions(self) -> list[SessionInfo]:
        """Return the live sessions of the service."""
        return read(self._connection.request("GET", "/v1/sessions", repeatable=True), SessionList).sessions

    def stdlib(self) -> Stdlib:
        """Return the contents of the user's library, which new sessions load."""
        return read(self._connection.request("GET", "/v1/stdlib", repeatable=True), Stdlib)

    def add_to_stdlib(self, function_code: str) -> StdlibChange:
        """Add a function, or other code, to the user's library, replacing a function of that name.

        The server tests it first: code that does not compile or run raises `StdlibRefused` and changes nothing. New
        sessions have the function; running sessions do not.
        """
        body = {"function_code": function_code}
        return read(self._connection.request("POST", "/v1/stdlib", body=body, wait=ADD_SECONDS), StdlibChange)
