"""Bodies and queries of requests, decoded and checked in one step. Unknown fields are refused."""

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from ingle import errors
from ingle.batches import BatchItem, NewBatch
from ingle.http.problems import InvalidJson
from ingle.introspection import MAX_ROWS, Rows
from ingle.requests import CommitPolicy, NewCell, NewSession, Script, SessionLimits
from ingle.support import bounded_json

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(description="1 to 64 letters, digits, '.', '_' or '-', not starting with a dot")]

MAX_CELLS = 1000
MAX_QUERY_PARAMETERS = 100

MAX_ELEMENTS = 100_000
"""Values and keys in a body or in a message of a WebSocket."""

MAX_BATCH_ELEMENTS = 10_000_000

MAX_FAILURES = 100
"""Failed cells of one session that are kept."""

MAX_BYTES_ON_LOOP = 1024 * 1024
"""Size up to which a body is decoded at once. A larger one is decoded in a thread, because others wait meanwhile."""


class Create(Struct, forbid_unknown_fields=True):
    session_id: Name | None = None
    """Name of the session. Default: a random name."""
    python: str | None = None
    """Interpreter, one that the server allows. Default: the server's."""
    environment: Name | None = None
    """Environment by name, made with `ingle env create`. Default: none."""
    cwd: str | None = None
    """Folder to start in, in a granted one. Default: a folder of its own."""
    env: dict[str, str] | None = None
    """Environment variables of its processes."""
    idle_timeout: float | None = None
    """Seconds without use after which it counts as idle. Default: the server's."""
    include_stdlib: bool = True
    """Load the user's library."""
    durable: bool = False
    """Save it after each cell, and bring it back after a restart of the server."""
    isolation: Literal["none", "limits", "restricted", "sandbox"] | None = None
    """Lowest level of isolation. The server's own level is never lowered."""
    network: Literal["full", "allowlist", "none"] | None = None
    """Widest network access. The server's own grant is never widened."""
    gpus: str | None = None
    """GPUs: `all` that are granted, `none`, or numbers such as `0,1`. The server's own grant is never widened."""
    labels: dict[str, str] = {}
    """Labels that its machine must have, in a cluster."""
    limits: SessionLimits | None = None
    """Highest limits. The server's own limits are never raised."""
    checkpoints: Literal["manual", "auto"] | None = None
    """`auto`: one before each cell; `manual`: on request. Default: the server's."""
    keep_failures: Annotated[int, Meta(ge=0, le=MAX_FAILURES)] | None = None
    """Failed cells whose moment is kept, with the frames of the exception. Default: the server's."""
    shares: Name | None = None
    """Another session, whose folder and user id it gets. Default: a folder of its own."""
    home: str | None = None
    """Path at which a sandbox shows its folder, such as `/home/user`. Other levels tell the real path."""

    def new_session(self) -> NewSession:
        """Return the request as the service takes it."""
        return NewSession(
            session_id=self.session_id,
            python=self.python,
            environment=self.environment,
            cwd=self.cwd,
            env=self.env or {},
            idle_timeout=self.idle_timeout,
            include_stdlib=self.include_stdlib,
            durable=self.durable,
            isolation=self.isolation,
            network=self.network,
            gpus=self.gpus,
            labels=self.labels,
            limits=self.limits or SessionLimits(),
            checkpoints=self.checkpoints,
            keep_failures=self.keep_failures,
            shares=self.shares,
            home=self.home,
        )


class AddToStdlib(Struct, forbid_unknown_fields=True):
    function_code: str
    """Source of functions, classes or imports to add."""


class Execute(Struct, forbid_unknown_fields=True):
    code: str
    """Source of the cell."""
    timeout: float | None = None
    """Seconds after which the cell is interrupted. Default: none."""
    wait: float | None = None
    """Seconds until the answer `running`, while the cell goes on. Default: the server's."""
    envs: dict[str, str] | None = None
    """Environment variables for the time of this cell."""
    queue: bool = False
    """Wait for the turn of this cell while another one runs, instead of failing with `busy`."""
    script: Script | None = None
    """Run the cell as a program with arguments."""
    trial: bool = False
    """Run the cell in a copy of the session. The answer has its effect; commit or discard it then."""
    network: Literal["held", "allowed"] = "held"
    """Connections of a trial: `held`, none leaves; or `allowed`, as in the session."""
    policy: CommitPolicy | None = None
    """Rules by which a trial is committed by itself. Default: it waits for a commit or a discard."""

    def new_cell(self, key: str | None) -> NewCell:
        """Return the request as the service takes it."""
        trial = self.network if self.trial else None
        return NewCell(
            self.code, self.timeout, self.envs or {}, self.queue, key, self.script, trial=trial, policy=self.policy
        )


