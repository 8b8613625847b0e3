"""Bodies of the type multipart/form-data, read part by part as they arrive."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ingle import errors

MAX_HEAD_BYTES = 16 * 1024
MAX_BOUNDARY_CHARS = 200
MAX_PARTS = 10_000

_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_PARAMETER = re.compile(r';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """One part: its field, the name of its file, and its bytes."""

    name: str
    filename: str
    chunks: AsyncIterator[bytes]


def is_multipart(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


class Multipart:
    """Parts of one body. Each part is read to its end before the next one."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        found = _BOUNDARY.search(content_type)
        if found is None or len(found[1]) > MAX_BOUNDARY_CHARS:
            raise errors.InvalidRequest("the body is multipart and its type names no boundary")
        self._mark = b"\r\n--" + found[1].encode("latin-1", "replace")
        self._body = body
        # The first boundary has no line end before it.
        self._data = bytearray(b"\r\n")
        self._in_part = True
        """Whether bytes before a boundary come next; first those of a preamble."""

    async def parts(self) -> AsyncIterator[Part]:
        await self._skip()
        for _ in range(MAX_PARTS):
            end = await self._read_until(b"\r\n", MAX_HEAD_BYTES)
            if end.startswith(b"--"):
                return
            head = (await self._read_until(b"\r\n\r\n", MAX_HEAD_BYTES)).decode("utf-8", "replace")
            given = {name.lower(): _unescaped(value) for name, value in _PARAMETER.findall(head)}
            self._in_part = True
            yield Part(given.get("name", ""), given.get("filename", ""), self._chunks())
            await self._skip()
        raise errors.InvalidRequest(f"the body has more than {MAX_PARTS} parts")

    async def _chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes up to the next boundary, which is taken too."""
        while self._in_part:
            place = self._data.find(self._mark)
            if place >= 0:
                chunk = bytes(self._data[:place])
                del self._data[: place + len(self._mark)]
                self._in_part = False
            else:
                # The end may be the beginning of a boundary.
                sure = max(0, len(self._data) - len(self._mark))
                chunk = bytes(self._data[:sure])
                del self._data[:sure]
                await self._more()
            if chunk:
                yield chunk

    async def _skip(self) -> None:
        """Drop what is left before the next boundary."""
        async for _ in self._chunks():
            pass

    async def _read_until(self, mark: bytes, most: int) -> bytes:
        while (place := self._data.find(mark)) < 0:
            if len(self._data) > most:
                raise errors.InvalidRequest("the head of a part is too long")
            await self._more()
        found = bytes(self._data[:place])
        del self._data[: place + len(mark)]
        return found

    async def _more(self) -> None:
        try:
            self._data += await anext(self._body)
        except StopAsyncIteration:
            raise errors.InvalidRequest("the body ends within a part") from None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text).replace("%22", '"')
