"""What a server said, as values: events, and problems as the exceptions of `ingle.errors`.

A server may be newer than its client: unknown fields are passed over, an unknown kind of event becomes an
`OtherEvent`, an unknown problem an `IngleError` with its code and status.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ingle import errors
from ingle.events import AnyEvent, MimeBundle

T = TypeVar("T")


@dataclass(frozen=True)
class OtherEvent:
    """An event of a kind that this version of the client does not know."""

    type: str
    seq: int
    time: float
    session_id: str
    cell: int | None
    fields: dict[str, Any] = field(default_factory=dict)
    """All that the event has, under the names it has there."""


Event = AnyEvent | OtherEvent

_decoder: "msgspec.json.Decoder[AnyEvent]" = msgspec.json.Decoder(AnyEvent)


def read_event(data: bytes | str) -> Event | None:
    """The event in one frame; None for what is no event, as the reply to a message is."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"what answers there does not speak as ingle does: {error}") from None
    said = msgspec.json.decode(data)
    if not isinstance(said, dict) or type(said.get("seq")) is not int:
        return None
    return OtherEvent(
        type=str(said.get("type")),
        seq=said["seq"],
        time=float(said.get("time", 0.0)),
        session_id=str(said.get("session_id", "")),
        cell=said.get("cell"),
        fields=said,
    )


def kind_of(event: Event) -> str:
    """The `type` of an event, as docs/contract.md lists them."""
    return event.type if isinstance(event, OtherEvent) else str(event.__struct_config__.tag)


def bundle_of(event: Event) -> MimeBundle:
    """What an event shows, by mime type; empty when it shows nothing."""
    data = event.fields.get("data") if isinstance(event, OtherEvent) else getattr(event, "data", None)
    return data if isinstance(data, dict) else {}


def read(data: bytes, kind: type[T]) -> T:
    """An answer as the shape it must have."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"what answers there does not speak as ingle does: {error}; check the URL") from None


def _tree(kind: type[errors.IngleError]) -> dict[str, type[errors.IngleError]]:
    found: dict[str, type[errors.IngleError]] = {kind.code: kind}
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            found.update(_tree(each))
    return found


_BY_CODE = _tree(errors.IngleError)


def failure(status: int, body: bytes, retry_after: str | None = None) -> errors.IngleError:
    """The exception for an answer that is no success."""
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return errors.Unreachable(
            f"what answers there is no ingle server, or stands in front of one that is gone: it said {status}; "
            "check the URL, and whether `ingle serve` runs"
        )
    return _of_problem(problem, status, retry_after)


def _of_problem(problem: dict[str, Any], status: int, retry_after: str | None) -> errors.IngleError:
    code = problem["code"]
    # Made without its own __init__, which would make up the sentence that the server has said already.
    kind = _BY_CODE.get(code, errors.IngleError)
    error = kind.__new__(kind)
    errors.IngleError.__init__(error, str(problem.get("detail", code)))
    error.code, error.status = code, status
    if retry_after is not None and retry_after.isdecimal():
        error.retry_after = float(retry_after)
    if isinstance(error, errors.Busy):
        error.cell = int(problem.get("cell") or 0)
    return error
