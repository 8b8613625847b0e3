"""A file as an answer: streamed, a bounded piece at a time, and closed whatever happens."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingle.http.problems import RangeNotSatisfiable
from ingle.nodes import OpenFile

# More digits than any size has are no range.
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE | re.ASCII)


class FileResponse(Response):
    """The bytes of a file, or 304 when the client has them already. With `parts`, also the part it asks for."""

    def __init__(self, reading: OpenFile, request: Request, *, parts: bool = False) -> None:
        asked = request.headers
        self._reading = reading
        self._start, self._count = 0, reading.size
        tag = f'"{reading.tag}"'
        headers = {"etag": tag, "x-content-type-options": "nosniff", "content-disposition": "attachment"}
        status = 200
        if _matches(asked.get("if-none-match", ""), tag):
            status = 304
        elif parts:
            headers["accept-ranges"] = "bytes"
            # A part of another file than the one it has would be of no use to the client. HEAD tells of the whole.
            wanted = request.method == "GET" and asked.get("if-range", tag) == tag
            if wanted and (part := self._part(asked.get("range", ""))) is not None:
                status = 206
                self._start, self._count = part
                headers["content-range"] = f"bytes {part[0]}-{sum(part) - 1}/{reading.size}"
        if status != 304:
            headers["content-length"] = str(self._count)
        super().__init__(None, status, headers, media_type=None if status == 304 else "application/octet-stream")

    def _part(self, asked: str) -> tuple[int, int] | None:
        """Where one range begins and how long it is; None for what is none, or several, and means the whole."""
        found = _RANGE.fullmatch(asked)
        if found is None or found[0].strip().endswith("=-"):
            return None
        size = self._reading.size
        if not found[1]:
            start, end = max(0, size - int(found[2])), size
        else:
            start, end = int(found[1]), min(int(found[2] or size) + 1, size)
            if found[2] and int(found[2]) < start:
                return None
        if start >= size:
            self._reading.close()
            raise RangeNotSatisfiable(size)
        return start, end - start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self.status_code != 304 and scope["method"] != "HEAD":
                async for chunk in self._reading.chunks(self._start, self._count):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._reading.close()


def _matches(known: str, tag: str) -> bool:
    """Whether what a client has is this; for what it has whole, a weak tag will do."""
    return known.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]
