"""Routes of sessions: create, list, read, end, clear."""

from msgspec import Struct
from starlette.responses import Response

from ingle.capacity import NetworkUse, SessionUsage
from ingle.events import SessionInfo
from ingle.http.routes import bodies
from ingle.http.routes.bodies import NoBody, NoQuery
from ingle.http.routes.table import SESSION, Call, Media, Operation, answer, answer_list
from ingle.render.export import FORMATS, POLICY


class SessionList(Struct):
    sessions: list[SessionInfo]


def operations() -> list[Operation]:
    return [
        Operation("POST", "/v1/sessions", "Make a session.", create, body=bodies.Create, answers={201: SessionInfo}),
        Operation("GET", "/v1/sessions", "The live sessions.", list_all, answers={200: SessionList}),
        Operation("GET", SESSION, "One session.", get, answers={200: SessionInfo}),
        Operation(
            "GET", SESSION + "/usage", "CPU and memory over the last 30 minutes.", usage, answers={200: SessionUsage}
        ),
        Operation(
            "GET", SESSION + "/network", "Hosts it has reached and was refused.", network, answers={200: NetworkUse}
        ),
        Operation(
            "GET",
            SESSION + "/export",
            "All cells with their outputs: a notebook, a script, Markdown or a page.",
            export,
            query=bodies.ExportQuery,
            answers={200: [Media(each) for each in FORMATS.values()]},
        ),
        Operation(
            "POST", SESSION + "/notes", "Put a note between the cells.", note, body=bodies.NewNote, answers={204: None}
        ),
        Operation("DELETE", SESSION, "End a session.", end, answers={200: SessionInfo}, headers=("Idempotency-Key",)),
        Operation("POST", SESSION + "/clear", "Reset its namespace.", clear, body=NoBody, answers={200: SessionInfo}),
    ]


def notebook_operations(max_body: int) -> list[Operation]:
    return [
        Operation(
            "POST",
            SESSION + "/notebook",
            "Run the cells of a notebook: the notebook with their outputs, once the last one has ended.",
            run_notebook,
            body=bodies.RunNotebook,
            answers={200: Media(FORMATS["ipynb"])},
            max_body=max_body,
            bounds=bodies.BATCH_BOUNDS,
        )
    ]


async def create(call: Call[bodies.Create, NoQuery]) -> Response:
    info = await call.service.create(call.body.new_session())
    return answer(info, 201, {"location": f"/v1/sessions/{info.session_id}"})


async def list_all(call: Call[None, NoQuery]) -> Response:
    return await answer_list("sessions", call.service.each_session())


async def get(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.get_session(call.session_id))


async def usage(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.usage(call.session_id))


async def network(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.network(call.session_id))


async def export(call: Call[None, bodies.ExportQuery]) -> Response:
    form = call.query.format
    data = await call.service.export(call.session_id, form)
    # A browser saves it. Opened in the origin of this server, it could still do nothing.
    headers = {
        "content-disposition": f'attachment; filename="{call.session_id}.{form}"',
        "content-security-policy": f"sandbox; {POLICY}",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(data, headers=headers, media_type=FORMATS[form])


async def note(call: Call[bodies.NewNote, NoQuery]) -> Response:
    await call.service.note(call.session_id, call.body.text, raw=call.body.raw)
    return Response(status_code=204)


async def end(call: Call[None, NoQuery]) -> Response:
    key = call.request.headers.get("idempotency-key")
    return answer(await call.service.end_session(call.session_id, request_key=key))


async def clear(call: Call[NoBody, NoQuery]) -> Response:
    return answer(await call.service.clear_session(call.session_id))


async def run_notebook(call: Call[bodies.RunNotebook, NoQuery]) -> Response:
    body = call.body
    text = bytes(body.notebook).decode()
    executed = await call.service.run_notebook(call.session_id, text, timeout=body.timeout, keep_going=body.keep_going)
    return Response(executed, media_type=FORMATS["ipynb"])
