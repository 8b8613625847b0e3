"""Answer with a line of JSON (NDJSON) for each result of a batch.

When the client goes away, the batch is closed, and the items that run are ended.
"""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingle.batches import ItemResult

NDJSON = "application/x-ndjson"

_encoder = msgspec.json.Encoder()


class ResultLines(Response):
    """Answer with one line for each result. It closes the results when the client has gone."""

    def __init__(self, results: AsyncGenerator[ItemResult, None]) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type=NDJSON)
        del self.headers["content-length"]
        self._results = results

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._send(send))
        leaving = loop.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
            await self._results.aclose()
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for result in self._results:
            await send({"type": "http.response.body", "body": _encoder.encode(result) + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
