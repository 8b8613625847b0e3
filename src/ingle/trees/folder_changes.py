"""Which sessions changed which tracked folders: files that another session changed since are not brought back."""

import time


class FolderChanges:
    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}
        """By folder and session: the time of the last change."""

    def note(self, folder: str, session: str) -> None:
        """Note that a cell of this session has changed files in a folder."""
        self._last.setdefault(folder, {})[session] = time.time()

    def others(self, folder: str, session: str, since: float) -> list[str]:
        """Return the other sessions that have changed files in a folder since then."""
        last = self._last.get(folder, {})
        return sorted(each for each, moment in last.items() if each != session and moment >= since)

    def forget(self, session: str) -> None:
        """Forget a session that has ended."""
        for folder in list(self._last):
            self._last[folder].pop(session, None)
            if not self._last[folder]:
                del self._last[folder]
