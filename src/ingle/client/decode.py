"""Decoding of a server's answers and events. `minimal.failure` turns its errors into exceptions.

A server may be newer than its client: unknown fields are ignored, and an unknown event becomes an `OtherEvent`.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ingle import errors
from ingle.events import AnyEvent, MimeBundle

T = TypeVar("T")


@dataclass(frozen=True)
class OtherEvent:
    """Event of a type that this client does not know."""

    type: str
    seq: int
    time: float
    session_id: str
    cell: int | None
    fields: dict[str, Any] = field(default_factory=dict)
    """All fields of the event, by name."""


Event = AnyEvent | OtherEvent

_decoder: "msgspec.json.Decoder[AnyEvent]" = msgspec.json.Decoder(AnyEvent)


def read_event(data: bytes | str) -> Event | None:
    """Return the event in one frame, or None for a frame without one, such as a reply."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"the server is not an ingle server: {error}; check the URL") from None
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
    """Return the `type` of an event, as listed in docs/contract.md."""
    return event.type if isinstance(event, OtherEvent) else str(event.__struct_config__.tag)


def bundle_of(event: Event) -> MimeBundle:
    """Return the mime bundle of an event, empty if it has none."""
    data = event.fields.get("data") if isinstance(event, OtherEvent) else getattr(event, "data", None)
    return data if isinstance(data, dict) else {}


def read(data: bytes, kind: type[T]) -> T:
    """Decode an answer as this type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"the server is not an ingle server: {error}; check the URL") from None
