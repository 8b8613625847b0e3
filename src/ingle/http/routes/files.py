"""Routes of a session's files: list, read, write, remove."""

from starlette.responses import Response

from ingle.events import FileInfo, FileList
from ingle.http.file_response import FileResponse
from ingle.http.routes.bodies import FilesQuery, NoQuery, read_stream
from ingle.http.routes.table import SESSION, Call, Media, Operation, answer

FILES = SESSION + "/files"
CONTENT = Media("application/octet-stream")


def operations() -> list[Operation]:
    return [
        Operation(
            "GET", FILES, "What is in the session's folder.", list_all, query=FilesQuery, answers={200: FileList}
        ),
        Operation(
            "GET",
            FILES + "/{path:path}",
            "Read a file, or a part of it.",
            read,
            answers={200: CONTENT, 206: CONTENT, 304: None},
            headers=("If-None-Match", "Range", "If-Range"),
        ),
        Operation(
            "PUT",
            FILES + "/{path:path}",
            "Write a file, in one step.",
            write,
            body=CONTENT,
            answers={200: FileInfo, 201: FileInfo},
        ),
        Operation("DELETE", FILES + "/{path:path}", "Remove a file.", remove, answers={204: None}),
    ]


async def list_all(call: Call[None, FilesQuery]) -> Response:
    return answer(await call.service.list_files(call.session_id, call.query.folder))


async def read(call: Call[None, NoQuery]) -> Response:
    opened = await call.service.open_file(call.session_id, call.request.path_params["path"])
    return FileResponse(opened, call.request, parts=True)


async def write(call: Call[None, NoQuery]) -> Response:
    chunks = read_stream(call.request, call.service.settings.max_file)
    info, new = await call.service.write_file(call.session_id, call.request.path_params["path"], chunks)
    return answer(info, 201 if new else 200)


async def remove(call: Call[None, NoQuery]) -> Response:
    await call.service.remove_file(call.session_id, call.request.path_params["path"])
    return Response(status_code=204)
