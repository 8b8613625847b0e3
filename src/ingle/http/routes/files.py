"""Routes of a session's files: list, read, write, remove, and whole folders as tar streams."""

from starlette.responses import Response

from ingle import errors
from ingle.files import FileInfo, FileList, Unpacked
from ingle.http.file_response import ArchiveResponse, FileResponse
from ingle.http.routes.bodies import ArchiveQuery, FilesQuery, read_stream
from ingle.http.routes.table import SESSION, Call, Media, Operation, answer

FILES = SESSION + "/files"
ARCHIVE = SESSION + "/archive"
CONTENT = Media("application/octet-stream")
TAR = Media("application/x-tar")


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
            query=FilesQuery,
            answers={200: CONTENT, 206: CONTENT, 304: None},
            headers=("If-None-Match", "Range", "If-Range"),
        ),
        Operation(
            "PUT",
            FILES + "/{path:path}",
            "Write a file, in one step.",
            write,
            query=FilesQuery,
            body=CONTENT,
            answers={200: FileInfo, 201: FileInfo},
        ),
        Operation("DELETE", FILES + "/{path:path}", "Remove a file.", remove, query=FilesQuery, answers={204: None}),
        Operation(
            "GET",
            ARCHIVE,
            "A folder, or a file, as a tar stream.",
            read_archive,
            query=ArchiveQuery,
            answers={200: TAR},
        ),
        Operation(
            "PUT",
            ARCHIVE,
            "Unpack a tar stream into a folder.",
            write_archive,
            query=ArchiveQuery,
            body=CONTENT,
            answers={200: Unpacked},
        ),
    ]


def _path(call: Call[None, FilesQuery]) -> str:
    """Return the path of the file that the URL names."""
    path: str = call.request.path_params["path"]
    if path.startswith("/"):
        raise errors.InvalidRequest(
            f"{path[:200]!r} is an absolute path; for a file in a granted folder, name that in the query: ?folder=…"
        )
    return f"{call.query.folder.rstrip('/')}/{path}" if call.query.folder else path


async def list_all(call: Call[None, FilesQuery]) -> Response:
    return answer(await call.service.list_files(call.session_id, call.query.folder))


async def read(call: Call[None, FilesQuery]) -> Response:
    opened = await call.service.open_file(call.session_id, _path(call))
    return FileResponse(opened, call.request, parts=True)


async def write(call: Call[None, FilesQuery]) -> Response:
    chunks = read_stream(call.request, call.service.settings.max_file)
    info, new = await call.service.write_file(call.session_id, _path(call), chunks)
    return answer(info, 201 if new else 200)


async def remove(call: Call[None, FilesQuery]) -> Response:
    await call.service.remove_file(call.session_id, _path(call))
    return Response(status_code=204)


async def read_archive(call: Call[None, ArchiveQuery]) -> Response:
    return ArchiveResponse(await call.service.open_archive(call.session_id, call.query.path))


async def write_archive(call: Call[None, ArchiveQuery]) -> Response:
    chunks = read_stream(call.request, call.service.settings.max_archive)
    return answer(await call.service.write_archive(call.session_id, call.query.path, chunks))
