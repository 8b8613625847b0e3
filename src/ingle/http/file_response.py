"""Files and archives as responses: streamed in bounded pieces, and always closed."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingle.http.problems import RangeNotSatisfiable
from ingle.nodes import OpenArchive, OpenFile

# A number with more digits than any size has is not a range.
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE | re.ASCII)


class FileResponse(Response):
    """Bytes of a file, or 304 when the client has them. With `parts`, also a range of them."""

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
            # If-Range: a client with an older file needs the whole. HEAD describes the whole file.
            wanted = request.method == "GET" and asked.get("if-range", tag) == tag
            if wanted and (part := self._part(asked.get("range", ""))) is not None:
                status = 206
                self._start, self._count = part
                headers["content-range"] = f"bytes {part[0]}-{sum(part) - 1}/{reading.size}"
        if status != 304:
            headers["content-length"] = str(self._count)
        super().__init__(None, status, headers, media_type=None if status == 304 else "application/octet-stream")

    def _part(self, asked: str) -> tuple[int, int] | None:
        """Return start and length of a single range; None means the whole file."""
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


class ArchiveResponse(Response):
    """A tar stream of unknown length. If it fails, the connection is closed without the end of the body."""

    def __init__(self, archive: OpenArchive) -> None:
        self._archive = archive
        headers = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
        super().__init__(None, 200, headers, media_type="application/x-tar")
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                async for chunk in self._archive.chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._archive.close()


def _matches(known: str, tag: str) -> bool:
    """Return whether the client has this version. A weak tag is enough for a whole file."""
    return known.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]
