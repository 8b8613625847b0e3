"""The server's own token: from `INGLE_TOKEN`, else from the file `token` in the data folder.

The first start creates the file. Servers that share a data folder share the token. It is never logged.
"""

import contextlib
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from ingle.errors import InvalidRequest
from ingle.private_files import check_file

VARIABLE = "INGLE_TOKEN"
BYTES = 32

_TOKEN = re.compile(r"[\x21-\x7e]+")
_OTHERS = 0o077


@dataclass(frozen=True)
class Token:
    value: str = field(repr=False)
    file: Path | None
    """The file that holds it; None when it came from the environment."""


def find_token(home: Path) -> Token:
    """Read the token, or create it. Blocks."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Token(_checked(given, VARIABLE), None)
    file = home / "token"
    try:
        return Token(_read(file), file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from None
    try:
        _make(file)
        return Token(_read(file), file)
    except OSError as error:
        raise InvalidRequest(
            f"no token could be made in {home}: {error.strerror}; name another data folder with INGLE_HOME"
        ) from None


def _read(file: Path) -> str:
    with file.open(encoding="ascii", errors="replace") as opened:
        check_file(opened.fileno(), file)
        if os.fstat(opened.fileno()).st_mode & _OTHERS:
            raise InvalidRequest(
                f"others can read {file}: remove it, and the next start makes a new token; "
                "or keep this one with `chmod 600`"
            )
        return _checked(opened.read().strip(), str(file))


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest(f"{where} holds no token: it must be printable ASCII, without spaces, and not empty")
    return token


def _make(file: Path) -> None:
    """Create the file in one step. When several servers start at once, one wins and all read its token."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f"token.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as opened:
            opened.write(secrets.token_urlsafe(BYTES) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()
