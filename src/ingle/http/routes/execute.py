"""`POST /v1/sessions/{id}/execute` as a plain ASGI endpoint, because it is the most frequent request.

It answers with the result, or streams the cell's events: one JSON object per line (NDJSON) or server-sent events. A
request repeated with its `Idempotency-Key` gets the cell that the first one started. When the client goes away, the
cell goes on.
"""

from collections.abc import Awaitable

import msgspec
from starlette.types import Receive, Scope, Send

from ingle.errors import InvalidRequest
from ingle.events import AnyEvent, Result
from ingle.http.auth.guard import SERVICE
from ingle.http.result_lines import NDJSON
from ingle.http.routes import bodies
from ingle.service import Service

SSE = "text/event-stream"

STREAMS = [(media, media.encode()) for media in (NDJSON, SSE)]

PREFIX, SUFFIX = "/v1/sessions/", "/execute"

JSON = (b"content-type", b"application/json")

_encoder = msgspec.json.Encoder()


def session_of(scope: Scope) -> str | None:
    """Return the session in the path; None for another route."""
    path: str = scope["path"]
    if scope["method"] == "POST" and path.startswith(PREFIX) and path.endswith(SUFFIX):
        name = path[len(PREFIX) : -len(SUFFIX)]
        if name and "/" not in name:
            return name
    return None


async def execute(session_id: str, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    service: Service = scope[SERVICE]
    accept, key = _asked(scope, limit)
    body = bodies.decode(bodies.Execute, await bodies.read_bytes(receive, limit))
    for media, name in STREAMS:
        if name in accept:
            if body.trial:
                raise InvalidRequest("a trial is not streamed; ask for JSON")
            # The cell starts before the answer does, so that a refusal still has its own status.
            cell = await service.begin_cell(session_id, body.new_cell(key))
            await _stream(service, session_id, cell, media, send)
            return
    data = _encoder.encode(await _run(service, session_id, body, key))
    headers = [JSON, (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def _asked(scope: Scope, limit: int) -> tuple[bytes, str | None]:
    """Return the Accept header and the idempotency key."""
    headers = dict(scope["headers"])
    bodies.check_length(headers.get(b"content-length", b"").decode("latin-1"), limit)
    if scope["query_string"]:
        bodies.refuse_query(scope)
    key = headers.get(b"idempotency-key")
    return headers.get(b"accept", b""), None if key is None else key.decode("latin-1")


def _run(service: Service, session_id: str, body: bodies.Execute, key: str | None) -> Awaitable[Result]:
    new = body.new_cell(key)
    if new.policy is not None and not body.trial:
        raise InvalidRequest("a policy is for a trial; pass trial: true, or leave the policy out")
    if new.trial is not None:
        return service.run_trial(session_id, new, body.wait)
    return service.execute_cell(session_id, new, body.wait)


async def _stream(service: Service, session_id: str, cell: int, media: str, send: Send) -> None:
    headers = [(b"content-type", media.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    encode = _as_event if media == SSE else _as_line
    async for event in service.cell_events(session_id, cell):
        await send({"type": "http.response.body", "body": encode(event), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _as_line(event: AnyEvent) -> bytes:
    return _encoder.encode(event) + b"\n"


def _as_event(event: AnyEvent) -> bytes:
    # JSON has no raw line breaks, so one `data` line holds the event.
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (
        event.seq,
        str(event.__struct_config__.tag).encode(),
        _encoder.encode(event),
    )
