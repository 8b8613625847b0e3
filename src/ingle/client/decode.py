"""The answers and events of a server as values. `minimal.failure` makes exceptions of its problems.

A server may be newer than its client: unknown fields are passed over, and an unknown kind of event becomes an
`OtherEvent`.
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
    """Return the event in one frame; None for what is no event, as the reply to a message is."""
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
    """Return the `type` of an event, as docs/contract.md lists them."""
    return event.type if isinstance(event, OtherEvent) else str(event.__struct_config__.tag)


def bundle_of(event: Event) -> MimeBundle:
    """Return what an event shows, by mime type; empty when it shows nothing."""
    data = event.fields.get("data") if isinstance(event, OtherEvent) else getattr(event, "data", None)
    return data if isinstance(data, dict) else {}


def read(data: bytes, kind: type[T]) -> T:
    """Decode an answer as the type it must have."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"what answers there does not speak as ingle does: {error}; check the URL") from None
