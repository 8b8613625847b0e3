"""Saves in the store: each is one object, which names the packs with its chunks. It is whole or not there.

A session's saves are numbered by the epoch of their writer's claim, and within it. So a server that has lost its claim
writes below its old epoch, where its successor no longer looks.
"""

import msgspec
from msgspec import Struct

from ingle import errors
from ingle.store.objects import Entry, quoted, unquoted
from ingle.store.packs import Packs
from ingle.store.store import Store
from ingle.store.timelines import TimelineMark

SESSIONS, NAMED = "saves", "snapshots"

VERSION = 2
"""Saves of version 1 have no pack of their own, and no events."""

KEPT_SAVES = 2
"""The last one, and the one before it, in case the last is damaged."""


class StoredSave(Struct, frozen=True):
    version: int = VERSION
    row: bytes = b""
    """The session as the registry describes it, in JSON; empty for a named snapshot."""
    manifest: bytes = b""
    """Signature and manifest, as on the disk; empty if nothing was saved yet."""
    packs: Packs = {}
    inline: bytes = b""
    """A pack with the chunks that are in none of these, if they are few."""
    timeline: TimelineMark = TimelineMark()
    forgotten: int = 0
    """The code of cells up to this one is not shown any more."""


class FoundSave(Struct, frozen=True):
    """A save that was read from the store."""

    path: str
    version: str
    """The version of its object. Another object at this path has another one."""
    size: int
    """Bytes of its object."""
    save: StoredSave


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(StoredSave)


def _decode(data: bytes, path: str) -> StoredSave:
    """Decode a save, or raise SnapshotDamaged."""
    try:
        save = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.SnapshotDamaged(path, f"it cannot be read ({error})") from None
    if save.version > VERSION:
        raise errors.SnapshotDamaged(path, f"a later version of ingle has written it ({save.version})")
    return save


class SessionSaves:
    """Saves of one session."""

    def __init__(self, store: Store, key: str) -> None:
        tenant, _, name = key.rpartition("/")
        self._store = store
        self._folder = f"{SESSIONS}/{quoted(tenant)}/{quoted(name)}/"

    async def put(self, epoch: int, number: int, save: StoredSave) -> None:
        await self._store.write(f"{self._folder}{epoch:010d}.{number:010d}", _encode(save))

    async def newest(self, before: int, known: FoundSave | None = None) -> FoundSave | None:
        """Return the last save of earlier epochs that can be read; None if the session has none.

        `known` was read before. It is not read again if it is still the last one.
        """
        while entries := [each for each in await self._store.list(self._folder) if _epoch(each) < before]:
            first: errors.SnapshotDamaged | None = None
            for entry in reversed(entries):
                if known is not None and (known.path, known.version) == (entry.path, entry.version):
                    return known
                data = await self._store.read(entry.path)
                if data is None:
                    break  # it was removed since it was listed, so there are newer ones, or none
                try:
                    return FoundSave(entry.path, entry.version, entry.size, _decode(data, entry.path))
                except errors.SnapshotDamaged as error:
                    first = first or error
            else:
                assert first is not None
                raise first
        return None

    async def exist(self) -> bool:
        return bool(await self._store.list(self._folder))

    async def tidy(self) -> None:
        """Remove all but the last saves."""
        for entry in (await self._store.list(self._folder))[:-KEPT_SAVES]:
            await self._store.delete(entry.path)

    async def remove(self, last: int) -> None:
        """Remove the saves of epochs up to the last."""
        for entry in await self._store.list(self._folder):
            if _epoch(entry) <= last:
                await self._store.delete(entry.path)


class NamedSaves:
    """Snapshots of one tenant, by name."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._folder = f"{NAMED}/{quoted(tenant)}/"

    async def put(self, name: str, save: StoredSave) -> None:
        await self._store.write(self._folder + quoted(name), _encode(save))

    async def read(self, name: str) -> StoredSave | None:
        data = await self._store.read(self._folder + quoted(name))
        return None if data is None else _decode(data, name)

    async def names(self) -> list[str]:
        return sorted(unquoted(each.path.removeprefix(self._folder)) for each in await self._store.list(self._folder))

    async def remove(self, name: str) -> None:
        await self._store.delete(self._folder + quoted(name))


class UsedPacks:
    """Packs that the saves of one tenant use."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._folders = [f"{kind}/{quoted(tenant)}/" for kind in (SESSIONS, NAMED)]
        self._known: dict[str, tuple[str, set[str]]] = {}
        """Version and packs of each save, by path."""

    async def read(self) -> set[str]:
        """Return the names of all packs that are used now. Each save is read once."""
        entries = [each for folder in self._folders for each in await self._store.list(folder)]
        known = {}
        for entry in entries:
            version, packs = self._known.get(entry.path, ("", set()))
            if version != entry.version:
                data = await self._store.read(entry.path)
                # A save that was removed meanwhile had a successor, which may be missing in this listing.
                if data is None:
                    return await self.read()
                packs = set(_decode(data, entry.path).packs)
            known[entry.path] = (entry.version, packs)
        self._known = known
        return set[str]().union(*(packs for _, packs in known.values()))


def _epoch(entry: Entry) -> int:
    return int(entry.path.rpartition("/")[2].partition(".")[0])
