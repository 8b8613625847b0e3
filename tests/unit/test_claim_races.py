"""Claims on one name, taken, released and removed at the same time in random order."""

import asyncio
import random
from typing import Any

import pytest

from ingle.store import claims
from ingle.store.claims import DAY_SECONDS, Claims
from ingle.store.objects import Entry

SEEDS = range(1500)


class World:
    """Objects in memory. Each request takes effect when its turn comes, and days pass."""

    name = "memory"

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 20_000.5 * DAY_SECONDS
        self.dead: set[str] = set()
        self.owner: str | None = None
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._version = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def run(self, *actors: Any) -> None:
        """Give turns in random order until all have ended."""
        tasks = [asyncio.ensure_future(each) for each in actors]
        while not all(each.done() for each in tasks):
            await asyncio.sleep(0)
            if self._waiting:
                self._waiting.pop(self.chance.randrange(len(self._waiting))).set_result(None)
            if self.chance.random() < 0.02:
                self.now += DAY_SECONDS
        for each in tasks:
            each.result()

    async def list(self, prefix: str) -> list[Entry]:
        await self.turn()
        found = sorted(self._objects.items())
        return [Entry(path, len(data), 0.0, str(n)) for path, (data, n) in found if path.startswith(prefix)]

    async def read(self, path: str) -> bytes | None:
        await self.turn()
        return self._objects.get(path, (None, 0))[0]

    def _put(self, path: str, data: bytes) -> None:
        self._version += 1
        self._objects[path] = (data, self._version)

    async def create(self, path: str, data: bytes) -> bool:
        await self.turn()
        if path in self._objects:
            return False
        self._put(path, data)
        return True

    async def write(self, path: str, data: bytes) -> None:
        await self.turn()
        self._put(path, data)

    async def delete(self, path: str) -> None:
        await self.turn()
        self._objects.pop(path, None)


async def create(world: World, name: str) -> None:
    """Make a session with the name again and again, as agents do, and end it."""
    store = Claims(world)  # type: ignore[arg-type]
    for _ in range(4):
        last = await store.newest("main")
        if last is not None and not last.released and last.agent not in world.dead:
            continue
        claim = await store.take("main", 0 if last is None else last.epoch, name, "node")
        if claim is None:
            continue
        assert world.owner is None, (world.owner, name)
        world.owner = name
        for _ in range(world.chance.randrange(6)):
            await world.turn()
        world.owner = None
        await store.release(claim)


async def remove(world: World, name: str) -> None:
    """Remove old claims, as gateways do. They have no lease, so what they have taken counts as lost."""
    world.dead.add(name)
    store = Claims(world)  # type: ignore[arg-type]
    for _ in range(4):
        claim = await store.newest("main")
        if claim is None or world.now - claim.at < DAY_SECONDS:
            continue
        if claim.released:
            await store.forget(claim, name, "node")
        elif claim.agent in world.dead:
            await store.end(claim, name, "node")


@pytest.mark.req("node.once")
async def test_a_name_never_has_two_owners_while_claims_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        world = World(seed)
        monkeypatch.setattr(claims.time, "time", lambda world=world: world.now)
        actors = [create(world, f"agent-{number}") for number in range(3)]
        await world.run(*actors, *(remove(world, f"gateway-{number}") for number in range(2)))
