"""Prompts of `input()`: they come once, with the request for input, and not as output too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ingle.events import InputWanted, StateChanged, Stdout

PROMPT_SECONDS = 0.05
"""Time for which the beginning of a line may wait for a request for input. Then it is output."""

MAX_PROMPT_CHARS = 1000


async def without_prompts(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the events of a cell but those of states, and no prompt as the end of stdout."""
    held: Stdout | None = None
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            if held is None:
                event = await anext(events, None)
            else:
                following = asyncio.ensure_future(anext(events, None))
                if not (await asyncio.wait({following}, timeout=PROMPT_SECONDS))[0]:
                    yield held
                    held = None
                event = await following
            if isinstance(event, StateChanged):
                continue  # the session waits for input: its prompt follows
            if isinstance(event, InputWanted) and held is not None:
                held = _without(held, event.prompt)
            if isinstance(event, Stdout) and held is not None:
                event = msgspec.structs.replace(event, text=held.text + event.text)
                held = None
            if held is not None:
                yield held
                held = None
            if event is None:
                return
            if isinstance(event, Stdout) and not event.background:
                lines, held = _split(event)
                if lines is not None:
                    yield lines
            else:
                yield event
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _split(event: Stdout) -> tuple[Stdout | None, Stdout | None]:
    """Return the whole lines of an output, and the line that has no end yet."""
    cut = event.text.rfind("\n") + 1
    if len(event.text) - cut > MAX_PROMPT_CHARS:
        return event, None
    lines, rest = event.text[:cut], event.text[cut:]
    return (
        msgspec.structs.replace(event, text=lines) if lines else None,
        msgspec.structs.replace(event, text=rest) if rest else None,
    )


def _without(held: Stdout, prompt: str) -> Stdout | None:
    text = held.text.removesuffix(prompt)
    return msgspec.structs.replace(held, text=text) if text else None
