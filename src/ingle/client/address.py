"""Addresses of services, URL paths, and the pauses between retries, shared by all clients."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from ingle.errors import InvalidName, InvalidRequest

NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 64

LOCAL_URL = "http://localhost"
"""Host name in requests to a unix socket."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

RETRY_SECONDS = 30.0
"""How long a service that has answered before may be unreachable before the client gives up."""

FIRST_RETRY_SECONDS = 5.0
"""The same for a service that accepts connections and has never answered."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Pauses between retries; each is about twice the last."""


READ_ONLY = ":ro"
TRACKED = ":tracked"
SHARED = ":shared"

AGENT = "ingle-python"
"""What a client calls itself if its user gives it no name."""

MAX_CLIENT_CHARS = 64


@dataclass(frozen=True)
class Folder:
    """A folder of this machine that sessions may use."""

    path: str
    """Absolute."""
    read_only: bool = False
    tracked: bool | None = None
    """Whether checkpoints keep its files. None: as the service does by itself."""

    @classmethod
    def read(cls, given: "str | os.PathLike[str]") -> "Folder":
        """Return the folder that was written as `DIR`, `DIR:ro`, `DIR:tracked` or `DIR:shared`."""
        text = os.fspath(given)
        suffix = next((each for each in (READ_ONLY, TRACKED, SHARED) if text.endswith(each)), "")
        path = os.path.abspath(os.path.expanduser(text.removesuffix(suffix)))
        if not os.path.isdir(path):
            raise InvalidRequest(f"there is no folder {path!r}; create it, or name another")
        return cls(path, suffix == READ_ONLY, suffix == TRACKED if suffix in (TRACKED, SHARED) else None)

    @property
    def text(self) -> str:
        if self.read_only:
            return self.path + READ_ONLY
        return self.path + ("" if self.tracked is None else TRACKED if self.tracked else SHARED)

    @property
    def grant(self) -> dict[str, str | bool]:
        """The request that grants it."""
        return {"folder": self.path, "read_only": self.read_only, "tracked": bool(self.tracked)}


@dataclass(frozen=True)
class Address:
    """Address of a service, and its token."""

    url: str
    """Without a final slash."""
    token: str | None = field(default=None, repr=False)
    path: Path | None = None
    """Socket of a local service; if set, the client connects to it."""
    agent: str = AGENT
    """What the client calls itself."""

    def __str__(self) -> str:
        """Return text that `parse_address` accepts, without the token."""
        return self.url if self.path is None else f"unix:{self.path}"

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http")

    @property
    def headers(self) -> dict[str, str]:
        agent = {"User-Agent": self.agent}
        return agent if self.token is None else {**agent, "Authorization": f"Bearer {self.token}"}

    @property
    def near(self) -> bool:
        """Whether the address is on this machine, so that no proxy is used."""
        return urlsplit(self.url).hostname in LOOPBACK

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted. A scheme may be written in capitals."""
        return urlsplit(self.url).scheme != "http"


def parse_address(url: str, token: str | None) -> Address:
    """Parse the address `http://…`, `https://…`, or `unix:` and the path of a socket in `run/`."""
    if url.startswith("unix:"):
        return Address(LOCAL_URL, path=Path(url.removeprefix("unix:")))
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidRequest(f"{url!r} is not the URL of a service; write it as http://127.0.0.1:8377")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("the URL has a user name or a password; pass the token separately")
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidRequest("the token must be printable ASCII, without spaces, and not empty")
    return Address(url.rstrip("/"), token)


def given_address(url: str | None, token: str | None) -> Address | None:
    """Return the caller's address, or that of `INGLE_URL` and `INGLE_TOKEN`, or None for a local service."""
    url = url or os.environ.get("INGLE_URL") or None
    if url is None:
        if token is not None:
            raise InvalidRequest("a token needs a URL, because a local service needs no token; pass the `url` too")
        return None
    return parse_address(url, token if token is not None else os.environ.get("INGLE_TOKEN") or None)


def check_client_name(name: str | None) -> str:
    """Return what a client calls itself."""
    if name is None:
        return AGENT
    if not (0 < len(name) <= MAX_CLIENT_CHARS and name.isascii() and name.isprintable() and name == name.strip()):
        raise InvalidRequest(f"{name[:80]!r} is not a client's name: 1 to {MAX_CLIENT_CHARS} printable characters")
    if "/" in name or "(" in name:
        raise InvalidRequest(f"the client's name {name!r} has a '/' or a '('; leave them out")
    return name


def session_path(name: str) -> str:
    """Return the path of a session."""
    return f"/v1/sessions/{_checked(name, 'session')}"


def snapshot_path(name: str) -> str:
    """Return the path of a snapshot."""
    return f"/v1/snapshots/{_checked(name, 'snapshot')}"


def task_path(task_id: str) -> str:
    """Return the path of a shell task."""
    return f"/v1/shell/{_checked(task_id, 'task')}"


def _checked(name: str, what: str) -> str:
    """Return the name if it is valid; an invalid one could be another path."""
    if not name or len(name) > MAX_NAME or name.startswith(".") or not NAME.issuperset(name):
        raise InvalidName(
            f"{name[:80]!r} cannot name a {what}; use 1 to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "not starting with a dot"
        )
    return name


def file_path(path: str) -> str:
    """Return a file's path for a URL. Dots and empty steps are refused, because they would change the path."""
    if not path or any(step in ("", ".", "..") for step in path.split("/")) or "\0" in path:
        raise InvalidRequest(
            f"{path[:200]!r} is not a path below the session's folder; write it without '..', '.', '//' or a "
            "slash at its ends"
        )
    return quote(path, safe="/", encoding="utf-8", errors="surrogateescape")


def file_address(path: str) -> tuple[str, dict[str, str | int | float] | None]:
    """Return the path of a file below that of its session, and the query. An absolute path has its folder there."""
    if not path.startswith("/"):
        return f"/files/{file_path(path)}", None
    folder, _, name = path.rpartition("/")
    return f"/files/{file_path(name)}", {"folder": folder or "/"}


POLL_SECONDS = 25.0
"""Time of one long poll for a cell or a task; the client repeats it. Proxies close silent connections after longer."""


class Retries:
    """Pauses between retries, until they have failed for `patience` seconds.

    The time starts with the first failure, because waiting for an answer before it is normal.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    def progress(self) -> None:
        self._since = None
        self._pause = FIRST_PAUSE

    def next_pause(self) -> float | None:
        """Return the seconds until the next attempt, or None to give up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since >= self._patience:
            return None
        # Imported late, because commands that only list services never retry and start faster.
        import random

        pause = self._pause * random.uniform(0.75, 1.25)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause


def time_left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline on the monotonic clock, at least 0, or None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def deadline_after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def poll_seconds(deadline: float | None) -> float:
    """Return the time of the next long poll before a deadline."""
    left = time_left(deadline)
    return POLL_SECONDS if left is None else min(POLL_SECONDS, left)
