"""Signatures of snapshots, made with a key that only this data folder has.

Loading a snapshot runs its code. So it is loaded only if this ingle wrote it for this tenant, or if the caller says to
trust it.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from ingle import errors
from ingle.private_files import check_file

KEY_SIZE = 32


class Signer:
    """Signs and checks snapshots of one tenant."""

    def __init__(self, key: bytes, tenant: str, *others: bytes) -> None:
        """Signatures by other keys are accepted too."""
        # Each tenant has its own key, so that tenants do not trust each other's snapshots.
        purpose = b"ingle snapshot\0" + tenant.encode()
        self._keys = [hmac.digest(each, purpose, "sha256") for each in (key, *others)]

    def sign(self, data: bytes) -> str:
        return _sign(self._keys[0], data)

    def is_ours(self, data: bytes, signature: str) -> bool:
        given = signature.encode("utf-8", "replace")
        return any(hmac.compare_digest(_sign(key, data).encode(), given) for key in self._keys)


def _sign(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def read_key(file: Path) -> bytes:
    """Return the key of this data folder, and create it if it is missing. Safe for concurrent servers."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            with file.open("rb") as opened:
                check_file(opened.fileno(), file)
                key = opened.read(KEY_SIZE + 1)
            if len(key) != KEY_SIZE:
                raise errors.DataFolderFailed(
                    f"{file.name} in the data folder is damaged; restore it from a backup, or remove it. Without it, "
                    "existing snapshots load only with trust"
                )
            return key
        # Another server may read the key at once, so it gets its name when it is complete.
        draft = file.with_name(f".{secrets.token_hex(8)}.part")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_bytes(KEY_SIZE))
            os.fsync(fd)
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
        finally:
            os.close(fd)
            os.unlink(draft)
