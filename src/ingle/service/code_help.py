"""Verbs for people who write code: complete names, describe objects, tell whether code is complete."""

from ingle import errors
from ingle.introspection import Completeness, Completion, Inspection
from ingle.service.verbs import Verbs


class CodeHelp(Verbs):
    async def complete(self, session_id: str, code: str, cursor: int | None = None) -> Completion:
        """Return the names that may stand at the cursor, by default the end of the code. No code of the user runs.

        While a cell runs, only names of variables are completed, by those of the last finished cell.
        """
        at = self._cursor(code, cursor)
        return await self.access.session(session_id).introspection.complete(code, at)

    async def inspect(
        self, session_id: str, code: str, cursor: int | None = None, *, source: bool = False
    ) -> Inspection:
        """Describe the object at the cursor: type, signature, documentation. No code of the user runs."""
        at = self._cursor(code, cursor)
        return await self.access.session(session_id).introspection.inspect(code, at, source=source)

    async def is_complete(self, session_id: str, code: str) -> Completeness:
        """Tell whether code is complete, or needs further lines."""
        self._cursor(code, None)
        return await self.access.session(session_id).introspection.check(code)

    def _cursor(self, code: str, cursor: int | None) -> int:
        """Return the position of the cursor. Raise InvalidRequest if it is not in the code."""
        if len(code) > self.settings.max_code:
            raise errors.InvalidRequest(
                f"the code has {len(code)} characters, above the limit of {self.settings.max_code}; send less of it"
            )
        if cursor is None:
            return len(code)
        if not 0 <= cursor <= len(code):
            raise errors.InvalidRequest(f"the cursor is at {cursor}, and the code has {len(code)} characters")
        return cursor