class Interpret(Struct, forbid_unknown_fields=True):
    code: str
    """Source to run."""
    timeout: float = 300.0
    """Seconds after which the code is interrupted."""
    envs: dict[str, str] | None = None
    """Environment variables of the code."""


class Batch(Struct, forbid_unknown_fields=True):
    code: str
    """Source to run for each item. It has the item's input as the variable `item`."""
    items: list[BatchItem]
    """The runs, at most 10,000."""
    concurrency: Annotated[int, Meta(ge=1)] | None = None
    """Items that run at the same time, at most 256. Default: two for each core."""
    timeout: float | None = 300.0
    """Seconds after which an item is interrupted; null is no limit."""
    limits: SessionLimits | None = None
    """Highest limits of each item. The server's own limits are never raised."""
    python: str | None = None
    """Interpreter, one that the server allows. Default: the server's."""
    environment: Name | None = None
    """Environment by name. Default: none."""
    cwd: str | None = None
    """Folder that all items start in, in a granted one. Default: a folder of its own for each."""
    include_stdlib: bool = True
    """Load the user's library."""
    isolation: Literal["none", "limits", "restricted", "sandbox"] | None = None
    """Lowest level of isolation. The server's own level is never lowered."""
    network: Literal["full", "allowlist", "none"] | None = None
    """Widest network access. The server's own grant is never widened."""

    def new_batch(self, key: str | None) -> NewBatch:
        """Return the request as the service takes it."""
        session = NewSession(
            python=self.python,
            environment=self.environment,
            cwd=self.cwd,
            include_stdlib=self.include_stdlib,
            isolation=self.isolation,
            network=self.network,
            limits=self.limits or SessionLimits(),
        )
        return NewBatch(
            code=self.code,
            items=self.items,
            session=session,
            concurrency=self.concurrency,
            timeout=self.timeout,
            key=key,
        )


class Input(Struct, forbid_unknown_fields=True):
    text: str = ""
    """Text for the waiting cell; a missing newline is added."""
    eof: bool = False
    """End its input, as Ctrl-D does."""
    wait: float | None = None
    """Seconds to wait for what the cell does next. Default: the server's."""


class Interrupt(Struct, forbid_unknown_fields=True):
    wait: float | None = None
    """Seconds to wait until the session is ready again. Default: the server's."""


class Cursor(Struct, forbid_unknown_fields=True):
    code: str
    """Source that is being written."""
    cursor: Natural | None = None
    """Position in it, in characters. Default: its end."""


class Inspect(Cursor, forbid_unknown_fields=True):
    source: bool = False
    """Also return the source of a function or class."""


class CheckCode(Struct, forbid_unknown_fields=True):
    code: str
    """Source that is being written."""


class NoBody(Struct, forbid_unknown_fields=True):
    """Nothing, or `{}`."""


class NoQuery(Struct, forbid_unknown_fields=True):
    pass


class CellsQuery(Struct, forbid_unknown_fields=True):
    first: Positive = 1
    """Number of the first cell."""
    count: Annotated[int, Meta(ge=1, le=MAX_CELLS)] = 100
    """Most cells to return."""


class ExportQuery(Struct, forbid_unknown_fields=True):
    format: str = "ipynb"
    """`ipynb`, `py`, `md` or `html`."""


class RunNotebook(Struct, forbid_unknown_fields=True):
    notebook: msgspec.Raw
    """Notebook of nbformat 4."""
    timeout: float | None = None
    """Seconds after which a cell is interrupted."""
    keep_going: bool = False
    """Run the next cell also after an exception."""


class NewNote(Struct, forbid_unknown_fields=True):
    text: str
    """What the note says."""
    raw: bool = False
    """Text that nothing renders. Default: Markdown."""


class CellQuery(Struct, forbid_unknown_fields=True, rename={"from_event": "from"}):
    wait: float = 0.0
    """Seconds to wait for the end of the cell."""
    from_event: Natural = 0
    """Return only text from this event on: `next_event` of an earlier answer."""


class ToldQuery(Struct, forbid_unknown_fields=True):
    characters: Annotated[int, Meta(ge=1, le=10_000_000)] = 1_000_000
    """Maximum size of all events together, as characters of text and data."""


class EventsQuery(Struct, forbid_unknown_fields=True, rename={"first": "from"}):
    first: Natural = 1
    """Number of the first event."""


class OutputQuery(Struct, forbid_unknown_fields=True):
    from_line: Positive = 1
    """First line, counted from 1."""
    lines: Positive = 200
    """Most lines to return."""
    grep: str | None = None
    """Return only lines that match this pattern."""
    context: Natural = 0
    """Lines before and after each match."""
    offset: Natural = 0
    """Characters of the first line to leave out."""
    raw: bool = False
    """Keep terminal codes and progress bars."""
    stream: str = "stdout"
    """`stdout`, `stderr`, `both`, `background`, `result`, `displays` or `error`."""


