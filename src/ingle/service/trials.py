"""Verbs for code that runs in copies of a session: trials, variants, probes, failures; what is taken from a fork."""

import contextlib

import msgspec

from ingle import errors
from ingle.callers import EXECUTE
from ingle.events import Result
from ingle.requests import CommitPolicy, NewCell, NewSession
from ingle.service.cells import VALUE_SECONDS
from ingle.service.validation import check_cell, check_choice, check_seconds, check_variable
from ingle.service.verbs import Verbs
from ingle.trials import Committed, FailureInfo, Inspected, Merged, TrialInfo, Tried

NETWORKS = ("held", "allowed")
KEEPS = ("best", "first_ok", "none")
MAX_MERGED = 1000
"""Variables or files of one merge."""

MAX_EXPRESSION_CHARS = 10_000


class Trials(Verbs):
    async def trial(
        self,
        session_id: str,
        code: str,
        *,
        network: str = "held",
        policy: CommitPolicy | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        queue: bool = False,
    ) -> Result:
        """Run a cell in a copy of the session. The answer has its effect; commit or discard it then.

        With a `policy`, it is committed by itself if all rules are met. `result.trial.decision` tells.
        """
        check_choice("network", network, NETWORKS)
        new = NewCell(code, timeout, queue=queue, policy=policy)
        return await self.run_trial(session_id, msgspec.structs.replace(new, trial=network), wait)

    async def run_trial(self, session_id: str, new: NewCell, wait: float | None = None) -> Result:
        """Run a trial from a request, as `trial` does."""
        check_cell(new)
        seconds = self._wait(wait)
        session = self.access.session(session_id, EXECUTE)
        await self._check_copies(1)
        return await session.trials.run(msgspec.structs.replace(new, author=self.access.author), seconds)

    async def _check_copies(self, count: int) -> None:
        self.access.check_accepting()
        await self.access.check_sessions(count)

    async def trials(self, session_id: str) -> list[TrialInfo]:
        """List the trials of a session that wait for a commit or a discard."""
        return await self.access.session(session_id).trials.list()

    async def commit(self, session_id: str, trial: str) -> Committed:
        """Make a trial the session. Nothing runs again."""
        return await self.access.session(session_id, EXECUTE).trials.commit(trial)

    async def discard(self, session_id: str, trial: str) -> None:
        """Drop a trial."""
        await self.access.session(session_id, EXECUTE).trials.discard(trial)

    async def try_cells(
        self,
        session_id: str,
        codes: list[str],
        *,
        score: str | None = None,
        keep: str = "best",
        budget: float | None = None,
        network: str = "held",
    ) -> Tried:
        """Run each code in a copy of the session at the same time. The best becomes the session.

        `score` is an expression that is evaluated in each copy; the highest finite number wins.
        """
        check_choice("keep", keep, KEEPS)
        check_choice("network", network, NETWORKS)
        check_seconds("budget", budget)
        most = self.settings.max_forks
        if not 1 <= len(codes) <= most:
            raise errors.InvalidRequest(f"there are {len(codes)} codes; there must be 1 to {most}")
        cells = [NewCell(code, author=self.access.author) for code in codes]
        for cell in cells:
            check_cell(cell)
        session = self.access.session(session_id, EXECUTE)
        await self._check_copies(len(codes))
        seconds = self.settings.wait if budget is None else budget
        return await session.trials.try_codes(cells, score, keep, seconds, network)

    async def probe(
        self,
        session_id: str,
        code: str,
        *,
        clean: bool = False,
        variables: list[str] | None = None,
        timeout: float | None = None,
        network: str = "held",
    ) -> Result:
        """Run code in a copy of the session that ends after it. Nothing changes in the session.

        If `clean`, it runs in a new session instead, which has only the named variables, as data.
        """
        check_choice("network", network, NETWORKS)
        new = NewCell(code, timeout, author=self.access.author)
        check_cell(new)
        names = variables or []
        for name in names:
            check_variable(name)
        if names and not clean:
            raise errors.InvalidRequest("variables are chosen for a clean probe only; a copy has all of them")
        session = self.access.session(session_id, EXECUTE)
        await self._check_copies(1)
        if not clean:
            return await session.trials.probe(new, network)
        return await self._probe_clean(session_id, new, names, "none" if network == "held" else None)

    async def _probe_clean(self, session_id: str, new: NewCell, names: list[str], network: str | None) -> Result:
        caller = self.access.caller
        session = self.access.session(session_id, EXECUTE)
        about = await session.info()
        if network is not None and about.isolation != "sandbox":
            raise errors.TrialRefused(
                f"connections cannot be held at the level {about.isolation!r}; allow them: network=allowed"
            )
        wanted = NewSession(
            tenant=caller.tenant,
            bounds=caller.bounds,
            environment=about.environment,
            isolation=about.isolation,
            network=network,
            own_folder=True,
            include_stdlib=False,
        )
        made = await self._node.create(wanted)
        fresh = self.access.session(made.session_id, EXECUTE)
        try:
            for name in names:
                value = await session.value(name, VALUE_SECONDS)
                with contextlib.closing(value):
                    chunks = value.chunks(0, value.size)
                    await fresh.set_value(name, value.kind, chunks, value.size, VALUE_SECONDS)
            cell = await fresh.execute(new)
            result = await fresh.wait(cell, self.settings.wait if new.timeout is None else new.timeout + 1)
            return msgspec.structs.replace(result, session_id=session_id)
        finally:
            await fresh.end()

    async def failures(self, session_id: str) -> list[FailureInfo]:
        """List the failed cells whose moment is kept, with the frames of their exceptions."""
        return await self.access.session(session_id).trials.failures()

    async def inspect_failure(
        self, session_id: str, expression: str, *, cell: int | None = None, frame: int = -1
    ) -> Inspected:
        """Evaluate an expression in a frame of a failed cell. The session goes on, and nothing changes in it.

        Default: the last cell that is kept, and the frame that raised the exception; frame 0 is the cell's own.
        """
        if not expression.strip() or len(expression) > MAX_EXPRESSION_CHARS:
            raise errors.InvalidRequest(f"the expression must have 1 to {MAX_EXPRESSION_CHARS} characters")
        session = self.access.session(session_id, EXECUTE)
        return await session.trials.inspect(cell, expression, frame, VALUE_SECONDS)

    async def adopt(self, session_id: str, fork: str) -> Committed:
        """Make a fork the session that it was forked from, and end the fork. Nothing runs again."""
        self.access.session(fork, EXECUTE)
        return await self.access.session(session_id, EXECUTE).adopt(fork)

    async def merge(
        self, session_id: str, fork: str, *, variables: list[str] | None = None, files: list[str] | None = None
    ) -> Merged:
        """Take single variables and files from a fork into this session."""
        session, other = self.access.session(session_id, EXECUTE), self.access.session(fork, EXECUTE)
        names, paths = variables or [], files or []
        if (not names and not paths) or max(len(names), len(paths)) > MAX_MERGED:
            raise errors.InvalidRequest(f"name 1 to {MAX_MERGED} variables or files to take from the fork")
        for name in names:
            check_variable(name)
        known = {each.name for each in (await session.variables()).variables}
        for name in names:
            value = await other.value(name, VALUE_SECONDS)
            with contextlib.closing(value):
                await session.set_value(name, value.kind, value.chunks(0, value.size), value.size, VALUE_SECONDS)
        source, target = await other.files(), await session.files()
        for path in paths:
            place = path
            try:
                await source.list(path)
            except errors.FileNotThere:
                # A file, whose archive has its name; that of a folder has only what is inside.
                place = path.rpartition("/")[0]
            archive = await source.pack(path)
            with contextlib.closing(archive):
                await target.unpack(place, archive.chunks(), self.settings.max_archive)
        notices = []
        if len(names) > 1:
            notices.append("the variables are copies: objects that they shared in the fork are separate now")
        return Merged(names, sorted(known.intersection(names)), paths, notices)
