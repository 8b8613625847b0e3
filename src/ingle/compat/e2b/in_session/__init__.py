"""Source that runs in the sessions of sandboxes: what E2B's clients expect of the display of values.

The host reads these modules as text and never imports them. They use the standard library only.
"""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def _source(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def watch_code() -> str:
    """Return the program that reports changes of a folder."""
    return _source("watch.py")


def startup_code(cwd: str | None) -> str:
    """Return the first cell of a context. It leaves no name behind, and ends in the folder `cwd` if that exists."""
    source = f"{_source('startup.py')}\ninstall({_source('charts.py')!r}, {cwd!r})\n"
    return f"exec(compile({source!r}, '<ingle e2b>', 'exec'), {{'__name__': 'ingle_e2b'}})"
