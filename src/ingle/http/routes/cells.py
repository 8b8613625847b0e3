"""Routes of cells and batches: run, answer, interrupt, read results and output, variables, images; help for editors."""

from msgspec import Struct
from starlette.responses import Response

from ingle import errors
from ingle.batches import ItemResult
from ingle.events import AnyEvent, CellError, CellInfo, Exit, Result, Variables, VariableValue
from ingle.http.file_response import FileResponse
from ingle.http.result_lines import NDJSON, ResultLines
from ingle.http.routes import bodies, execute
from ingle.http.routes.bodies import NoQuery, read_cell
from ingle.http.routes.table import SESSION, Call, Media, Operation, answer, answer_list
from ingle.introspection import Completeness, Completion, Inspection
from ingle.output.pages import OutputPage
from ingle.render import image_info
from ingle_worker.wire.values import MEDIA_TYPES, kind_of_media

VALUE = SESSION + "/variables/{name}/value"
CELL = SESSION + "/cells/{cell}"
STREAMS = [Media(NDJSON, AnyEvent), Media(execute.SSE, AnyEvent)]


class CellList(Struct):
    cells: list[CellInfo]


class CellEvents(Struct):
    """What a cell, and what followed it up to the next one, told so far, in order.

    Texts of one stream in a row are one event.
    """

    events: list[AnyEvent]
    more: bool
    """Later events did not fit."""


class NotInterrupted(Struct):
    interrupted: bool = False
    notice: str = "no cell was running, so nothing was interrupted"


class Interpreted(Struct, omit_defaults=True, rename={"session_id": "sessionId"}):
    """Result of code that ran in a session of its own."""

    status: str
    stdout: str
    stderr: str
    session_id: str
    error: CellError | None = None
    exit: Exit | None = None
    timed_out: bool = False


def operations() -> list[Operation]:
    return [
        Operation(
            "POST",
            SESSION + "/execute",
            "Run a cell: its result, or its events as they come.",
            body=bodies.Execute,
            answers={200: [Result, *STREAMS]},
            headers=("Idempotency-Key",),
        ),
        Operation(
            "POST",
            SESSION + "/input",
            "Answer a cell that waits for input.",
            answer_input,
            body=bodies.Input,
            answers={200: Result},
        ),
        Operation(
            "POST",
            SESSION + "/interrupt",
            "Interrupt the running cell.",
            interrupt,
            body=bodies.Interrupt,
            answers={200: [Result, NotInterrupted]},
        ),
        Operation("GET", SESSION + "/cells", "What ran.", list_all, query=bodies.CellsQuery, answers={200: CellList}),
        Operation("GET", CELL, "The result of a cell.", result, query=bodies.CellQuery, answers={200: Result}),
        Operation(
            "GET",
            CELL + "/events",
            "What a cell told, in order.",
            told,
            query=bodies.ToldQuery,
            answers={200: CellEvents},
        ),
        Operation(
            "GET",
            CELL + "/output",
            "Lines of a cell's output.",
            output,
            query=bodies.OutputQuery,
            answers={200: OutputPage},
        ),
        Operation("GET", SESSION + "/variables", "The variables.", variables, answers={200: Variables}),
        Operation(
            "GET",
            SESSION + "/variables/{name}",
            "One variable in full.",
            variable,
            query=bodies.VariableQuery,
            answers={200: VariableValue},
        ),
        Operation(
            "GET",
            VALUE,
            "The value of a variable: JSON, bytes, npy or an Arrow stream.",
            value,
            answers={200: [Media(each) for each in sorted({each.partition(";")[0] for each in MEDIA_TYPES.values()})]},
        ),
        Operation(
            "PUT",
            VALUE,
            "Set a variable; the content type tells the kind.",
            set_value,
            body=Media("application/octet-stream"),
            answers={204: None},
            headers=("Content-Type",),
        ),
        Operation(
            "GET", SESSION + "/figures/{file}", "An image in full size.", figure, answers={200: Media("image/*")}
        ),
    ]


def help_operations() -> list[Operation]:
    return [
        Operation(
            "POST",
            SESSION + "/complete",
            "Names that may stand at the cursor.",
            complete,
            body=bodies.Cursor,
            answers={200: Completion},
        ),
        Operation(
            "POST",
            SESSION + "/inspect",
            "Signature and documentation of what is at the cursor.",
            inspect,
            body=bodies.Inspect,
            answers={200: Inspection},
        ),
        Operation(
            "POST",
            SESSION + "/is_complete",
            "Whether code is complete.",
            is_complete,
            body=bodies.CheckCode,
            answers={200: Completeness},
        ),
    ]


