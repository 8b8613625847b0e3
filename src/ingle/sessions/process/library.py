"""The user's library in the workers of one session. It never keeps a session from starting."""

from ingle import errors
from ingle.sessions.cells.journal import Journal
from ingle.sessions.process.calls import WorkerCalls
from ingle.snapshots.user_library import Library
from ingle.workers.worker import Worker


class SessionLibrary:
    def __init__(self, library: Library | None, calls: WorkerCalls, journal: Journal) -> None:
        self._library = library
        self._calls = calls
        self._journal = journal
        self._failed = False
        """Whether it has ended a worker."""

    @property
    def wanted(self) -> bool:
        return self._library is not None and not self._failed

    async def load(self, worker: Worker, *, run: bool) -> list[str]:
        """Load it as far as possible, or only keep it for clearing. Return the names that it defines."""
        if self._library is None or self._failed:
            return []
        names: list[str] = []
        problem = self._library.problem
        if not problem:
            loaded = await self._calls.load_library(worker, self._library, run=run)
            if loaded is None:
                self._failed = True
                how = worker.gone.result().message or "ended" if worker.gone.done() else "ended"
                self._journal.note(f"the user's library is not loaded: it ended the process, which {how}")
                raise errors.StartFailed("the user's library ended the session's process")
            names, problem = loaded.names, loaded.problem
        if problem:
            self._journal.note(
                f"the user's library was loaded only in part: {problem}; what it defines before that is there"
            )
        return names
