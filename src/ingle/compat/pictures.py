"""Images in full size, for clients that show them to people."""

import base64
import contextlib
from typing import Any

import msgspec

from ingle import errors
from ingle.events import AnyEvent, DisplayShown, ResultShown
from ingle.service import Service

IMAGES = ("image/png", "image/jpeg")


async def with_full_image(service: Service, session_id: str, event: AnyEvent) -> AnyEvent:
    """Return the event with its image in full size, where ingle shows a smaller one."""
    if not isinstance(event, ResultShown | DisplayShown):
        return event
    for mime in IMAGES:
        described: Any = event.metadata.get(mime)
        if isinstance(described, dict) and described.get("full"):
            with contextlib.suppress(errors.IngleError):
                image = await service.figure(session_id, described["full"]["file"])
                data = {**event.data, mime: base64.b64encode(image).decode()}
                metadata = {name: value for name, value in event.metadata.items() if name != mime}
                return msgspec.structs.replace(event, data=data, metadata=metadata)
    return event
