# Generated from ../aio/attached.py by tools/unasync.py: edit that file, and run the script.
"""Base of a client's session: found or created on first use, then asked over one connection."""

import secrets
from typing import Any, Unpack

from ingle import errors
from ingle.client.address import session_path
from ingle.client.decode import read
from ingle.client.sync.connection import Connection, RequestOptions
from ingle.client.sync.io import Lock
from ingle.events import Restored, SessionInfo
from ingle.settings import LEVELS

START_SECONDS = 330.0
"""Time in which a service creates a session: under pressure it waits for its turn for five minutes at most."""


class Attached:
    """Session of a name. The first use finds or creates it."""

    def __init__(
        self,
        connection: Connection,
        name: str | None,
        options: dict[str, Any],
        keep: bool,
        create: bool | None = None,
    ) -> None:
        # A random name, so that a repeated request to create it recognises its own session.
        self.name = name if name is not None else f"s-{secrets.token_hex(6)}"
        self.made = False
        """Whether this object created the session; False before its first use."""
        self.keep = keep
        self.restored: Restored | None = None
        """The outcome of the load, if it was loaded from a snapshot."""
        self._named = name is not None
        self._create = create
        """Whether the session must be new (True) or must exist (False)."""
        self._connection = connection
        self._options = {key: value for key, value in options.items() if value is not None}
        self._path = session_path(self.name)
        self._attaching = Lock()
        self._attached = False
        self._closed = False

    def _attach(self) -> None:
        with self._attaching:
            if self._attached:
                return
            if self._create is False:
                self._check(self.info())
            elif self._create or not (self._named and self._exists()):
                self._make()
            self._attached = True

    def _exists(self) -> bool:
        try:
            found = self.info()
        except errors.SessionNotFound:
            return False
        self._check(found)
        return True

    def _check(self, found: SessionInfo) -> None:
        """Raise SessionDiffers if code would not run where the caller asks for it.

        Other options, such as limits and environment variables, have no effect on an existing session.
        """
        wanted = self._options.get("environment")
        if wanted is not None and wanted != found.environment:
            has = f"the environment {found.environment!r}" if found.environment else "no environment by name"
            raise errors.SessionDiffers(self.name, f"has {has}, not {wanted!r}")
        wanted = self._options.get("isolation")
        if wanted in LEVELS and LEVELS.index(wanted) > LEVELS.index(found.isolation):
            raise errors.SessionDiffers(self.name, f"has the isolation level {found.isolation}, not {wanted}")

    def _make(self) -> None:
        body = {"session_id": self.name, **self._options}
        try:
            said = self._connection.request("POST", "/v1/sessions", body=body, repeatable=True, wait=START_SECONDS)
            self._connection.durable[self.name] = read(said, SessionInfo).durable
            self.made = True
        except errors.SessionExists:
            if self._create and self._named:
                raise
            # Another client was first, or an earlier attempt of this one, which only a random name proves.
            self.made = not self._named
            if self._named:
                self._check(self.info())

    def info(self) -> SessionInfo:
        """Return the current state, cell count, variables and Python version."""
        found = read(self._connection.request("GET", self._path, repeatable=True), SessionInfo)
        self._connection.durable[self.name] = found.durable
        return found

    def _get(self, below: str, query: dict[str, str | int | float] | None = None, turn: float = 0.0) -> bytes:
        return self._request("GET", below, query=query, wait=turn, repeatable=True)

    def _request(self, method: str, below: str, **options: Unpack[RequestOptions]) -> bytes:
        """Find or create the session, then send a request whose path is below its own, as `Connection` does."""
        self._attach()
        return self._connection.request(method, self._path + below, **options)
