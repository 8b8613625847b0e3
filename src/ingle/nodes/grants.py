"""Grants of this machine: the owner adds and removes folders and hosts while sessions live."""

import asyncio
import os
from collections.abc import Callable

import msgspec

from ingle.errors import GrantNotFound, InvalidRequest
from ingle.grants import (
    HOST,
    NEVER,
    NEXT,
    NOW,
    OPEN_LEVELS,
    GrantChange,
    GrantEffect,
    GrantInfo,
    NewGrant,
    When,
    grant_id,
)
from ingle.isolation.policy import READ_ONLY, SHARED, TRACKED, Mount
from ingle.sessions.manager import Manager
from ingle.sessions.process.grants import folder_grant
from ingle.sessions.session import Session


class LocalGrants:
    """Folders and hosts that sessions of this machine may use. Added ones last until the server ends."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._changing = asyncio.Lock()

    async def list(self) -> list[GrantInfo]:
        return self._manager.grants.listed

    async def add(self, new: NewGrant) -> GrantChange:
        """Grant a folder or host. What is granted already is never narrowed."""
        wanted = await asyncio.to_thread(_read, new)
        async with self._changing:
            listed = self._manager.grants.listed
            before = next((each for each in listed if each.id == wanted.id), None)
            grant = wanted
            if before is not None:
                read_only = before.read_only and wanted.read_only
                tracked = (before.tracked or wanted.tracked) and not read_only
                grant = msgspec.structs.replace(before, read_only=read_only, tracked=tracked)
            if before is None:
                await self._manager.regrant([*listed, grant])
            elif grant != before:
                await self._manager.regrant([grant if each is before else each for each in listed])
            return self._told(grant, _when_added)

    async def remove(self, grant_id: str) -> GrantChange:
        """Remove a grant until the server ends, or until it is added again."""
        async with self._changing:
            listed = self._manager.grants.listed
            grant = next((each for each in listed if each.id == grant_id), None)
            if grant is None:
                raise GrantNotFound(grant_id)
            await self._manager.regrant([each for each in listed if each is not grant])
            return self._told(grant, _when_removed)

    def _told(self, grant: GrantInfo, when: Callable[[GrantInfo, Session], When]) -> GrantChange:
        """Return a change with what it means for each live session that it concerns."""
        sessions = self._manager.everyone() if grant.tenants == "all" else self._manager.all()
        return GrantChange(grant, [GrantEffect(each.id, each.spec.tenant, when(grant, each)) for each in sessions])


def _read(new: NewGrant) -> GrantInfo:
    """Return the grant that is asked for. Blocks."""
    if (new.folder is None) == (new.host is None):
        raise InvalidRequest("give either a folder or a host")
    if new.host is not None:
        return GrantInfo(grant_id(HOST, new.host), HOST, new.host, source="owner")
    assert new.folder is not None
    if "\0" in new.folder or not os.path.isabs(new.folder):
        raise InvalidRequest(f"{new.folder[:200]!r} is not a folder to grant; give an absolute path")
    if new.read_only and new.tracked:
        raise InvalidRequest("a folder is either read_only or tracked; leave one of them out")
    suffix = READ_ONLY if new.read_only else TRACKED if new.tracked else SHARED
    return folder_grant(new.folder + suffix, new.tenants, "owner")


def _when_added(grant: GrantInfo, session: Session) -> When:
    """Return from when on a live session has a new grant."""
    if grant.kind == HOST:
        return NEVER if session.spec.grant.network == "none" else NOW
    if session.spec.grant.isolation in OPEN_LEVELS:
        return NOW
    return NOW if _has(grant, session) else NEXT


def _when_removed(grant: GrantInfo, session: Session) -> When:
    """Return from when on a live session no longer has a removed grant."""
    if grant.kind == HOST:
        return NEVER if session.spec.grant.network == "full" else NOW
    if session.spec.grant.isolation in OPEN_LEVELS:
        return NEVER
    return NEXT if _has(grant, session) else NOW


def _has(grant: GrantInfo, session: Session) -> bool:
    """Return whether the process that the session has now may use the folder."""
    confinement = session.launcher.confinement
    if session.worker is None or confinement is None:
        return False
    around = [(folder, writable) for folder, writable in confinement.granted if Mount(folder).holds(grant.name)]
    innermost = max(around, key=lambda each: len(each[0]), default=None)
    return innermost is not None and (innermost[1] or grant.read_only)
