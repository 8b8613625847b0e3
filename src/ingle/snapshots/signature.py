"""Who wrote a snapshot: a signature by a key that only this data folder has.

A snapshot is code: loading it runs what it says. So it is loaded only if this ingle wrote it, for this tenant, unless
somebody who may says to trust it.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from ingle import errors

KEY_SIZE = 32


class Signer:
    """Signs and checks for one tenant."""

    def __init__(self, key: bytes, tenant: str) -> None:
        # A key of each tenant's own: one tenant's snapshot is a stranger's to another.
        self._key = hmac.digest(key, b"ingle snapshot\0" + tenant.encode(), "sha256")

    def sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()

    def is_ours(self, data: bytes, signature: str) -> bool:
        return hmac.compare_digest(self.sign(data).encode(), signature.encode("utf-8", "replace"))


def read_key(file: Path) -> bytes:
    """The key of this data folder, made when there is none. Several servers may come to it at once."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            key = file.read_bytes()
            if len(key) != KEY_SIZE:
                raise errors.DataFolderFailed(
                    f"{file.name} in the data folder is not a key any more: put the right one there from a backup, or "
                    "remove it, and what was saved so far has to be trusted to be loaded"
                )
            return key
        # Whole under its name, or not there: another server reads it the moment it is.
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
