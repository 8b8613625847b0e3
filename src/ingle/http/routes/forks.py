"""Forks, checkpoints, trials and rolling back over HTTP: rows of the table, and what each asks the service for."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from ingle.events import CheckpointInfo, Result, RolledBack, SessionInfo
from ingle.files import Diff
from ingle.http.routes.bodies import Name, NoBody, NoQuery, Positive, Seconds, read_cell
from ingle.http.routes.table import Call, Operation, answer
from ingle.service.sessions import DIFF_SECONDS
from ingle.trials import Committed, FailureInfo, Inspected, Merged, TrialInfo, Tried

Network = Literal["held", "allowed"]


class Fork(Struct, forbid_unknown_fields=True):
    session_id: Name | None = None
    """Name of the copy; several get `-1`, `-2` and so on. Default: random names."""
    count: Positive = 1
    """Number of copies."""
    at: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """Copy the state right after this cell, which a checkpoint must hold. Default: the state now."""
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


class Try(Struct, forbid_unknown_fields=True):
    codes: list[str]
    """Codes to run, each in a copy of the session."""
    score: str | None = None
    """Expression that is evaluated in each copy; the highest finite number wins. Default: the first that succeeds."""
    keep: Literal["best", "first_ok", "none"] = "best"
    """Which copy becomes the session."""
    budget: Seconds | None = None
    """Seconds for all of them. Default: the server's `wait`."""
    network: Network = "held"
    """Connections: `held`, none leaves; or `allowed`, as in the session."""


class Probe(Struct, forbid_unknown_fields=True):
    code: str
    """Source to run in a copy that ends after it."""
    clean: bool = False
    """Run in a new session instead, which has only `variables`, as data."""
    variables: list[str] = []
    """Variables that a clean probe has."""
    timeout: Seconds | None = None
    """Seconds after which the code is interrupted. Default: none."""
    network: Network = "held"
    """Connections: `held`, none leaves; or `allowed`, as in the session."""


class Merge(Struct, forbid_unknown_fields=True):
    fork: Name
    """Session to take from."""
    variables: list[str] = []
    """Variables to take. They are copied as data."""
    files: list[str] = []
    """Files and folders to take, relative to the fork's folder."""


class Adopt(Struct, forbid_unknown_fields=True):
    fork: Name
    """Fork of this session."""


class InspectFailure(Struct, forbid_unknown_fields=True):
    expression: str
    """Python expression."""
    frame: Annotated[int, Meta(ge=-1000, le=100_000)] = -1
    """Frame to evaluate it in: 0 is the cell's own, -1 the one that raised the exception."""


class FailureList(Struct):
    failures: list[FailureInfo]


class TrialList(Struct):
    trials: list[TrialInfo]


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
        Operation("GET", session + "/trials", "Trials that wait for a decision.", trials, answers={200: TrialList}),
        Operation(
            "POST",
            session + "/trials/{name}/commit",
            "Make a trial the session, without running anything again.",
            commit,
            body=NoBody,
            answers={200: Committed},
        ),
        Operation(
            "POST", session + "/trials/{name}/discard", "Drop a trial.", discard, body=NoBody, answers={204: None}
        ),
        Operation(
            "POST",
            session + "/try",
            "Run codes in copies at the same time, and keep one as the session.",
            try_cells,
            body=Try,
            answers={200: Tried},
        ),
        Operation(
            "POST",
            session + "/probe",
            "Run code in a copy that ends after it.",
            probe,
            body=Probe,
            answers={200: Result},
        ),
        Operation(
            "GET",
            session + "/failures",
            "Failed cells whose moment is kept, with their frames.",
            failures,
            answers={200: FailureList},
        ),
        Operation(
            "POST",
            session + "/failures/{cell}/inspect",
            "Evaluate an expression in a frame of a failed cell, or of the `last` one.",
            inspect_failure,
            body=InspectFailure,
            answers={200: Inspected},
        ),
        Operation(
            "POST",
            session + "/merge",
            "Take variables and files from a fork.",
            merge,
            body=Merge,
            answers={200: Merged},
        ),
        Operation(
            "POST",
            session + "/adopt",
            "Make a fork this session, from which it was forked, and end the fork.",
            adopt,
            body=Adopt,
            answers={200: Committed},
        ),
    ]


async def fork(call: Call[Fork, NoQuery]) -> Response:
    body = call.body
    made = await call.service.fork_session(
        call.session_id, body.session_id, count=body.count, at=body.at, reseed=body.reseed
    )
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


async def trials(call: Call[None, NoQuery]) -> Response:
    return answer(TrialList(await call.service.trials(call.session_id)))


async def commit(call: Call[NoBody, NoQuery]) -> Response:
    return answer(await call.service.commit(call.session_id, call.request.path_params["name"]))


async def discard(call: Call[NoBody, NoQuery]) -> Response:
    await call.service.discard(call.session_id, call.request.path_params["name"])
    return Response(status_code=204)


async def try_cells(call: Call[Try, NoQuery]) -> Response:
    body = call.body
    tried = await call.service.try_cells(
        call.session_id, body.codes, score=body.score, keep=body.keep, budget=body.budget, network=body.network
    )
    return answer(tried)


async def probe(call: Call[Probe, NoQuery]) -> Response:
    body = call.body
    result = await call.service.probe(
        call.session_id,
        body.code,
        clean=body.clean,
        variables=body.variables,
        timeout=body.timeout,
        network=body.network,
    )
    return answer(result)


async def failures(call: Call[None, NoQuery]) -> Response:
    return answer(FailureList(await call.service.failures(call.session_id)))


async def inspect_failure(call: Call[InspectFailure, NoQuery]) -> Response:
    body = call.body
    last = call.request.path_params["cell"] == "last"
    cell = None if last else read_cell(call.request)
    return answer(await call.service.inspect_failure(call.session_id, body.expression, cell=cell, frame=body.frame))


async def merge(call: Call[Merge, NoQuery]) -> Response:
    body = call.body
    return answer(await call.service.merge(call.session_id, body.fork, variables=body.variables, files=body.files))


async def adopt(call: Call[Adopt, NoQuery]) -> Response:
    return answer(await call.service.adopt(call.session_id, call.body.fork))
