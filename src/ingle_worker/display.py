"""Showing a value: `sys.displayhook`, and the mime bundle of a result."""

import builtins
from collections.abc import Callable

MAX_TEXT = 1_000_000
"""Characters of one value's text that travel; a longer one keeps its head and its tail."""


def bundle(value: object) -> dict[str, str]:
    """The mime bundle of a value; always has text/plain."""
    return {"text/plain": shorten(repr(value))}


def shorten(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    head, tail = MAX_TEXT * 35 // 100, MAX_TEXT * 65 // 100
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def make_hook(show: Callable[[dict[str, str]], None]) -> Callable[[object], None]:
    """A display hook that shows values by `show` and keeps the last one in `_`, as Python's own does."""

    def displayhook(value: object) -> None:
        if value is None:
            return
        builtins._ = None  # type: ignore[attr-defined]
        show(bundle(value))
        builtins._ = value  # type: ignore[attr-defined]

    return displayhook
