"""Forks, checkpoints and rolling back over HTTP: the rows of the table, and what each of them asks the service for."""

from msgspec import Struct
from starlette.responses import Response

from ingle.events import CheckpointInfo, RolledBack, SessionInfo
from ingle.files import Diff
from ingle.http.routes.bodies import Name, NoQuery, Positive
from ingle.http.routes.table import Call, Operation, answer
from ingle.service.sessions import DIFF_SECONDS


class Fork(Struct, forbid_unknown_fields=True):
    session_id: Name | None = None
    """Name of the copy; several get `-1`, `-2` and so on. Default: random names."""
    count: Positive = 1
    """Number of copies."""
    reseed: bool = False
    """Give each copy new random numbers, instead of the original's."""


class Checkpoint(Struct, forbid_unknown_fields=True):
    name: Name
    """Name to return to."""


class Rollback(Struct, forbid_unknown_fields=True):
    name: str | None = None
    """Checkpoint to return to. Default: the automatic one before the last cell."""


class DiffQuery(Struct, forbid_unknown_fields=True):
    to: str | None = None
    """Checkpoint, session or snapshot to compare with; `snapshot:NAME` where names are the same.

    Default: the checkpoint that a rollback would go back to.
    """
    compare_seconds: float = DIFF_SECONDS
    """Time for the comparison of variables. Those after that are `unknown`."""


class Forks(Struct):
    sessions: list[SessionInfo]


class CheckpointList(Struct):
    checkpoints: list[CheckpointInfo]


def operations() -> list[Operation]:
    session = "/v1/sessions/{session_id}"
    return [
        Operation(
            "POST", session + "/fork", "Live copies, each a session of its own.", fork, body=Fork, answers={201: Forks}
        ),
        Operation(
            "POST",
            session + "/checkpoints",
            "Keep its state, in memory, to go back to.",
            checkpoint,
            body=Checkpoint,
            answers={201: CheckpointInfo},
        ),
        Operation(
            "GET", session + "/checkpoints", "What it can go back to.", checkpoints, answers={200: CheckpointList}
        ),
        Operation("DELETE", session + "/checkpoints/{name}", "Give one up.", drop_checkpoint, answers={204: None}),
        Operation(
            "POST",
            session + "/rollback",
            "Go back to a checkpoint, or to before the last cell.",
            rollback,
            body=Rollback,
            answers={200: RolledBack},
        ),
        Operation(
            "GET",
            session + "/diff",
            "What differs from a checkpoint, a fork or a snapshot: variables, and files with unified diffs.",
            diff,
            query=DiffQuery,
            answers={200: Diff},
        ),
    ]


async def fork(call: Call[Fork, NoQuery]) -> Response:
    body = call.body
    made = await call.service.fork_session(call.session_id, body.session_id, count=body.count, reseed=body.reseed)
    return answer(Forks(made), 201)


async def checkpoint(call: Call[Checkpoint, NoQuery]) -> Response:
    return answer(await call.service.checkpoint(call.session_id, call.body.name), 201)


async def checkpoints(call: Call[None, NoQuery]) -> Response:
    return answer(CheckpointList(await call.service.checkpoints(call.session_id)))


async def drop_checkpoint(call: Call[None, NoQuery]) -> Response:
    await call.service.drop_checkpoint(call.session_id, call.request.path_params["name"])
    return Response(status_code=204)


async def rollback(call: Call[Rollback, NoQuery]) -> Response:
    return answer(await call.service.rollback(call.session_id, call.body.name))


async def diff(call: Call[None, DiffQuery]) -> Response:
    query = call.query
    return answer(await call.service.diff(call.session_id, query.to, compare_seconds=query.compare_seconds))
