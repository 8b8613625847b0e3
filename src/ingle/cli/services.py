"""How the verbs reach services: those of this user on this machine, or the one that a URL names.

It speaks plain HTTP with the standard library and loads nothing heavy, so that `ingle ps` answers at once. A server
that does not answer is named and passed over; it holds nothing up for longer than a moment.
"""

import functools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ingle.cli.failure import Failure
from ingle.settings import data_folder

if TYPE_CHECKING:
    import http.client

    from ingle.support.running_servers import ServerInfo

LOOK_PATIENCE = 3.0
"""How long a server may take to say what it has."""

ACT_PATIENCE = 60.0
"""How long it may take to do something."""


@dataclass(frozen=True)
class Choice:
    """Which services a command is about, as its options say."""

    url: str | None
    token: str | None
    pid: int | None


@dataclass(frozen=True)
class Target:
    """One service. A local one has a socket and says about itself who it is."""

    path: "Path | None" = None
    info: "ServerInfo | None" = None
    url: str | None = None
    token: str | None = None

    def __str__(self) -> str:
        if self.info is None:
            return str(self.url)
        where = f" on {self.info.url}" if self.info.url else ""
        return f"pid {self.info.pid}, {self.info.kind}{where}, started in {self.info.folder}"

    def connect(self, patience: float) -> "http.client.HTTPConnection":
        import http.client
        from urllib.parse import urlsplit

        if self.path is not None:
            from ingle.support.running_servers import connect

            connection = http.client.HTTPConnection("localhost", timeout=patience)
            connection.sock = connect(self.path)
            connection.sock.settimeout(patience)
            return connection
        parts = urlsplit(str(self.url))
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(parts.hostname), parts.port, timeout=patience)

    def ask(self, method: str, path: str, body: Any = None, patience: float = ACT_PATIENCE) -> Any:
        """The answer, decoded. A problem is a Failure with its sentence; so is no answer at all."""
        import http.client

        import msgspec

        data = None if body is None else msgspec.json.encode(body)
        connection, answer = self.open(method, path, patience, data)
        try:
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None
        finally:
            connection.close()
        return self._decoded(answer.status, said)

    def open(
        self, method: str, path: str, patience: float, data: "bytes | BinaryIO | None" = None
    ) -> "tuple[http.client.HTTPConnection, http.client.HTTPResponse]":
        """An answer that is still to be read, and its connection; failures as with `ask`."""
        import http.client
        from urllib.parse import urlsplit

        prefix = "" if self.path is not None else urlsplit(str(self.url)).path.rstrip("/")
        whole = data is None or isinstance(data, bytes)
        headers = {"Content-Type": "application/json" if whole else "application/octet-stream"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection = self.connect(patience)
            try:
                connection.request(method, prefix + path, data, headers)
                answer = connection.getresponse()
                if not 200 <= answer.status < 300:
                    self._decoded(answer.status, answer.read())
            except BaseException:
                connection.close()
                raise
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None
        return connection, answer

    def _no_answer(self, error: Exception) -> "NoAnswer":
        why = "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return NoAnswer(f"the server ({self}) does not answer: {why}")

    def _decoded(self, status: int, said: bytes) -> Any:
        import msgspec

        try:
            decoded = msgspec.json.decode(said) if said else None
        except msgspec.DecodeError:
            raise NoAnswer(f"what answers at {self} is no ingle server; it said {status}") from None
        if 200 <= status < 300:
            return decoded
        problem = decoded if isinstance(decoded, dict) else {}
        raise Refused(str(problem.get("detail", f"the server said {status}")), str(problem.get("code", "")))


class NoAnswer(Failure):
    """Nobody answers there, or not as ingle does."""


class Refused(Failure):
    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def service_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--url`, `--token-file` and `--pid`, gathered into one `choice`."""

    @functools.wraps(command)
    def wrapped(url: str | None, token_file: str | None, pid: int | None, **given: Any) -> None:
        if url is not None and pid is not None:
            raise click.UsageError("--pid is for servers on this machine, --url for another; give one of them")
        if token_file is not None and url is None:
            raise click.UsageError("--token-file is for --url; servers on this machine need no token")
        token = None
        if url is not None:
            token = read_token(token_file) if token_file is not None else os.environ.get("INGLE_TOKEN") or None
        command(choice=Choice(url, token, pid), **given)

    options = (
        click.option("--url", envvar="INGLE_URL", help="The service at this URL, not those on this machine."),
        click.option(
            "--token-file",
            metavar="FILE",
            help="File with the token for --url, which is on no command line; without it, INGLE_TOKEN.",
        ),
        click.option("--pid", type=int, help="Of the servers on this machine, the one with this process id."),
    )
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def read_token(file: str) -> str:
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise Failure(f"others can read {file}; make it yours alone with `chmod 600`")
            return opened.read().strip()
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}") from None


def find_targets(choice: Choice) -> list[Target]:
    """The services meant: one by its URL, or those on this machine."""
    if choice.url is not None:
        from urllib.parse import urlsplit

        parts = urlsplit(choice.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise Failure(f"{choice.url!r} is not the URL of a service; it looks like http://127.0.0.1:8377")
        return [Target(url=choice.url.rstrip("/"), token=choice.token)]
    from ingle.support.running_servers import find_servers

    found = [Target(path, info) for path, info in find_servers(data_folder())]
    if choice.pid is not None:
        found = [target for target in found if target.info is not None and target.info.pid == choice.pid]
        if not found:
            raise Failure(f"no server with the process id {choice.pid} runs on {data_folder()}; see `ingle ps`")
    return found


def list_sessions(target: Target) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = target.ask("GET", "/v1/sessions", patience=LOOK_PATIENCE)["sessions"]
    return sessions


def find_session(choice: Choice, name: str) -> Target:
    """The one service that has a session of this name."""
    holding, silent = _holding(choice, name)
    if len(holding) > 1:
        raise Failure(several(f"session {name!r} is on {len(holding)} servers", holding))
    if not holding:
        also = "".join(f"\n  {failure.message}" for failure in silent)
        raise Failure(f"there is no session {name!r}; `ingle ps` lists those there are{also}")
    return holding[0]


def find_or_choose(choice: Choice, name: str) -> Target:
    """The service that has the session, else the one to make it in."""
    holding, _ = _holding(choice, name)
    if len(holding) > 1:
        raise Failure(several(f"session {name!r} is on {len(holding)} servers", holding))
    if holding:
        return holding[0]
    targets = find_targets(choice)
    if choice.url is None and choice.pid is None:
        # The others end with what they serve.
        targets = [target for target in targets if target.info is not None and target.info.kind == "serve"]
    if not targets:
        raise Failure(f"no service runs on {data_folder()}; start one with `ingle serve`, or name one with --url")
    return targets[0]


def _holding(choice: Choice, name: str) -> tuple[list[Target], list[NoAnswer]]:
    holding, silent = [], []
    for target in find_targets(choice):
        try:
            if any(session["session_id"] == name for session in list_sessions(target)):
                holding.append(target)
        except NoAnswer as failure:
            if choice.url is not None:
                raise
            silent.append(failure)
    return holding, silent


def several(what: str, targets: list[Target]) -> str:
    lines = [f"  --pid {target.info.pid}   {target}" for target in targets if target.info is not None]
    return "\n".join([f"{what}; say which one is meant:", *lines])
