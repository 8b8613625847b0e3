"""Hints: notices of a result that explain the exception of its cell by what the host knows.

A hint may take time, since it looks at the host's disk or asks a server. So it has a bound, and the cell ends without
it when the time is over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

HINT_SECONDS = 0.5
"""Time for all hints of one cell. Its result waits for them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """The exception of a cell, as the worker reports it, and the session that it was raised in."""

    name: str
    """Name of the exception's class. Like `value`, it is untrusted."""
    value: str
    code: str
    """Source of the cell."""
    tenant: str
    isolation: str
    network: str
    cwd: str
    """Folder that the session started in."""
    granted: tuple[tuple[str, bool], ...]
    """Folders of the host that its process sees, and whether it may write there."""
    later: tuple[tuple[str, bool], ...] = ()
    """Folders that its next process sees."""
    gpus: tuple[int, ...] = ()
    """GPUs that it may use."""


Hint = Callable[[Failure], Awaitable[str | None]]
"""Returns a sentence with the way out, or None."""


CodeHint = Callable[[str, tuple[int, ...]], str | None]
"""Returns a sentence about the code of a cell, in a session with these GPUs, or None."""


class Hints:
    """Hints by the name of an exception's class, without its module."""

    def __init__(self, by_name: Mapping[str, Hint], of_code: CodeHint | None = None) -> None:
        self._by_name = by_name
        self._of_code = of_code

    def of_code(self, code: str, gpus: tuple[int, ...]) -> list[str]:
        """Return the notices for a cell that has this code and did not fail."""
        found = None if self._of_code is None else self._of_code(code, gpus)
        return [] if found is None else [found]

    def has(self, name: str) -> bool:
        """Return whether there may be a hint for exceptions of this name."""
        return name.rpartition(".")[2] in self._by_name

    async def find(self, failure: Failure) -> list[str]:
        """Return the notices for a cell that failed like this."""
        try:
            async with asyncio.timeout(HINT_SECONDS):
                found = await self._by_name[failure.name.rpartition(".")[2]](failure)
        except TimeoutError:
            return []
        except Exception:  # the edge of a background task: the cell must end all the same
            logger.exception("no hint could be given for %s", failure.name)
            return []
        return [] if found is None else [found]


NO_HINTS = Hints({})
