"""Chunks of one tenant's saves in the store, in packs that never change. Each chunk is uploaded once.

Several servers add packs and remove unused ones without a lock. A collector marks an unused pack first, then reads all
saves once more, and removes the pack if still none uses it. A server writes its save first, then looks for marks and
for missing packs, and only then reports the save. One of the two sees the other. A marked pack is never used again.

A save with few bytes of new chunks has them in itself. It needs no pack then, and no look for one.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from ingle import errors
from ingle.snapshots.manifest import Chunk
from ingle.store.objects import Entry, quoted, unquoted
from ingle.store.store import Store
from ingle.support.threads import in_thread

FOLDER = "chunks/"
PACK, MARK = ".pack", ".unused"

SMALL_PACK_BYTES = 4 * 1024 * 1024
MAX_SMALL_PACKS = 24
"""A save that would use more small packs uploads their chunks again, in one pack."""

MIN_USED_SHARE = 0.5
"""A save that uses a smaller share of a pack uploads these chunks again. So loading it reads little in vain."""

MAX_SINGLE_LOOKS = 4
"""Packs of a save that are looked at one by one. For more, all packs of the tenant are listed, a thousand at once."""

UNUSED_SECONDS = 3600.0
"""Age of a pack from which on it may be marked. Younger ones may be part of a save that is being written."""

MAX_INLINE_BYTES = 64 * 1024
"""Chunks that no pack has are part of the save itself up to this size. Each save of them sends them again."""

Packs = dict[str, list[bytes]]
"""Names of packs, each with the hashes of chunks that are in it."""


class LocalChunks(Protocol):
    """Chunks on the disk of this server. Every method blocks."""

    def scratch(self) -> int:
        """Return a descriptor of an unnamed file."""
        ...

    def write_pack(self, chunks: list[Chunk], fd: int) -> None: ...

    def read_pack(self, fd: int, name: str, digests: list[bytes]) -> None: ...


class Placed(NamedTuple):
    """Where the chunks of a save are."""

    packs: Packs
    inline: bytes = b""
    """A pack with those that no other one has, if they are few."""


async def tenants_with_packs(store: Store) -> set[str]:
    return {unquoted(each.path.removeprefix(FOLDER).partition("/")[0]) for each in await store.list(FOLDER)}


class StoredPacks:
    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._folder = f"{FOLDER}{quoted(tenant)}/"
        self._packs: dict[str, set[bytes]] = {}
        """Packs with the chunks that this server knows to be in them."""
        self._where: dict[bytes, str] = {}
        self._sizes: dict[str, int] = {}

    def learn(self, packs: Packs) -> None:
        """Note which chunks another server has put into packs."""
        for name, digests in packs.items():
            self._packs.setdefault(name, set()).update(digests)
            self._where.update(dict.fromkeys(digests, name))

    def _forget(self, name: str) -> None:
        self._sizes.pop(name, None)
        for digest in self._packs.pop(name, set()):
            if self._where.get(digest) == name:
                del self._where[digest]

    async def place(self, chunks: Iterable[Chunk], local: LocalChunks) -> Placed:
        """Return packs that hold all of these chunks, after uploading those that no pack has.

        Chunks of packs that are used little are packed again. All chunks are on the disk.
        """
        sizes = dict(chunks)
        placed: Packs = {}
        new: list[Chunk] = []
        for digest, size in sizes.items():
            key = bytes.fromhex(digest)
            name = self._where.get(key)
            if name is None:
                new.append((digest, size))
            else:
                placed.setdefault(name, []).append(key)
        for name in self._wasteful(placed, sizes):
            new += [(digest.hex(), sizes[digest.hex()]) for digest in placed.pop(name)]
        if not new:
            return Placed(placed)
        fd = await in_thread(local.scratch)
        try:
            await in_thread(lambda: local.write_pack(new, fd))
            if sum(size for _, size in new) <= MAX_INLINE_BYTES:
                return Placed(placed, await in_thread(lambda: os.pread(fd, os.fstat(fd).st_size, 0)))
            name = os.urandom(16).hex()
            await self._store.upload(f"{self._folder}{name}{PACK}", fd)
        finally:
            os.close(fd)
        placed[name] = [bytes.fromhex(digest) for digest, _ in new]
        self.learn({name: placed[name]})
        return Placed(placed)

    def _wasteful(self, placed: Packs, sizes: dict[str, int]) -> list[str]:
        used = {name: sum(sizes[each.hex()] for each in digests) for name, digests in placed.items()}
        whole = {name: self._sizes.get(name, used[name]) for name in placed}
        found = [name for name in placed if used[name] < whole[name] * MIN_USED_SHARE]
        small = [name for name in placed if whole[name] < SMALL_PACK_BYTES and name not in found]
        return found + (small if len(small) > MAX_SMALL_PACKS else [])

    async def any_lost(self, packs: Packs) -> bool:
        """Return whether packs are gone or marked. This server does not use those any more."""
        if len(packs) <= MAX_SINGLE_LOOKS:
            looks = await asyncio.gather(*(self._list(name) for name in packs))
        else:
            looks = [await self._list()]
        whole = {name: entry for found, _ in looks for name, entry in found.items()}
        marked = {name for _, found in looks for name in found}
        self._sizes |= {name: entry.size for name, entry in whole.items()}
        lost = [name for name in packs if name not in whole or name in marked]
        for name in lost:
            self._forget(name)
        return bool(lost)

    async def _list(self, name: str = "") -> tuple[dict[str, Entry], set[str]]:
        """Return all packs, or the one of a name, and the names of those that are marked."""
        found = await self._store.list(self._folder + name)
        entries = {each.path.removeprefix(self._folder): each for each in found}
        whole = {path.removesuffix(PACK): each for path, each in entries.items() if path.endswith(PACK)}
        return whole, {path.removesuffix(MARK) for path in entries if path.endswith(MARK)}

    async def fetch(self, packs: Packs, local: LocalChunks) -> None:
        """Download packs, and keep these chunks of theirs on the disk."""
        for name, digests in packs.items():
            fd = await in_thread(local.scratch)
            try:
                if not await self._store.download(f"{self._folder}{name}{PACK}", fd):
                    raise errors.SnapshotDamaged(name, f"it is missing in the store {self._store.name}")
                await in_thread(partial(local.read_pack, fd, name, digests))
            finally:
                os.close(fd)

    async def collect(self, used: Callable[[], Awaitable[set[str]]], before: float) -> None:
        """Remove packs that were written before this time of the store, and that no save uses.

        `used` reads the names of packs in all saves, each time it is called.
        """
        whole, marked = await self._list()
        in_use = await used()
        for name, entry in whole.items():
            if name not in in_use and name not in marked and entry.modified <= before:
                await self._store.write(f"{self._folder}{name}{MARK}", b"")
                marked.add(name)
        if not marked:
            return
        # Each save that uses a pack of these was written before this point, or sees the mark.
        in_use = await used()
        for name in marked - in_use:
            await self._store.delete(f"{self._folder}{name}{PACK}")
            await self._store.delete(f"{self._folder}{name}{MARK}")