def batch_operations(max_body: int) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/batch",
            "Run code once for each item: their results as they end.",
            batch,
            body=bodies.Batch,
            answers={200: Media(NDJSON, ItemResult)},
            headers=("Idempotency-Key",),
            max_body=max_body,
            bounds=bodies.BATCH_BOUNDS,
        )
    ]


def interpreter_operations() -> list[Operation]:
    return [
        Operation(
            "POST",
            "/process/interpreter/execute",
            "Run code in a fresh session of its own, to its end.",
            interpret,
            body=bodies.Interpret,
            answers={200: Interpreted},
        )
    ]


async def answer_input(call: Call[bodies.Input, NoQuery]) -> Response:
    body = call.body
    return answer(await call.service.input(call.session_id, body.text, eof=body.eof, wait=body.wait))


async def interrupt(call: Call[bodies.Interrupt, NoQuery]) -> Response:
    result = await call.service.interrupt(call.session_id, wait=call.body.wait)
    return answer(NotInterrupted() if result is None else result)


async def list_all(call: Call[None, bodies.CellsQuery]) -> Response:
    cells = call.service.each_cell(call.session_id, call.query.first, call.query.count)
    return await answer_list("cells", cells)


async def result(call: Call[None, bodies.CellQuery]) -> Response:
    number, query = read_cell(call.request), call.query
    return answer(await call.service.wait(call.session_id, number, wait=query.wait, from_event=query.from_event))


async def told(call: Call[None, bodies.ToldQuery]) -> Response:
    found, more = await call.service.told(call.session_id, read_cell(call.request), call.query.characters)
    return answer(CellEvents(found, more))


async def output(call: Call[None, bodies.OutputQuery]) -> Response:
    query = call.query
    return answer(
        await call.service.read_output(
            call.session_id,
            read_cell(call.request),
            stream=query.stream,
            from_line=query.from_line,
            lines=query.lines,
            grep=query.grep,
            context=query.context,
            offset=query.offset,
            raw=query.raw,
        )
    )


async def variables(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.variables(call.session_id))


async def variable(call: Call[None, bodies.VariableQuery]) -> Response:
    name = call.request.path_params["name"]
    return answer(await call.service.variable(call.session_id, name, limit=call.query.limit, rows=call.query.asked))


async def value(call: Call[None, NoQuery]) -> Response:
    found = await call.service.value(call.session_id, call.request.path_params["name"])
    response = FileResponse(found, call.request)
    response.headers["content-type"] = MEDIA_TYPES.get(found.kind, "application/octet-stream")
    return response


async def set_value(call: Call[None, NoQuery]) -> Response:
    kind = kind_of_media(call.request.headers.get("content-type", ""))
    if kind is None:
        known = ", ".join(MEDIA_TYPES.values())
        raise errors.InvalidRequest(f"the content type tells the kind of the value; it must be one of {known}")
    chunks = bodies.read_stream(call.request, call.service.settings.max_file)
    await call.service.set_value(call.session_id, call.request.path_params["name"], kind, chunks)
    return Response(status_code=204)


async def complete(call: Call[bodies.Cursor, NoQuery]) -> Response:
    return answer(await call.service.complete(call.session_id, call.body.code, call.body.cursor))


async def inspect(call: Call[bodies.Inspect, NoQuery]) -> Response:
    body = call.body
    return answer(await call.service.inspect(call.session_id, body.code, body.cursor, source=body.source))


async def is_complete(call: Call[bodies.CheckCode, NoQuery]) -> Response:
    return answer(await call.service.is_complete(call.session_id, call.body.code))


async def figure(call: Call[None, NoQuery]) -> Response:
    data = await call.service.figure(call.session_id, call.request.path_params["file"])
    # The name is a hash of the content, so it never changes. A browser must not take it for a page.
    headers = {"x-content-type-options": "nosniff", "cache-control": "private, max-age=31536000, immutable"}
    return Response(data, headers=headers, media_type=image_info.media_type(data))


async def batch(call: Call[bodies.Batch, NoQuery]) -> Response:
    key = call.request.headers.get("idempotency-key")
    # The batch is checked before the answer begins, so that a refusal has its own status.
    return ResultLines(await call.service.batch(call.body.new_batch(key)))


async def interpret(call: Call[bodies.Interpret, NoQuery]) -> Response:
    body = call.body
    done = await call.service.interpret(body.code, timeout=body.timeout, envs=body.envs)
    return answer(
        Interpreted(done.status, done.stdout, done.stderr, done.session_id, done.error, done.exit, done.timed_out)
    )
