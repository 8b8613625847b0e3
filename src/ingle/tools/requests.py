"""Requests of JSON-RPC that share a server's pipe with those of the SDK's client. No input and output is done here.

Their numbers begin where those of the SDK's client never come. A message with another number is not theirs.
"""

import asyncio
import re
from typing import Any

import anyio
import msgspec
from msgspec import Raw, Struct

from ingle.support import bounded_json
from ingle.tools.shapes import ToolFailed

FIRST_NUMBER = 1_000_000_000

META_PREFIX = "io.modelcontextprotocol/"
"""Keys that a revision of the protocol asks for in each request. The SDK's client knows them."""

NUMBER = re.compile(rb'"id"\s*:\s*(1\d{9})')
ENDS_BYTES = 4096

MAX_ERROR_CHARS = 10_000

BOUNDS = bounded_json.Bounds(elements=1_000_000, text=256 * 1024**2, depth=110)
"""Bounds of one answer, which is some stranger's."""


class _Problem(Struct):
    message: str = ""


class _Answer(Struct):
    id: int | str | None = None
    method: str | None = None
    result: Raw = Raw(b"")
    error: _Problem | None = None


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class Requests:
    """Requests that wait for their answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = FIRST_NUMBER
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self.meta: dict[str, Any] = {}
        """Keys that each request has to carry."""

    def begin(self, method: str, params: dict[str, Any]) -> "tuple[int, bytes, asyncio.Future[bytes]]":
        """Return the number of a new request, its line, and the JSON of its result to come."""
        number = self._next
        self._next += 1
        if self.meta:
            params["_meta"] = self.meta
        # Encoded anew, whatever the arguments were written like: a line holds one message and no other.
        line = _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n"
        answer = self._waiting[number] = self._loop.create_future()
        return number, line, answer

    def forget(self, number: int) -> None:
        """Drop the answer to a request, should it come."""
        answer = self._waiting.pop(number)
        if answer.done() and not answer.cancelled():
            answer.exception()  # retrieved here, since the caller may have left

    def cancellation(self, number: int) -> bytes:
        """Return the line that cancels a request at the server."""
        params = {"requestId": number, "reason": "the caller does not wait any more"}
        return _encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}) + b"\n"

    def take(self, line: bytes) -> bool:
        """Take the answer to one of these requests. Return False if the line is something else."""
        if not self._waiting:
            return False
        try:
            bounded_json.check(line, BOUNDS)
            said = _decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self._take_unreadable(line, error)
        answer = self._find(said.id)
        if answer is None or said.method is not None:
            return False
        if said.error is not None:
            answer.set_exception(ToolFailed("tool", said.error.message[:MAX_ERROR_CHARS] or "the call failed"))
        else:
            answer.set_result(bytes(said.result))
        return True

    def _take_unreadable(self, line: bytes, error: Exception) -> bool:
        """Fail the request of an answer whose number at least can be read. Otherwise it would wait for ever."""
        answer = self._find(_number_in(line))
        if answer is not None:
            answer.set_exception(ToolFailed("tool", f"the server's answer cannot be read: {error}"))
        return answer is not None

    def _find(self, number: Any) -> "asyncio.Future[bytes] | None":
        answer = self._waiting.get(number) if isinstance(number, int) else None
        return answer if answer is not None and not answer.done() else None

    def close(self) -> None:
        """Fail all requests: the server has ended."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(anyio.BrokenResourceError())


def meta_of(params: Any) -> dict[str, Any]:
    """Return the keys that the protocol asks for, from the parameters of a request of the SDK's client."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return {} if not isinstance(meta, dict) else {key: meta[key] for key in meta if key.startswith(META_PREFIX)}


def _number_in(line: bytes) -> int | None:
    """Return the number of a line that is not decoded. Servers write it at one of its ends."""
    found = NUMBER.search(line[:ENDS_BYTES]) or NUMBER.search(line[-ENDS_BYTES:])
    return None if found is None else int(found[1])
