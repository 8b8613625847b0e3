"""Files of a sandbox: read, written, listed, moved and watched, all from inside the session's confinement."""

import posixpath
import secrets
import shlex
import stat
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ingle import errors
from ingle.compat.e2b.connect import AlreadyExists, Stream, read_one
from ingle.compat.e2b.in_session import watch_code
from ingle.compat.e2b.requests import sandbox_of
from ingle.compat.e2b.sandboxes import Sandbox, Watcher
from ingle.compat.multipart import Multipart, is_multipart
from ingle.compat.requests import moment
from ingle.events import Stdout
from ingle.files import FileInfo
from ingle.http.file_response import FileResponse
from ingle.http.routes.bodies import read_body, read_stream
from ingle.requests import NewTask

MAX_BODY_BYTES = 1024 * 1024
MAX_ENTRIES = 100_000
KEEPALIVE_SECONDS = 50.0
KEEPALIVE: dict[str, Any] = {"keepalive": {}}
WATCHER_BYTES = 8

TYPES = {"file": "FILE_TYPE_FILE", "folder": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
OWNER = "user"


class Path(Struct):
    path: str = ""


class ListDir(Struct):
    path: str = ""
    depth: int = 1


class Move(Struct):
    source: str = ""
    destination: str = ""


class Watch(Struct, rename="camel"):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class WatcherId(Struct):
    watcher_id: str = field(default="", name="watcherId")


class Filesystem:
    """Handlers of the service `filesystem.Filesystem`, and of whole files."""

    def __init__(self, max_file: int) -> None:
        self._max_file = max_file

    def routes(self) -> list[Route]:
        verbs = {
            "Stat": self._stat,
            "ListDir": self._list,
            "MakeDir": self._make,
            "Move": self._move,
            "Remove": self._remove,
            "WatchDir": self._watch,
            "CreateWatcher": self._create_watcher,
            "GetWatcherEvents": self._watcher_events,
            "RemoveWatcher": self._remove_watcher,
        }
        return [
            Route("/files", self._read, methods=["GET"]),
            Route("/files", self._write, methods=["POST"]),
            *(Route(f"/filesystem.Filesystem/{name}", verb, methods=["POST"]) for name, verb in verbs.items()),
        ]

    # --- whole files ---

    async def _read(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        opened = await sandbox.service.open_file(sandbox.id, place(sandbox, request.query_params.get("path", "")))
        return FileResponse(opened, request, parts=True)

    async def _write(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        named = request.query_params.get("path", "")
        kind = request.headers.get("content-type", "")
        body = read_stream(request, self._max_file)
        if request.headers.get("content-encoding", "") == "gzip":
            body = _unzipped(body)
        if not is_multipart(kind):
            return JSONResponse([await self._write_one(sandbox, named, body)])
        written = [
            await self._write_one(sandbox, named or part.filename, part.chunks)
            async for part in Multipart(kind, body).parts()
        ]
        return JSONResponse(written)

    async def _write_one(self, sandbox: Sandbox, named: str, chunks: AsyncIterator[bytes]) -> dict[str, str]:
        path = place(sandbox, named)
        await sandbox.service.write_file(sandbox.id, path, chunks)
        return {"name": posixpath.basename(path), "type": "file", "path": path}

    # --- entries ---

    async def _stat(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        path = place(sandbox, (await read_body(request, Path, MAX_BODY_BYTES)).path)
        return JSONResponse({"entry": described(path, await sandbox.service.stat_file(sandbox.id, path))})

    async def _make(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        path = place(sandbox, (await read_body(request, Path, MAX_BODY_BYTES)).path)
        info, new = await sandbox.service.make_folder(sandbox.id, path)
        if not new:
            raise AlreadyExists(f"{path[:200]!r} is there already")
        return JSONResponse({"entry": described(path, info)})

    async def _move(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, Move, MAX_BODY_BYTES)
        target = place(sandbox, asked.destination)
        info = await sandbox.service.move_file(sandbox.id, place(sandbox, asked.source), target)
        return JSONResponse({"entry": described(target, info)})

    async def _remove(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        path = place(sandbox, (await read_body(request, Path, MAX_BODY_BYTES)).path)
        await sandbox.service.remove_file(sandbox.id, path, whole=True)
        return JSONResponse({})

    async def _list(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, ListDir, MAX_BODY_BYTES)
        found: list[dict[str, Any]] = []
        folders = [(place(sandbox, asked.path), max(1, asked.depth))]
        while folders:
            folder, depth = folders.pop(0)
            for info in (await sandbox.service.list_files(sandbox.id, folder)).files:
                path = f"{folder.rstrip('/')}/{info.name}"
                found.append(described(path, info))
                if info.kind == "folder" and depth > 1:
                    folders.append((path, depth - 1))
            if len(found) > MAX_ENTRIES:
                raise errors.InvalidRequest(f"there are more than {MAX_ENTRIES} entries; list a part of them")
        return JSONResponse({"entries": found})

    # --- watching ---

    async def _watch(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_one(request, Watch)
        watcher = await self._begin(sandbox, asked)
        return Stream(self._events(sandbox, watcher), KEEPALIVE, KEEPALIVE_SECONDS)

    async def _create_watcher(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        watcher = await self._begin(sandbox, await read_body(request, Watch, MAX_BODY_BYTES))
        watcher_id = secrets.token_hex(WATCHER_BYTES)
        sandbox.watchers[watcher_id] = watcher
        return JSONResponse({"watcherId": watcher_id})

    async def _watcher_events(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        watcher = self._find(sandbox, (await read_body(request, WatcherId, MAX_BODY_BYTES)).watcher_id)
        task = await sandbox.service.shell_status(watcher.task_id, wait=0.0, from_event=watcher.next_event)
        watcher.next_event = task.next_event
        return JSONResponse(
            {"events": [await self._event(sandbox, watcher, line) for line in watcher.take(task.stdout)]}
        )

    async def _remove_watcher(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        watcher_id = (await read_body(request, WatcherId, MAX_BODY_BYTES)).watcher_id
        watcher = self._find(sandbox, watcher_id)
        del sandbox.watchers[watcher_id]
        await sandbox.service.shell_cancel(watcher.task_id, wait=0.0)
        return JSONResponse({})

    def _find(self, sandbox: Sandbox, watcher_id: str) -> Watcher:
        found = sandbox.watchers.get(watcher_id)
        if found is None:
            raise errors.NotFound(f"watcher {watcher_id[:80]!r} was not found")
        return found

    async def _begin(self, sandbox: Sandbox, asked: Watch) -> Watcher:
        """Start a program in the session that reports changes of a folder, and wait until it watches."""
        path = place(sandbox, asked.path)
        if (await sandbox.service.stat_file(sandbox.id, path)).kind != "folder":
            raise errors.InvalidRequest(f"{path[:200]!r} is no folder")
        words = ["exec", "python", "-I", "-c", watch_code(), path, "recursive" if asked.recursive else "flat"]
        task = await sandbox.service.run_task(NewTask(shlex.join(words), session_id=sandbox.id), wait=0.0)
        watcher = Watcher(task.task_id, path, asked.include_entry)
        async for event in sandbox.service.shell_events(task.task_id):
            if isinstance(event, Stdout):
                # Its first line says that it watches.
                watcher.next_event = event.seq + 1
                watcher.take(event.text.partition("\n")[2])
                return watcher
        ended = await sandbox.service.shell_status(task.task_id, wait=0.0)
        raise errors.Unavailable(f"{path[:200]!r} cannot be watched: {ended.stderr[-200:]}")

    async def _events(self, sandbox: Sandbox, watcher: Watcher) -> AsyncIterator[dict[str, Any]]:
        yield {"start": {}}
        try:
            async for event in sandbox.service.shell_events(watcher.task_id, watcher.next_event):
                for line in watcher.take(event.text) if isinstance(event, Stdout) else ():
                    yield {"filesystem": await self._event(sandbox, watcher, line)}
        finally:
            await sandbox.service.shell_cancel(watcher.task_id, wait=0.0)

    async def _event(self, sandbox: Sandbox, watcher: Watcher, line: str) -> dict[str, Any]:
        """Return a line of the watching program as an event."""
        kind, _, name = line.partition(" ")
        event: dict[str, Any] = {"name": name, "type": f"EVENT_TYPE_{kind}"}
        if watcher.include_entry and kind != "REMOVE":
            path = f"{watcher.path.rstrip('/')}/{name}"
            try:
                event["entry"] = described(path, await sandbox.service.stat_file(sandbox.id, path))
            except errors.IngleError:
                return event  # it is gone again
        return event


def place(sandbox: Sandbox, path: str) -> str:
    """Return an absolute path. A relative one starts at the sandbox's folder, as does `~`."""
    home = sandbox.default_context.cwd
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    if "\0" in path:
        raise errors.InvalidRequest("a path has no NUL")
    return posixpath.normpath(posixpath.join(home, path))


def described(path: str, info: FileInfo) -> dict[str, Any]:
    kinds = {"folder": stat.S_IFDIR, "link": stat.S_IFLNK}
    return {
        "name": posixpath.basename(path) or "/",
        "type": TYPES.get(info.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": str(info.size),
        "mode": info.mode,
        "permissions": stat.filemode(kinds.get(info.kind, stat.S_IFREG) | info.mode),
        "owner": OWNER,
        "group": OWNER,
        "modifiedTime": moment(datetime.fromtimestamp(info.modified, UTC)),
        **({"isSymlink": True} if info.kind == "link" else {}),
    }


async def _unzipped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes of a gzip stream in bounded pieces. The service bounds their sum, as of every file."""
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        async for chunk in chunks:
            while chunk:
                yield unzip.decompress(chunk, MAX_BODY_BYTES)
                chunk = unzip.unconsumed_tail
        yield unzip.flush()
    except zlib.error as error:
        raise errors.InvalidRequest(f"the body is no gzip: {error}") from None
