"""Addresses of services, paths below them, and the pauses between attempts: shared by all clients."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from ingle.errors import InvalidName, InvalidRequest

NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 64

LOCAL_URL = "http://localhost"
"""What a request to a socket calls its host."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

PATIENCE = 30.0
"""How long a service that was there may be gone before the client gives up."""

FIRST_PATIENCE = 5.0
"""How long one may fail that takes connections and has never answered."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Between two attempts; each pause is twice the last, give or take."""


@dataclass(frozen=True)
class Address:
    """Where a service is, and the token for it."""

    url: str
    """Without a slash at its end."""
    token: str | None = field(default=None, repr=False)
    path: Path | None = None
    """The socket of a local service, which is what is connected to then."""

    def __str__(self) -> str:
        """Return what `parse_address` reads. Never the token."""
        return self.url if self.path is None else f"unix:{self.path}"

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http")

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def near(self) -> bool:
        """On this machine: no proxy of the environment stands between."""
        return urlsplit(self.url).hostname in LOOPBACK


def parse_address(url: str, token: str | None) -> Address:
    """Parse an address that a user wrote: `http://…`, `https://…`, or `unix:` and the path of a socket under `run/`."""
    if url.startswith("unix:"):
        return Address(LOCAL_URL, path=Path(url.removeprefix("unix:")))
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidRequest(f"{url!r} is not the URL of a service; it looks like http://127.0.0.1:8377")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("a URL with a name or a password in it is refused; give the token apart from it")
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidRequest("the token must be printable ASCII, without spaces, and not empty")
    return Address(url.rstrip("/"), token)


def given_address(url: str | None, token: str | None) -> Address | None:
    """What the caller names, else `INGLE_URL` and `INGLE_TOKEN`; None when a local service is meant."""
    url = url or os.environ.get("INGLE_URL") or None
    if url is None:
        if token is not None:
            raise InvalidRequest("a token without a URL has no use: a local service needs none; give the `url` too")
        return None
    return parse_address(url, token if token is not None else os.environ.get("INGLE_TOKEN") or None)


def session_path(name: str) -> str:
    """The path of a session."""
    return f"/v1/sessions/{_checked(name, 'session')}"


def snapshot_path(name: str) -> str:
    """The path of a saved session."""
    return f"/v1/snapshots/{_checked(name, 'snapshot')}"


def task_path(task_id: str) -> str:
    """The path of a shell task."""
    return f"/v1/shell/{_checked(task_id, 'task')}"


def _checked(name: str, what: str) -> str:
    """A name that breaks the rule would be another path."""
    if not name or len(name) > MAX_NAME or name.startswith(".") or not NAME.issuperset(name):
        raise InvalidName(
            f"{name[:80]!r} cannot name a {what}: take 1 to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "not starting with a dot"
        )
    return name


def file_path(path: str) -> str:
    """A file's path for a URL, in which dots and empty steps would mean another place."""
    if not path or any(step in ("", ".", "..") for step in path.split("/")) or "\0" in path:
        raise InvalidRequest(
            f"{path[:200]!r} is not a path below the session's folder; name it without '..', '.', '//' or a "
            "slash at its ends"
        )
    return quote(path, safe="/", encoding="utf-8", errors="surrogateescape")


class Retries:
    """Pauses between attempts, until nothing has come of them for too long.

    That time begins with the first that fails: how long it took until then, waiting for an answer, says nothing.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    def progress(self) -> None:
        self._since = None
        self._pause = FIRST_PAUSE

    def next_pause(self) -> float | None:
        """How long to wait before the next attempt; None when it is enough."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since >= self._patience:
            return None
        # Late: the commands that only look at services never get here, and start at once.
        import random

        pause = self._pause * random.uniform(0.75, 1.25)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause


def time_left(deadline: float | None) -> float | None:
    """Seconds until a deadline on the monotonic clock, never below 0; None when there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def deadline_after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds
