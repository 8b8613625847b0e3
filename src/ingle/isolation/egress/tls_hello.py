"""The first message of TLS, as far as it tells which host it is meant for. Pure: bytes in, a name out."""

from typing import Final

MAX = 20_000
"""Bytes of a greeting that are waited for."""

RECORDS = range(20, 25)
"""The first byte of a record of TLS. In the clear no other protocol begins with one of these."""


class _More:
    """It is not whole yet."""


MORE: Final = _More()
ODD: Final = ""
"""What nobody who means well sends: where it is cut off inside, or begins with a record that is no greeting, servers
take it in different ways."""

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
        """Bytes that are preceded by their length."""
        return self.take(self.number(size))

    @property
    def left(self) -> int:
        return len(self._data) - self._at


class Greeting:
    """What a client says first, as it comes: every byte is looked at once, in however many pieces."""

    def __init__(self) -> None:
        self.said = bytearray()
        self._at = 0
        """Where the next record begins."""
        self._message = bytearray()
        """The handshake message, out of one record or several."""

    def feed(self, more: bytes) -> "str | _More | None":
        """The name in it; None when there is none, or when this is no TLS; MORE when more must come."""
        self.said += more
        if not self.said:
            return MORE
        if self.said[0] not in RECORDS:
            return None
        while not self._is_whole:
            if self._at < len(self.said) and self.said[self._at] != _HANDSHAKE:
                return ODD
            begins = self._at + _RECORD_HEAD
            ends = begins + int.from_bytes(self.said[begins - 2 : begins], "big")
            if len(self.said) < max(begins, ends):
                return MORE
            self._message += self.said[begins:ends]
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
