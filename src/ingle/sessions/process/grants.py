"""Grants of this node: the level of isolation in force, found out once, and what the policy grants to each session.

The owner may add and remove folders and hosts later. Each change makes a new policy, which passes the same checks.
"""

import asyncio
import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ingle import errors
from ingle.environments.store import BuildsInUse, Store
from ingle.grants import FOLDER, HOST, GrantInfo, Source, Tenants, grant_id
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import INDEX, NO_HOSTS, READ_ONLY, TRACKED, Grant, Policy, read_mount
from ingle.isolation.self_test import STRONGEST_FIRST, Verdict, candidates
from ingle.requests import NewSession
from ingle.sessions.metrics import Telemetry
from ingle.sessions.process.launchers import Launchers
from ingle.settings import Settings
from ingle.workers.launch.launcher import Launcher

logger = logging.getLogger(__name__)

ANY_TENANT = "any"
"""Stands for all tenants but the owner: the same folders are granted to each."""


class Grants:
    def __init__(self, settings: Settings, home: Path, launchers: Launchers, telemetry: Telemetry) -> None:
        self._settings = settings
        self._home = home
        self._launchers = launchers
        self._telemetry = telemetry
        self.builds = BuildsInUse(Store(Path(os.path.realpath(home))))
        self._loop = asyncio.get_running_loop()
        # With the level that every machine has, until the level in force is known.
        self.policy = Policy(settings, home)
        self.listed = _of_settings(settings)
        """Folders and hosts that are granted now."""
        self.changed = False
        """Whether the owner has changed them since the start."""
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
        policy = self._policy(level, self.listed)
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

    # --- changes by the owner ---

    def _policy(self, level: str, listed: Sequence[GrantInfo]) -> Policy:
        """Return the policy with these grants. Blocks. Raise InvalidRequest for a grant that would not be safe."""
        folders = [each for each in listed if each.kind == FOLDER]
        own = [each for each in folders if each.tenants == "owner"]
        hosts = [each.name for each in listed if each.kind == HOST]
        settings = replace(
            self._settings,
            folder=[_text(each) for each in own if each.source == "settings"],
            mount=[_text(each) for each in folders if each.tenants == "all"],
            allow_host=hosts if INDEX in hosts else [NO_HOSTS, *hosts],
        )
        policy = Policy(settings, self._home, level, [_text(each) for each in own if each.source == "owner"])
        for replaced in {each.name for each in folders} - policy.granted_folders:
            # Its links were resolved when it was granted, so a session has put a link on the way.
            raise errors.InvalidRequest(
                f"{replaced} was granted, and leads elsewhere now; remove that grant first, or put the folder back"
            )
        policy.hosts()  # raises an error for a host that cannot be read
        return policy

    async def change(self, listed: list[GrantInfo]) -> None:
        """Put these grants in force for every session that is made from now on."""
        await self.settled()
        policy = await asyncio.to_thread(self._policy, self.policy.level, listed)
        grant = policy.settle(NewSession())
        if policy.all_mounts(None, "") != self.policy.all_mounts(None, ""):
            launcher = self.launcher(grant)
            try:
                # Proves that workers can be confined with these folders.
                await launcher.hold()
            except BaseException:
                await self._launchers.drop(launcher)
                raise
        self.policy, self.listed, self.changed = policy, listed, True
        self._launchers.retire(policy.all_mounts(None, tenant) for tenant in ("", ANY_TENANT))

    def renewed(self, grant: Grant, tenant: str) -> Launcher:
        """Return the launcher for the next worker of a session that had this grant. Blocks for a moment."""
        return self.launcher(replace(grant, mounts=self.policy.all_mounts(grant.cwd, tenant)))

    async def grant(self, wanted: NewSession, key: str) -> Grant:
        """Return what the operator's policy grants, if this machine can hold it."""
        if self._verdict is None:
            await self.settled()
        build = "" if wanted.environment is None else str(await asyncio.to_thread(self.builds.take, wanted.environment))
        try:
            grant = self.policy.cached(wanted)
            if grant is None:
                grant = await asyncio.to_thread(self.policy.settle, wanted, build)
        except errors.NotGranted as error:
            self._telemetry.note("refused", key, reason=error.message)
            raise
        if grant.isolation != self.policy.level:
            await self.launcher(grant).hold()
        return grant

    async def grant_again(self, made: NewSession, key: str) -> tuple[Grant, list[str]]:
        """Return the grant for a session of an earlier server, and notices of what it had and has not any more."""
        try:
            return await self.grant(made, key), []
        except errors.NotGranted:
            if made.cwd is None:
                raise
            # Without its folder it still has its variables.
            grant = await self.grant(msgspec.structs.replace(made, cwd=None), key)
            return grant, [
                f"this server does not grant {made.cwd}, where this session was: it is in its own folder now; "
                f"`ingle grant {shlex.quote(made.cwd)}` grants it"
            ]

    def launcher(self, grant: Grant) -> Launcher:
        return self._launchers.get(grant, self.bounding)

    async def drop_stale(self, builds: list[Path]) -> None:
        """Stop the launchers of builds that are neither current nor in use, and remove the builds."""
        for build in builds:
            current = await asyncio.to_thread(self.builds.store.is_current, build)
            if not current and build not in self.builds.held:
                for launcher in self._launchers.all:
                    if launcher.python.startswith(f"{build}/"):
                        await self._launchers.drop(launcher)
                await asyncio.to_thread(self.builds.store.sweep, build.parent.name)

    async def cancel(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})

    async def close(self) -> None:
        await asyncio.to_thread(self.bounding.close)


def _of_settings(settings: Settings) -> list[GrantInfo]:
    """Return the grants with which a server starts."""
    found = [folder_grant(text, "owner") for text in settings.folder]
    found[:1] = [msgspec.structs.replace(each, start=True) for each in found[:1]]
    found += [folder_grant(text, "all") for text in settings.mount]
    given = settings.allow_host
    hosts = [] if not given or NO_HOSTS in given else [INDEX]
    hosts += [text for text in given if text not in (INDEX, NO_HOSTS)]
    found += [GrantInfo(grant_id(HOST, text), HOST, text) for text in hosts]
    return [*{each.id: each for each in reversed(found)}.values()][::-1]


def folder_grant(text: str, tenants: Tenants, source: Source = "settings") -> GrantInfo:
    """Return the grant of a folder as `read_mount` reads it. Blocks."""
    mount = read_mount(text)
    granted = grant_id(FOLDER, mount.folder, tenants)
    return GrantInfo(granted, FOLDER, mount.folder, mount.read_only, tenants, source, tracked=mount.tracked)


def _text(grant: GrantInfo) -> str:
    return grant.name + (READ_ONLY if grant.read_only else TRACKED if grant.tracked else "")
