"""Servers in this process with one object store, and races between them for one session."""

import asyncio
import contextlib

from ingle import errors
from ingle.service import Service
from support.internals import manager_of


async def printed(service: Service, code: str, name: str = "s") -> str:
    result = await service.execute(name, code)
    assert result.error is None, result.error.traceback
    return result.stdout


async def saved(service: Service, cell: int, name: str = "s") -> None:
    """Wait until the session is saved as it was after that cell."""
    while ((await service.get_session(name)).saved_cell or 0) < cell:
        await asyncio.sleep(0.01)


async def race(rounds: int, one: Service, two: Service, three: Service) -> None:
    """Have two servers take over a session of the first one at the same moment, again and again."""
    for number in range(rounds):
        name = f"s{number}"
        await one.create_session(name, durable=True)
        await printed(one, f"x = {number}", name)
        await saved(one, 1, name)
        claim = await manager_of(one).takeover.shared.claims.newest(name)
        assert claim is not None
        results = await asyncio.gather(*(manager_of(each).takeover.adopt(claim) for each in (two, three)))
        assert sorted(results) == [False, True]
        winner = (two, three)[results.index(True)]
        assert await printed(winner, "print(x)", name) == f"{number}\n"
        await winner.end_session(name)
        with contextlib.suppress(errors.SessionNotFound):  # it may have seen that it lost the session
            await one.end_session(name)
