"""The store of one server, as the parts of a node use it: claims, the own lease, and saves with their chunks."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from ingle import errors
from ingle.snapshots.store import NAMED
from ingle.store.claims import Claim, Claims
from ingle.store.leases import Leases
from ingle.store.packs import UNUSED_SECONDS, LocalChunks, Placed, StoredPacks, tenants_with_packs
from ingle.store.saves import NamedSaves, StoredSave, UsedPacks
from ingle.store.store import Store
from ingle.support.threads import in_thread

KEY = "signing.key"
KEY_BYTES = 32

ROUNDS = 4
"""Times that a save is written because packs it uses are being removed. Each removal takes a moment."""

COLLECT_SECONDS = 600.0
"""Pause between two removals of unused packs, for each tenant."""

logger = logging.getLogger(__name__)


class LocalSaves(LocalChunks, Protocol):
    """Saves of one tenant on the disk. Every method blocks."""

    def raw(self, name: str, folder_name: str) -> tuple[bytes, dict[str, int]]: ...

    def put_raw(self, name: str, folder_name: str, data: bytes) -> None: ...

    def missing(self, data: bytes, name: str) -> list[bytes]: ...

    def note_shared(self, name: str, data: bytes) -> None: ...

    def forget_shared(self, name: str) -> None: ...


class SharedStore:
    def __init__(self, store: Store, agent: str, node: str) -> None:
        self.store = store
        self.claims = Claims(store)
        self.leases = Leases(store)
        self.agent = agent
        self.node = node
        self._packs: dict[str, StoredPacks] = {}
        self._used: dict[str, UsedPacks] = {}
        self._collected: dict[str, float] = {}
        self._collecting: set[asyncio.Task[None]] = set()

    async def take(self, key: str, after: int) -> Claim | None:
        """Take the epoch after the last one for this server; 0: the name has no claim.

        Return None if another server has it.
        """
        return await self.claims.take(key, after, self.agent, self.node)

    async def signing_key(self) -> bytes:
        """Return the key that signs snapshots, which all servers of a store share. The first server makes it."""
        await self.store.create(KEY, secrets.token_bytes(KEY_BYTES))
        key = await self.store.read(KEY)
        if key is None or len(key) != KEY_BYTES:
            raise errors.StoreFailed(
                f"{KEY} in the store {self.store.name} is damaged; restore it, or remove it. Without it, existing "
                "snapshots load only with trust"
            )
        return key

    def packs(self, tenant: str) -> StoredPacks:
        if tenant not in self._packs:
            self._packs[tenant] = StoredPacks(self.store, tenant)
        return self._packs[tenant]

    def named(self, tenant: str) -> NamedSaves:
        return NamedSaves(self.store, tenant)

    async def push(
        self,
        tenant: str,
        local: LocalSaves,
        manifest: bytes,
        chunks: dict[str, int],
        put: Callable[[Placed], Awaitable[None]],
    ) -> None:
        """Have a save in the store, with all its chunks. `put` writes it, and is repeated if it has to be.

        When this returns, no server removes what the save needs as long as the save is there.
        """
        packs = self.packs(tenant)
        for _ in range(ROUNDS):
            placed = await packs.place(chunks.items(), local)
            await put(placed)
            if not await packs.any_lost(placed.packs):
                self._collect_soon(tenant)
                return
            # What was taken over from another server may be nowhere but in a pack that is marked.
            await self._fetch(tenant, local, manifest, placed)
        raise errors.StoreFailed(
            f"the packs of a save in the store {self.store.name} were removed again and again; retry"
        )

    async def pull(self, tenant: str, local: LocalSaves, save: StoredSave) -> None:
        """Have all chunks of a save on the disk."""
        self.packs(tenant).learn(save.packs)
        await self._fetch(tenant, local, save.manifest, Placed(save.packs, save.inline))

    async def _fetch(self, tenant: str, local: LocalSaves, manifest: bytes, placed: Placed) -> None:
        missing = set(await in_thread(lambda: local.missing(manifest, "the save")))
        wanted = {name: found for name, digests in placed.packs.items() if (found := [*missing.intersection(digests)])}
        await self.packs(tenant).fetch(wanted, local)
        rest = missing.difference(*wanted.values())
        if rest and placed.inline:
            await in_thread(lambda: _keep(local, placed.inline, [*rest]))

    # --- named snapshots ---

    async def push_named(self, tenant: str, local: LocalSaves, name: str) -> None:
        """Have a snapshot of the disk in the store, under its name."""
        manifest, chunks = await in_thread(lambda: local.raw(name, NAMED))

        async def put(placed: Placed) -> None:
            save = StoredSave(manifest=manifest, packs=placed.packs, inline=placed.inline)
            await self.named(tenant).put(name, save)

        await self.push(tenant, local, manifest, chunks, put)
        await in_thread(lambda: local.note_shared(name, manifest))

    async def pull_named(self, tenant: str, local: LocalSaves, name: str, *, whole: bool = True) -> None:
        """Have the snapshot of this name on the disk as it is in the store; `whole`: with chunks.

        One that another server has deleted is removed here too.
        """
        save = await self.named(tenant).read(name)
        if save is None:
            await in_thread(lambda: local.forget_shared(name))
            return

        def is_known() -> bool:
            try:
                return local.raw(name, NAMED)[0] == save.manifest
            except errors.IngleError:
                return False

        if not await in_thread(is_known):
            await in_thread(lambda: local.put_raw(name, NAMED, save.manifest))
        await in_thread(lambda: local.note_shared(name, save.manifest))
        if whole:
            await self.pull(tenant, local, save)

    # --- removing ---

    def _collect_soon(self, tenant: str) -> None:
        """Remove unused packs in the background, if that was not done for a while."""
        now = time.monotonic()
        if now - self._collected.setdefault(tenant, now) > COLLECT_SECONDS:
            self._collected[tenant] = now
            task = asyncio.get_running_loop().create_task(self._collect(tenant))
            self._collecting.add(task)
            task.add_done_callback(self._collecting.discard)

    async def _collect(self, tenant: str) -> None:
        try:
            await self.collect(tenant)
        except errors.IngleError as error:
            logger.warning("unused packs in the store were not removed: %s", error.message)

    async def collect(self, tenant: str, older_than: float = UNUSED_SECONDS) -> None:
        """Remove packs of a tenant that no save uses."""
        used = self._used.setdefault(tenant, UsedPacks(self.store, tenant))
        await self.packs(tenant).collect(used.read, await self.leases.time() - older_than)

    async def collect_of_all(self) -> None:
        """Remove packs of all tenants that no save uses: some tenants save nothing any more."""
        before = await self.leases.time() - UNUSED_SECONDS
        for tenant in await tenants_with_packs(self.store):
            try:
                await StoredPacks(self.store, tenant).collect(UsedPacks(self.store, tenant).read, before)
            except errors.SnapshotDamaged as error:
                # What a save that cannot be read uses is not known.
                logger.warning("unused packs of tenant %r in the store were not removed: %s", tenant, error.message)

    async def close(self, *, release: bool) -> None:
        """End what is under way; `release`: and the lease of this server."""
        for task in list(self._collecting):
            task.cancel()
        if self._collecting:
            await asyncio.wait(self._collecting)
        await self.leases.close(self.agent if release else None)
        self.store.close()


def _keep(local: LocalSaves, pack: bytes, digests: list[bytes]) -> None:
    """Keep chunks of a pack that is in memory. Blocks."""
    fd = local.scratch()
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(pack)
        local.read_pack(fd, "the save", digests)
    finally:
        os.close(fd)


SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_SAS_TOKEN",
)


def hide_credentials() -> None:
    """Remove the store's credentials from the environment that processes of sessions inherit."""
    for name in SECRETS:
        os.environ.pop(name, None)
