"""Transcript of a session as files and notes, and what the session uses."""

from ingle.capacity import NetworkUse, SessionUsage
from ingle.client.aio.attached import AsyncAttached
from ingle.client.decode import read

EXPORT_SECONDS = 600.0
"""Maximum time of an export: a transcript may have many megabytes."""


class AsyncTranscripts(AsyncAttached):
    """Methods for the transcript and the usage of a session."""

    async def export(self, format: str = "ipynb") -> bytes:
        """Return all cells so far with their outputs.

        The format is `ipynb`, `py`, `md`, or `html`: a page that runs no script.
        """
        return await self._request("GET", "/export", query={"format": format}, wait=EXPORT_SECONDS)

    async def note(self, text: str, *, raw: bool = False) -> None:
        """Put a note between the cells of the transcript: Markdown, or with `raw` text that nothing renders."""
        await self._request("POST", "/notes", body={"text": text, "raw": raw})

    async def usage(self) -> SessionUsage:
        """Return the CPU and memory that the session used in the last half hour, with its limit."""
        return read(await self._request("GET", "/usage"), SessionUsage)

    async def network(self) -> NetworkUse:
        """Return the hosts that the session has reached and was refused, with the flags that would allow them."""
        return read(await self._request("GET", "/network"), NetworkUse)
