"""Phrases, numbers and sizes as text, the same for every reader."""

from ingle.events import Result


def left_out_notices(result: Result) -> list[str]:
    """Return the notices about text that a result lacks. Readers that see the gap do not need them."""
    return [
        f"{part.left_out} characters of {stream} were left out after the first {part.head}; "
        f"read them by line number or by grep in the output of cell {result.cell}"
        for stream, part in result.excerpts.items()
        if part.left_out
    ]


UNNAMED_FILES = "results of this session do not name the files that cells change: "
"""Start of the notice about a folder that is not watched. Readers that show no names of files do not need it."""


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some(texts: list[str], most: int = 10) -> str:
    """Return the first `most` texts and the number of the others."""
    more = f" and {counted(len(texts) - most, 'other')}" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def duration(seconds: float) -> str:
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(number: int) -> str:
    """Format a number of bytes."""
    if number < 1000:
        return f"{number} bytes"
    return f"{number / 1000:.0f} kB" if number < 999_500 else f"{number / 1e6:.1f} MB"
