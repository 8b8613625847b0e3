"""Routes of saved sessions, and of the user's library: functions that every new session starts with."""

from typing import Literal

from msgspec import Struct
from starlette.responses import Response

from ingle.events import Restored, Saved, SnapshotInfo, Stdlib, StdlibChange
from ingle.http.file_response import FileResponse
from ingle.http.routes.bodies import AddToStdlib, Name, NoQuery, read_stream
from ingle.http.routes.table import Call, Media, Operation, answer, answer_list

CONTENT = Media("application/octet-stream")


class Save(Struct, forbid_unknown_fields=True):
    name: str
    """Of the snapshot; or the path of a file below the session's folder."""


class Load(Struct, forbid_unknown_fields=True):
    session_id: Name | None = None
    """Name of the new session. Default: that of the saved one."""
    python: str | None = None
    """Interpreter, one that the server allows. Default: the server's."""
    cwd: str | None = None
    """Folder to start in. Default: a folder of its own."""
    idle_timeout: float | None = None
    """Seconds without use after which it counts as idle. Default: the server's."""
    isolation: Literal["none", "limits", "restricted", "sandbox"] | None = None
    """Lowest level of isolation."""
    trust: bool = False
    """Load it even if this ingle did not write it, and run the code in it."""
    rerun: bool = False
    """Run the cells again that made what could not be saved."""


class SnapshotList(Struct):
    snapshots: list[SnapshotInfo]


def operations() -> list[Operation]:
    one = "/v1/snapshots/{name}"
    return [
        Operation(
            "POST",
            "/v1/sessions/{session_id}/save",
            "Save a session, which goes on meanwhile.",
            save,
            body=Save,
            answers={200: Saved},
        ),
        Operation("GET", "/v1/snapshots", "The saved sessions.", snapshots, answers={200: SnapshotList}),
        Operation("POST", one + "/load", "Make a session of a saved one.", load, body=Load, answers={201: Restored}),
        Operation("DELETE", one, "Forget a saved session.", delete, answers={204: None}),
        Operation("GET", one + "/file", "A saved session as one file.", read, answers={200: CONTENT, 304: None}),
        Operation("PUT", one + "/file", "Keep such a file.", write, body=CONTENT, answers={201: SnapshotInfo}),
    ]


async def save(call: Call[Save, NoQuery]) -> Response:
    return answer(await call.service.save_session(call.session_id, call.body.name))


async def snapshots(call: Call[None, NoQuery]) -> Response:
    return await answer_list("snapshots", call.service.each_snapshot())


async def load(call: Call[Load, NoQuery]) -> Response:
    body = call.body
    restored = await call.service.load_session(
        _name(call),
        body.session_id,
        python=body.python,
        cwd=body.cwd,
        idle_timeout=body.idle_timeout,
        isolation=body.isolation,
        trust=body.trust,
        rerun=body.rerun,
    )
    return answer(restored, 201, {"location": f"/v1/sessions/{restored.session.session_id}"})


async def delete(call: Call[None, NoQuery]) -> Response:
    await call.service.delete_snapshot(_name(call))
    return Response(status_code=204)


async def read(call: Call[None, NoQuery]) -> Response:
    # Each time it is written anew, so that no part of one need fit a part of another.
    return FileResponse(await call.service.open_snapshot(_name(call)), call.request)


async def write(call: Call[None, NoQuery]) -> Response:
    limit = call.service.settings.max_snapshot
    return answer(await call.service.write_snapshot(_name(call), read_stream(call.request, limit)), 201)


def _name(call: "Call[Load, NoQuery] | Call[None, NoQuery]") -> str:
    name: str = call.request.path_params["name"]
    return name


# --- the user's library ---


def library_operations() -> list[Operation]:
    return [
        Operation("GET", "/v1/stdlib", "What the user's library holds.", read_library, answers={200: Stdlib}),
        Operation(
            "POST",
            "/v1/stdlib",
            "Add code to the user's library, once it was seen to run.",
            add_to_library,
            body=AddToStdlib,
            answers={200: StdlibChange},
        ),
    ]


async def read_library(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.list_stdlib())


async def add_to_library(call: Call[AddToStdlib, NoQuery]) -> Response:
    return answer(await call.service.add_to_stdlib(call.body.function_code))
