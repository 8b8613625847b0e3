"""Verbs for the transcript of a session: export it as a file, and add notes to it."""

import asyncio

from ingle import errors
from ingle.callers import EXECUTE
from ingle.render import export
from ingle.render.transcript import Transcript
from ingle.service.verbs import Verbs

MAX_NOTE_CHARS = 1_000_000


class Transcripts(Verbs):
    async def export(self, session_id: str, form: str = "ipynb") -> bytes:
        """Return all cells so far with their outputs: `ipynb`, `py`, `md`, or `html` that runs no script."""
        if form not in export.FORMATS:
            raise errors.InvalidRequest(f"format is {form[:80]!r}; it must be one of {', '.join(export.FORMATS)}")
        session = self.access.session(session_id)
        last = (await session.info()).next_event - 1
        transcript = Transcript()
        if last:
            async for event in session.events(1):
                if event.seq <= last:
                    transcript.take(event)
                if event.seq >= last:
                    break
        return await asyncio.to_thread(export.export, transcript.parts, session_id, form)

    async def note(self, session_id: str, text: str, *, raw: bool = False) -> None:
        """Add a note to the transcript: Markdown between cells, or with `raw` text that nothing renders."""
        if len(text) > MAX_NOTE_CHARS:
            raise errors.InvalidRequest(f"the note has {len(text)} characters, above the limit of {MAX_NOTE_CHARS}")
        await self.access.session(session_id, EXECUTE).note(text, self.access.author, raw=raw)
