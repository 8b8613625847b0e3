"""The token of a cluster: both ends of a connection prove that they know it, and neither sends it.

Each end chooses a nonce, so that no recorded proof is of use again. Frames after it are neither encrypted nor signed:
the network between gateways and agents is private, or a tunnel.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from ingle.errors import InvalidRequest

NONCE_BYTES = 32
MIN_TOKEN_CHARS = 16
FILE = "cluster.token"
"""Name of the token's file in a data folder."""

VARIABLE = "INGLE_CLUSTER_TOKEN_FILE"
"""Environment variable with the path of the file, where it is another one."""


class ClusterToken:
    """Secret that all gateways and agents of a cluster share."""

    def __init__(self, value: str) -> None:
        value = value.strip()
        if len(value) < MIN_TOKEN_CHARS:
            raise InvalidRequest(f"the cluster's token has fewer than {MIN_TOKEN_CHARS} characters; make a longer one")
        self._key = hashlib.sha256(value.encode()).digest()

    @classmethod
    def read(cls, path: Path) -> "ClusterToken":
        """Return the token in a file that only its owner may read. Blocks."""
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise InvalidRequest(f"others may read the cluster's token; run chmod 600 {path}")
                return cls(file.read(4096).decode())
        except OSError as error:
            raise InvalidRequest(
                f"the cluster's token cannot be read: {error}; put the same text of {MIN_TOKEN_CHARS} characters "
                f"or more there on each machine"
            ) from None

    @classmethod
    def read_fd(cls, fd: int) -> "ClusterToken":
        """Return the token that is written to a file descriptor, and close it. Blocks."""
        with open(fd, "rb") as file:
            return cls(file.read(4096).decode())

    @staticmethod
    def make(path: Path) -> None:
        """Write a new token to a file, unless there is one. Blocks."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        with open(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")

    def proof(self, side: str, first: bytes, second: bytes) -> bytes:
        """Return the proof of one side, for the nonces of both."""
        return hmac.digest(self._key, side.encode() + b"\0" + first + second, "sha256")

    def proves(self, proof: bytes, side: str, first: bytes, second: bytes) -> bool:
        return hmac.compare_digest(proof, self.proof(side, first, second))

    def sign(self, text: str) -> str:
        """Return a short signature of a text."""
        return hmac.digest(self._key, b"name\0" + text.encode(), "sha256").hex()[:SIGNATURE_CHARS]


SIGNATURE_CHARS = 12
"""Length of a signature in the name of a session. A guess is worth nothing without a caller's token."""


def token_file(home: Path) -> Path:
    """Return where the token of this data folder is."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else home / FILE


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)