class VariableQuery(Struct, forbid_unknown_fields=True):
    limit: Seconds | None = None
    """Seconds for the variable's own code."""
    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
    """Return so many rows of a table, an array, a list or a dictionary instead of its text."""
    first_row: Natural = 0
    """Number of rows before these."""
    column: Natural | None = None
    """Return also the numbers of this column, counted from 0, at even distances."""

    @property
    def asked(self) -> Rows | None:
        return Rows(self.rows, self.first_row, self.column) if self.rows else None


class FilesQuery(Struct, forbid_unknown_fields=True):
    folder: str = ""
    """Folder that the path starts at: one in the session's folder, or the absolute path of a granted one."""


class ArchiveQuery(Struct, forbid_unknown_fields=True):
    path: str = ""
    """A path in the session's folder, which is the default, or an absolute path in a granted folder."""


BOUNDS = bounded_json.Bounds(elements=MAX_ELEMENTS, text=1 << 40)
"""Bounds of what callers send. Their texts are bounded by the size of a body."""

BATCH_BOUNDS = bounded_json.Bounds(elements=MAX_BATCH_ELEMENTS, text=1 << 40)
"""Bounds of a batch. Its inputs stay JSON, so their elements take no memory."""

Body = TypeVar("Body", bound=Struct)


async def read_body(request: Request, kind: type[Body], limit: int, bounds: bounded_json.Bounds | None = None) -> Body:
    """Decode the body as `kind`; an empty body is `{}`. Refuse one above the limit without reading all of it."""
    check_length(request.headers.get("content-length", ""), limit)
    data = await read_bytes(request.receive, limit)
    if len(data) > MAX_BYTES_ON_LOOP:
        return await asyncio.to_thread(decode, kind, data, bounds or BOUNDS)
    return decode(kind, data, bounds or BOUNDS)


async def read_bytes(receive: Receive, limit: int) -> bytes | bytearray:
    """Return the whole body. Refuse one above the limit without reading all of it."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part: bytes = message["body"]
        if len(data) + len(part) > limit:
            raise too_large(limit)
        if not message["more_body"]:
            return data + part if data else part
        data += part


def decode(kind: type[Body], data: bytes | bytearray, bounds: bounded_json.Bounds = BOUNDS) -> Body:
    """Return the body, or raise an error that says what is wrong with it."""
    try:
        bounded_json.check(data, bounds)
        body: Body = _decoder(kind).decode(data or b"{}")
        return body
    except bounded_json.OutOfBounds as error:
        raise errors.InvalidRequest(f"the body cannot be read: {error}") from None
    except msgspec.ValidationError as error:
        raise _not_as_expected("body", kind, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson(f"the body is not JSON in UTF-8: {error}") from None


def check_length(declared: str, limit: int) -> None:
    """Refuse a request whose declared length is above the limit."""
    if declared.isdecimal() and (len(declared) > len(str(limit)) or int(declared) > limit):
        raise too_large(limit)


def read_query(request: Request, kind: type[Body]) -> Body:
    if request.scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
        raise errors.InvalidRequest(f"the query has more than {MAX_QUERY_PARAMETERS} parameters")
    try:
        given = dict(request.query_params) if request.scope["query_string"] else {}
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _not_as_expected("query", kind, error) from None


def refuse_query(scope: Scope) -> None:
    """Refuse a query on a route that takes none."""
    read_query(Request(scope), NoQuery)


def read_cell(request: Request) -> int:
    """Return the number of the cell in the path."""
    text: str = request.path_params["cell"]
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**63))):
        raise errors.InvalidRequest(f"{text[:80]!r} is not the number of a cell; cells are numbered from 1")
    return int(text)


async def read_stream(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. The caller checks its size."""
    check_length(request.headers.get("content-length", ""), limit)
    async for chunk in request.stream():
        if chunk:
            yield chunk


@cache
def _decoder(kind: type[Body]) -> "msgspec.json.Decoder[Body]":
    return msgspec.json.Decoder(kind)


def too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge(f"the body is above the limit of {limit} bytes; put the data into a file, or raise max_code")


def _not_as_expected(what: str, kind: type[Body], error: msgspec.ValidationError) -> errors.InvalidRequest:
    fields = ", ".join(each.encode_name for each in msgspec.structs.fields(kind))
    reason = str(error).replace("Object missing", f"the {what} lacks the").replace("Object", f"the {what}")
    return errors.InvalidRequest(f"{reason}; the fields of this {what} are: {fields or 'none'}")
