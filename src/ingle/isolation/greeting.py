"""The first message of TLS, as far as it tells which host it is meant for. Pure: bytes in, a name out."""

from typing import Final

MAX = 20_000
"""Bytes of a greeting that are waited for."""


class _More:
    """It is not whole yet."""


MORE: Final = _More()

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> bytes:
        """Bytes that are preceded by their length."""
        return self.take(self.number(size))

    @property
    def left(self) -> int:
        return len(self._data) - self._at


def server_name(data: bytes) -> "str | _More | None":
    """The name in a greeting; None when there is none, or when this is no greeting of TLS; MORE when more must come."""
    if not data:
        return MORE
    if data[0] != _HANDSHAKE:
        return None
    message = _message(data)
    if message is None:
        return MORE
    try:
        return _name(_Reader(message))
    except IndexError:
        # Cut off inside: nobody who means well sends that.
        return ""


def _message(data: bytes) -> bytes | None:
    """The handshake message, out of one record or several."""
    records = _Reader(data)
    message = b""
    try:
        while records.left:
            if records.number(1) != _HANDSHAKE:
                return message
            records.number(2)
            message += records.block(2)
            if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
                return message
    except IndexError:
        pass
    return None


def _name(message: _Reader) -> str | None:
    if message.number(1) != _CLIENT_HELLO:
        return None
    hello = _Reader(message.block(3))
    hello.take(2 + 32)
    hello.block(1)
    hello.block(2)
    hello.block(1)
    if not hello.left:
        return None
    extensions = _Reader(hello.block(2))
    while extensions.left:
        kind, content = extensions.number(2), extensions.block(2)
        if kind == _SERVER_NAME:
            names = _Reader(_Reader(content).block(2))
            while names.left:
                if names.number(1) == _HOST_NAME:
                    return names.block(2).decode("ascii", "replace").lower()
                names.block(2)
    return None
