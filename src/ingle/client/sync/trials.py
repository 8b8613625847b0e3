# Generated from ../aio/trials.py by tools/unasync.py: edit that file, and run the script.
"""Code of a session that runs in copies of it: trials, variants and probes; and what is taken from a fork."""

from collections.abc import Mapping

from msgspec import Struct, to_builtins

from ingle import errors
from ingle.client.address import POLL_SECONDS, file_path
from ingle.client.decode import read
from ingle.client.results import Result
from ingle.client.sync.attached import Attached
from ingle.requests import CommitPolicy
from ingle.trials import Committed, FailureInfo, Inspected, Merged, TrialInfo, Tried

COPY_SECONDS = 3600.0
"""Maximum time of one request: the code decides how long it takes."""


class TrialList(Struct):
    trials: list[TrialInfo]


class FailureList(Struct):
    failures: list[FailureInfo]


class Trials(Attached):
    """Methods for code that runs in copies of the session."""

    def trial(
        self, code: str, *, network: str = "held", policy: CommitPolicy | None = None, timeout: float | None = None
    ) -> Result:
        """Run a cell in a copy of the session with its own files. `result.trial` has its effect.

        Then `commit()` or `discard()` it; until then the session is busy. `network` is `held`: no connection leaves, or
        `allowed`. With a `policy` it is committed by itself if its rules are met; `result.trial.decision` tells.
        """
        rules = None if policy is None else to_builtins(policy)
        asked = {"code": code, "trial": True, "network": network, "policy": rules, "timeout": timeout}
        body = {**asked, "wait": COPY_SECONDS}
        return read(self._copy_request("/execute", body), Result)

    def trials(self) -> list[TrialInfo]:
        """Return the trials that wait for a commit or a discard."""
        return read(self._get("/trials", turn=POLL_SECONDS), TrialList).trials

    def commit(self, trial: str | None = None) -> Committed:
        """Make a trial the session. Nothing runs again. Default: the open one."""
        name = self._open_trial() if trial is None else trial
        return read(self._copy_request(f"/trials/{file_path(name)}/commit", {}), Committed)

    def discard(self, trial: str | None = None) -> None:
        """Drop a trial. Default: the open one."""
        name = self._open_trial() if trial is None else trial
        self._copy_request(f"/trials/{file_path(name)}/discard", {})

    def _open_trial(self) -> str:
        """Return the name of the open trial."""
        for each in self.trials():
            return each.name
        raise errors.TrialNotFound(self.name, None, [])

    def try_cells(
        self,
        codes: list[str],
        *,
        score: str | None = None,
        keep: str = "best",
        budget: float | None = None,
        network: str = "held",
    ) -> Tried:
        """Run each code in a copy of the session at the same time. The chosen copy becomes the session.

        `score` is an expression; the highest finite number wins. `keep` is `best`, `first_ok` or `none`. Codes that
        have not ended after `budget` seconds are stopped.
        """
        body = {"codes": codes, "score": score, "keep": keep, "budget": budget, "network": network}
        return read(self._copy_request("/try", body), Tried)

    def probe(
        self,
        code: str,
        *,
        clean: bool = False,
        variables: list[str] | None = None,
        timeout: float | None = None,
        network: str = "held",
    ) -> Result:
        """Run code in a copy that ends after it, and return its result. Nothing changes in the session.

        If `clean`, it runs in a new session, which has only the named variables, as data.
        """
        body = {"code": code, "clean": clean, "variables": variables, "timeout": timeout, "network": network}
        return read(self._copy_request("/probe", body), Result)

    def failures(self) -> list[FailureInfo]:
        """Return the failed cells whose moment is kept, the oldest first. See `keep_failures`."""
        return read(self._get("/failures", turn=POLL_SECONDS), FailureList).failures

    def inspect_failure(self, expression: str, *, cell: int | None = None, frame: int = -1) -> Inspected:
        """Evaluate an expression in a frame of a failed cell, by default the last one. The session goes on.

        Frame 0 is the cell's own, -1 the one that raised the exception.
        """
        path = f"/failures/{'last' if cell is None else cell}/inspect"
        return read(self._copy_request(path, {"expression": expression, "frame": frame}), Inspected)

    def merge(self, fork: str, *, variables: list[str] | None = None, files: list[str] | None = None) -> Merged:
        """Take single variables and files from a fork into this session."""
        return read(self._copy_request("/merge", {"fork": fork, "variables": variables, "files": files}), Merged)

    def adopt(self, fork: str) -> Committed:
        """Make a fork this session, from which it was forked: its variables, files and cells. The fork ends."""
        return read(self._copy_request("/adopt", {"fork": fork}), Committed)

    def _copy_request(self, path: str, given: Mapping[str, object]) -> bytes:
        body = {name: value for name, value in given.items() if value is not None}
        # Not repeated: a second commit would find no trial.
        return self._request("POST", path, body=body, wait=COPY_SECONDS)
