"""Public shapes of batches: the items of a request, and the result of each."""

from msgspec import Raw, Struct, field

from ingle.events import Result
from ingle.requests import NewSession


class FileBytes(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a file that is not text."""

    base64: bytes


class BatchItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run of a batch."""

    id: str | int | None = None
    """Name or number of the run, given back in its result. Default: its place in the list, from "0" on."""
    input: Raw = field(default_factory=lambda: Raw(b"null"))
    """Any JSON value. The code has it as the variable `item`."""
    stdin: str = ""
    """All of its standard input."""
    files: dict[str, str | FileBytes] = field(default_factory=dict)
    """Files in its folder, by path: text, or bytes as `{"base64": …}`."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""


class NewBatch(Struct, frozen=True, kw_only=True):
    """Request to run code once for each item, each time in a new session."""

    code: str
    items: list[BatchItem]
    session: NewSession
    """The session of each item."""
    concurrency: int | None = None
    """Items that run at the same time. Default: two for each core."""
    timeout: float | None = None
    """Seconds after which an item is interrupted."""
    key: str | None = None
    """Idempotency key. A repeated request with the same key runs nothing."""


class ItemProblem(Struct, frozen=True, gc=False):
    """Why an item of a batch did not run."""

    code: str
    detail: str


class ItemResult(Result, gc=False):
    """The result of one item of a batch. Its session has ended."""

    id: str | int = ""
    limit: str | None = None
    """The limit that ended the item: `time`, `memory`, or null."""
    problem: ItemProblem | None = None
    """Why nothing ran. The status is then `not_run`."""
