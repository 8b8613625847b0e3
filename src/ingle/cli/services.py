"""Finds the services that a command refers to: those of this user on this machine, or the one at a URL.

Heavy imports come late, so that `ingle ps` answers at once. A server that does not answer within `LOOK_SECONDS` is
reported and skipped.
"""

import functools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ingle.cli.failure import Failure
from ingle.errors import Unreachable
from ingle.settings import data_folder

if TYPE_CHECKING:
    from ingle.client.address import Address
    from ingle.client.minimal import MinimalClient
    from ingle.snapshots.saved_sessions import SavedSession
    from ingle.support.running_servers import ServerInfo

LOOK_SECONDS = 3.0
"""Time limit for a server to list its sessions."""

ACT_SECONDS = 60.0
"""Time limit for a server to do something."""


@dataclass(frozen=True)
class Choice:
    """The services that a command's options select."""

    url: str | None
    token: str | None
    pid: int | None


@dataclass(frozen=True)
class Target:
    """One service. A local one has a socket and a description."""

    address: "Address"
    info: "ServerInfo | None" = None

    def __str__(self) -> str:
        if self.info is None:
            return str(self.address)
        where = f" on {self.info.url}" if self.info.url else ""
        return f"pid {self.info.pid}, {self.info.kind}{where}, started in {self.info.folder}"

    @property
    def client(self) -> "MinimalClient":
        from ingle.client.minimal import MinimalClient

        return MinimalClient(self.address, str(self))

    def ask(self, method: str, path: str, body: Any = None, timeout: float = ACT_SECONDS) -> Any:
        """Return the decoded answer to one request."""
        return self.client.request(method, path, body, timeout=timeout)


def service_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--url`, `--token-file` and `--pid` to a command, which gets them as one `choice`."""

    @functools.wraps(command)
    def wrapped(url: str | None, token_file: str | None, pid: int | None, **given: Any) -> None:
        if url is not None and pid is not None:
            raise click.UsageError("--pid selects a server on this machine, --url another; use only one of them")
        if token_file is not None and url is None:
            raise click.UsageError("--token-file needs --url; servers on this machine need no token")
        token = None
        if url is not None:
            token = read_token(token_file) if token_file is not None else os.environ.get("INGLE_TOKEN") or None
        command(choice=Choice(url, token, pid), **given)

    options = (
        click.option(
            "--url",
            envvar="INGLE_URL",
            help="Use the service at this URL, not those on this machine. Default: $INGLE_URL.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            help="Read the token for --url from this file. Default: $INGLE_TOKEN.",
        ),
        click.option("--pid", type=int, help="Use the server on this machine with this process id."),
    )
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def read_token(file: str) -> str:
    """Read a token from a file that only its owner can read."""
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise Failure(f"others can read {file}; protect it with `chmod 600 {file}`")
            return opened.read().strip()
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}; name another file") from None


def find_targets(choice: Choice) -> list[Target]:
    """Return the selected services: one by its URL, or those on this machine."""
    from ingle.client.address import LOCAL_URL, Address, parse_address

    if choice.url is not None:
        return [Target(parse_address(choice.url, choice.token))]
    from ingle.support.running_servers import find_servers

    found = [Target(Address(LOCAL_URL, path=path), info) for path, info in find_servers(data_folder())]
    if choice.pid is not None:
        found = [target for target in found if target.info is not None and target.info.pid == choice.pid]
        if not found:
            raise Failure(f"no server with the process id {choice.pid} runs on {data_folder()}; see `ingle ps`")
    return found


def only_target(targets: list[Target], none: str, what: str) -> Target:
    """Return the one service of these. `none` is the error without any; of several `what`, the user has to choose."""
    if not targets:
        raise Failure(none)
    if len(targets) > 1:
        raise Failure(several(f"{len(targets)} {what}", targets))
    return targets[0]


def list_sessions(target: Target) -> list[dict[str, Any]]:
    """Return the sessions of one service."""
    sessions: list[dict[str, Any]] = target.ask("GET", "/v1/sessions", timeout=LOOK_SECONDS)["sessions"]
    return sessions


def find_session(choice: Choice, name: str) -> Target:
    """Return the one service that has a session of this name."""
    target, silent = _holding(choice, name)
    if target is None:
        also = "".join(f"\n  {failure.message}" for failure in silent)
        where = _saved_elsewhere(name) if choice.url is None and choice.pid is None else ""
        raise Failure((where or f"there is no session {name!r}; list the sessions with `ingle ps`") + also)
    return target


def list_saved_sessions() -> "list[SavedSession]":
    """Return the durable sessions that no running server has."""
    home = data_folder()
    if not (home / "registry.db").exists():
        return []
    from ingle.snapshots.saved_sessions import list_saved

    return list_saved(home)


_WAYS_BACK = {
    "serve": "`ingle serve`",
    "mcp": "the assistant that it belongs to",
    "client": "the Python program that it belongs to",
}
"""By kind of server: what brings its durable sessions back. `ingle ps` shows their folders."""


def _saved_elsewhere(name: str) -> str:
    """Return a sentence about a durable session whose server has ended, and how it comes back."""
    for saved in list_saved_sessions():
        if saved.session_id == name and not saved.tenant:
            return (
                f"session {name!r} is saved on disk, and its server has ended; {_WAYS_BACK[saved.kind]} brings it back"
            )
    return ""


def find_or_choose(choice: Choice, name: str) -> Target:
    """Return the service that has the session, or else the one to create it in."""
    target, _ = _holding(choice, name)
    if target is not None:
        return target
    targets = find_targets(choice)
    if choice.url is None and choice.pid is None:
        # The other servers end with their host.
        targets = [target for target in targets if target.info is not None and target.info.kind == "serve"]
    if not targets:
        raise Failure(f"no service runs on {data_folder()}; start one with `ingle serve`, or pass --url")
    return targets[0]


def _holding(choice: Choice, name: str) -> tuple[Target | None, list[Unreachable]]:
    """Return the one service that has the session, if there is one, and the errors of those that did not answer."""
    holding, silent = [], []
    for target in find_targets(choice):
        try:
            if any(session["session_id"] == name for session in list_sessions(target)):
                holding.append(target)
        except Unreachable as failure:
            if choice.url is not None:
                raise
            silent.append(failure)
    if len(holding) > 1:
        raise Failure(several(f"session {name!r} is on {len(holding)} servers", holding))
    return (holding[0] if holding else None), silent


def several(what: str, targets: list[Target]) -> str:
    """Return the message that asks the user to choose one of these."""
    lines = [f"  --pid {target.info.pid}   {target}" for target in targets if target.info is not None]
    return "\n".join([f"{what}; choose one:", *lines])
