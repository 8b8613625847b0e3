"""Files of a sandbox: listed, read, written, moved and removed from inside the session's confinement."""

import posixpath
import re
import secrets
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ingle import errors
from ingle.compat.daytona.sandboxes import Sandbox
from ingle.compat.multipart import Multipart, is_multipart
from ingle.compat.requests import moment
from ingle.files import FileInfo
from ingle.http.file_response import FileResponse
from ingle.http.routes.bodies import read_body, read_stream
from ingle.nodes import OpenFile

MAX_BODY_BYTES = 1024 * 1024
MAX_PATH_BYTES = 4096

_FIELD = re.compile(r"files\[(\d{1,5})\]\.(path|file)")


class Paths(Struct):
    paths: list[str]


def place(sandbox: Sandbox, path: str) -> str:
    """Return an absolute path. A relative one starts at the sandbox's folder."""
    if "\0" in path:
        raise errors.InvalidRequest("a path has no NUL")
    return posixpath.normpath(posixpath.join(sandbox.home, path))


def _path(sandbox: Sandbox, request: Request, name: str = "path") -> str:
    return place(sandbox, request.query_params.get(name, ""))


async def home(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse({"dir": sandbox.home})


async def list_files(sandbox: Sandbox, request: Request) -> Response:
    folder = _path(sandbox, request)
    found = (await sandbox.service.list_files(sandbox.id, folder)).files
    return JSONResponse([described(posixpath.join(folder, each.name), each) for each in found])


async def file_info(sandbox: Sandbox, request: Request) -> Response:
    path = _path(sandbox, request)
    return JSONResponse(described(path, await sandbox.service.stat_file(sandbox.id, path)))


async def make_folder(sandbox: Sandbox, request: Request) -> Response:
    await sandbox.service.make_folder(sandbox.id, _path(sandbox, request))
    return Response(status_code=201)


async def move(sandbox: Sandbox, request: Request) -> Response:
    source, target = _path(sandbox, request, "source"), _path(sandbox, request, "destination")
    await sandbox.service.move_file(sandbox.id, source, target)
    return Response(status_code=200)


async def delete(sandbox: Sandbox, request: Request) -> Response:
    whole = request.query_params.get("recursive", "").lower() == "true"
    await sandbox.service.remove_file(sandbox.id, _path(sandbox, request), whole=whole)
    return Response(status_code=204)


async def download(sandbox: Sandbox, request: Request) -> Response:
    return FileResponse(await sandbox.service.open_file(sandbox.id, _path(sandbox, request)), request, parts=True)


async def upload(sandbox: Sandbox, request: Request) -> Response:
    """Write one file whose path the URL names, or all files of a form."""
    kind = request.headers.get("content-type", "")
    body = read_stream(request, sandbox.service.settings.max_file)
    if not is_multipart(kind):
        await sandbox.service.write_file(sandbox.id, _path(sandbox, request), body)
        return JSONResponse({})
    paths: dict[str, str] = {}
    async for part in Multipart(kind, body).parts():
        field = _FIELD.fullmatch(part.name)
        if field is not None and field[2] == "path":
            paths[field[1]] = (await _whole(part.chunks)).decode("utf-8", "replace")
            continue
        named = paths.get(field[1]) if field is not None else request.query_params.get("path")
        await sandbox.service.write_file(sandbox.id, place(sandbox, named or part.filename), part.chunks)
    return JSONResponse({})


async def _whole(chunks: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > MAX_PATH_BYTES:
            raise errors.InvalidRequest(f"a path has more than {MAX_PATH_BYTES} bytes")
    return bytes(data)


async def download_many(sandbox: Sandbox, request: Request) -> Response:
    """Answer with a form that has a part for each file, or the reason why there is none."""
    asked = await read_body(request, Paths, MAX_BODY_BYTES)
    boundary = secrets.token_hex(16)
    return StreamingResponse(
        _parts(sandbox, asked.paths, boundary), media_type=f"multipart/form-data; boundary={boundary}"
    )


async def _parts(sandbox: Sandbox, paths: list[str], boundary: str) -> AsyncIterator[bytes]:
    for path in paths:
        opened: OpenFile | None = None
        try:
            opened = await sandbox.service.open_file(sandbox.id, place(sandbox, path))
            yield _head(boundary, "file", path, "application/octet-stream")
            async for chunk in opened.chunks(0, opened.size):
                yield chunk
        except errors.IngleError as error:
            if opened is not None:
                raise  # a part that has begun cannot be taken back
            yield _head(boundary, "error", path, "application/json")
            yield msgspec.json.encode(
                {"statusCode": error.status, "message": error.message, "code": error.code.upper()}
            )
        finally:
            if opened is not None:
                opened.close()
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _head(boundary: str, name: str, path: str, kind: str) -> bytes:
    named = f"form-data; name=\"{name}\"; filename*=utf-8''{quote(path, safe='')}"
    return f"--{boundary}\r\nContent-Disposition: {named}\r\nContent-Type: {kind}\r\n\r\n".encode()


def described(path: str, info: FileInfo) -> dict[str, Any]:
    kinds = {"folder": stat.S_IFDIR, "link": stat.S_IFLNK}
    modified = moment(datetime.fromtimestamp(info.modified, UTC))
    return {
        "name": posixpath.basename(path),
        "path": path,
        "isDir": info.kind == "folder",
        "size": info.size,
        "mode": stat.filemode(kinds.get(info.kind, stat.S_IFREG) | info.mode),
        "permissions": f"{info.mode:04o}",
        "owner": "daytona",
        "group": "daytona",
        "modTime": modified,
        "modifiedAt": modified,
    }
