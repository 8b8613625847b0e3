"""Grants of this node: the level of isolation in force, found out once, and what the policy grants to each session."""

import asyncio
import logging
from pathlib import Path

from ingle import errors
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import Grant, Policy
from ingle.isolation.self_test import STRONGEST_FIRST, Verdict, candidates
from ingle.requests import NewSession
from ingle.sessions.metrics import Telemetry
from ingle.sessions.process.launchers import Launchers
from ingle.settings import Settings
from ingle.workers.launch.launcher import Launcher

logger = logging.getLogger(__name__)


class Grants:
    def __init__(self, settings: Settings, home: Path, launchers: Launchers, telemetry: Telemetry) -> None:
        self._settings = settings
        self._home = home
        self._launchers = launchers
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        # With the level that every machine has, until the level in force is known.
        self.policy = Policy(settings, home)
        self.bounding = LimitApplier(self.policy.limits, settings.nice)
        self._settling: asyncio.Task[Verdict] | None = None
        self._verdict: Verdict | None = None

    async def start(self) -> None:
        """Find out which level is in force. A level that was named must be available, or this raises an error."""
        self._settling = self._loop.create_task(self._settle())
        if self._settings.isolation not in ("auto", "none"):
            await self._settling

    async def settled(self) -> Verdict:
        """Return the level in force, once it is known."""
        if self._verdict is not None:
            return self._verdict
        assert self._settling is not None
        if self._settling.done():
            # The interpreter could not be started. That may have been repaired.
            self._settling = self._loop.create_task(self._settle())
        return await asyncio.shield(self._settling)

    async def _settle(self) -> Verdict:
        """Find the first level that this machine can hold, and put it in force."""
        asked = self._settings.isolation
        missing: dict[str, str] = {}
        for level in candidates(asked):
            try:
                self.policy, self.bounding = await self._try(level)
            except errors.IsolationUnavailable as error:
                if asked != "auto":
                    raise
                missing[level] = error.why
            except (errors.StartFailed, errors.InterpreterRefused) as error:
                # Every Linux can hold the weakest level, so there the interpreter is at fault.
                if asked != "auto" or level == STRONGEST_FIRST[-1]:
                    raise
                missing[level] = error.message
            else:
                break
        for wanted, why in missing.items():
            logger.warning("sessions are held at %s, and not at %s: %s", level, wanted, why)
        logger.info("isolation %s, network %s", level, self.policy.network)
        self._verdict = Verdict(level, asked, missing)
        return self._verdict

    async def _try(self, level: str) -> tuple[Policy, LimitApplier]:
        """Return the policy and the limits of this level. Its zygote is being started."""
        policy = Policy(self._settings, self._home, level)
        bounding = LimitApplier(policy.limits, self._settings.nice)
        await asyncio.to_thread(bounding.find)
        launcher = self._launchers.get(policy.settle(NewSession()), bounding)
        try:
            await launcher.hold()
        except BaseException:
            await self._launchers.drop(launcher)
            await asyncio.to_thread(bounding.close)
            raise
        return policy, bounding

    async def grant(self, wanted: NewSession, key: str) -> Grant:
        """Return what the operator's policy grants, if this machine can hold it."""
        if self._verdict is None:
            await self.settled()
        try:
            if wanted.cwd is None and wanted.python is None:
                grant = self.policy.settle(wanted)
            else:
                grant = await asyncio.to_thread(self.policy.settle, wanted)
        except errors.NotGranted as error:
            self._telemetry.note("refused", key, reason=error.message)
            raise
        if grant.isolation != self.policy.level:
            await self.launcher(grant).hold()
        return grant

    def launcher(self, grant: Grant) -> Launcher:
        return self._launchers.get(grant, self.bounding)

    async def cancel(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})

    async def close(self) -> None:
        await asyncio.to_thread(self.bounding.close)
