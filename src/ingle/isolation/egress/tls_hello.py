"""Parser of the TLS ClientHello that finds the server name. No I/O."""

from typing import Final

MAX_BYTES = 20_000
"""Bytes of a ClientHello to wait for."""

RECORDS = range(20, 25)
"""First bytes of TLS records. No plain-text protocol starts with one of these."""


class _More:
    """Marker for an incomplete ClientHello."""


MORE: Final = _More()
ODD: Final = ""
"""Marker for a truncated message or a first record of another type. Servers interpret these in different ways."""

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4


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
        """Return the bytes after their length."""
        return self.take(self.number(size))

    @property
    def left(self) -> int:
        return len(self._data) - self._at


class ClientHello:
    """A client's first message, fed in any number of pieces. Every byte is read once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._at = 0
        """Start of the next record."""
        self._message = bytearray()
        """The handshake message, from one record or several."""

    def feed(self, more: bytes) -> "str | _More | None":
        """Return the server name; None without a name or without TLS; MORE while the message is incomplete."""
        self.data += more
        if not self.data:
            return MORE
        if self.data[0] not in RECORDS:
            return None
        while not self._is_whole:
            if self._at < len(self.data) and self.data[self._at] != _HANDSHAKE:
                return ODD
            begins = self._at + _RECORD_HEAD
            ends = begins + int.from_bytes(self.data[begins - 2 : begins], "big")
            if len(self.data) < max(begins, ends):
                return MORE
            self._message += self.data[begins:ends]
            self._at = ends
        try:
            return _name(_Reader(bytes(self._message)))
        except IndexError:
            return ODD

    @property
    def _is_whole(self) -> bool:
        size = int.from_bytes(self._message[1:_MESSAGE_HEAD], "big")
        return len(self._message) >= _MESSAGE_HEAD and len(self._message) >= _MESSAGE_HEAD + size


def _name(message: _Reader) -> str | None:
    if message.number(1) != _CLIENT_HELLO:
        return ODD
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
