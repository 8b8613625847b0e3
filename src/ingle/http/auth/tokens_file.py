"""Tokens for other callers: `tokens.json` in the data folder, each with a name, a tenant, a scope and limits.

The file holds only hashes. A token is 32 random bytes and is shown once, when it is created. The file has mode 0600 and
is replaced in one step under a lock. Running servers see a new token at once, and a revoked one in a moment. Every
function blocks.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from ingle import errors
from ingle.callers import IMPLIED, Limits
from ingle.http.auth.server_token import BYTES
from ingle.private_files import check_file
from ingle.requests import Bounds
from ingle.sessions.spec import check_name

FILE = "tokens.json"
PREFIX = "ingle_"
"""Lets scanners recognise a token that leaked."""

NO_BOUNDS = Bounds()

_OTHERS = 0o077


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    tenant: str
    scope: str
    hash: str
    """SHA-256 of the token, in hexadecimal. The token is random, so it needs no slow hash."""
    created_at: float
    limits: Limits = Limits()
    bounds: Bounds = Bounds()
    """What its sessions may get at most."""


class TokensFile(Struct, forbid_unknown_fields=True):
    tokens: list[Entry] = msgspec.field(default_factory=list)
    version: int = 1


def read(home: Path) -> list[Entry]:
    """Return all entries; none when there is no file."""
    file = home / FILE
    try:
        with file.open("rb") as opened:
            check_file(opened.fileno(), file)
            if os.fstat(opened.fileno()).st_mode & _OTHERS:
                raise errors.InvalidRequest(f"others can read {file}; `chmod 600` it")
            return msgspec.json.decode(opened.read(), type=TokensFile).tokens
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise errors.InvalidRequest(
            f"{file} is damaged ({error}); put it right, or remove it and make new tokens"
        ) from None
    except OSError as error:
        raise errors.InvalidRequest(f"{file} cannot be read: {error.strerror}") from None


def add(
    home: Path, name: str, tenant: str, scope: str, limits: Limits, bounds: Bounds = NO_BOUNDS
) -> tuple[str, Entry]:
    """Create a token. The caller gets the only copy."""
    for given in (name, tenant):
        check_name(given)
    if scope not in IMPLIED:
        raise errors.InvalidRequest(f"scope is {scope!r}; it must be one of {', '.join(IMPLIED)}")
    token = PREFIX + secrets.token_urlsafe(BYTES)
    entry = Entry(
        name=name,
        tenant=tenant,
        scope=scope,
        hash=hashlib.sha256(token.encode()).hexdigest(),
        created_at=time.time(),
        limits=limits,
        bounds=bounds,
    )
    with _locked(home):
        entries = read(home)
        if any(each.name == name for each in entries):
            raise errors.Conflict(f"there is a token {name!r} already; revoke it first, or take another name")
        _write(home, [*entries, entry])
    return token, entry


def revoke(home: Path, name: str) -> Entry:
    with _locked(home):
        entries = read(home)
        for entry in entries:
            if entry.name == name:
                _write(home, [each for each in entries if each is not entry])
                return entry
    raise errors.NotFound(f"there is no token {name[:80]!r}; `ingle token list` shows those there are")


def stamp(home: Path) -> tuple[int, int] | None:
    """Return a value that changes with the file; None when there is no file."""
    try:
        about = os.stat(home / FILE)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(home: Path, entries: list[Entry]) -> None:
    draft = home / f"{FILE}.{secrets.token_hex(8)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode(TokensFile(entries))) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        os.rename(draft, home / FILE)
    finally:
        draft.unlink(missing_ok=True)
