"""A file as an answer: streamed, a bounded piece at a time, and closed whatever happens."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingle.placement import OpenFile


class FileResponse(Response):
    """The bytes of a file, or 304 when the client has them already."""

    def __init__(self, reading: OpenFile, known: str | None) -> None:
        tag = f'"{reading.tag}"'
        self._reading = reading
        fresh = known is not None and tag in [each.strip() for each in known.split(",")]
        headers = {"etag": tag, "x-content-type-options": "nosniff", "content-disposition": "attachment"}
        if not fresh:
            headers["content-length"] = str(reading.size)
        super().__init__(None, 304 if fresh else 200, headers, media_type=None if fresh else "application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self.status_code == 200 and scope["method"] != "HEAD":
                async for chunk in self._reading.chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._reading.close()
