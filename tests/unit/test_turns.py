"""Turns: the one lock of a session."""

import asyncio

import pytest

from ingle.errors import Busy, SessionNotFound
from ingle.sessions.cells.turns import CELL, Turns

NEXT = 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_turn_is_taken_at_once() -> None:
    turns = Turns()
    assert turns.free
    turn = await turns.take(CELL, NEXT)
    assert (turns.holder, turns.free, turns.has_cell) == (turn, False, True)
    turns.release(turn)
    assert turns.free


async def test_while_a_cell_runs_a_request_is_busy_or_waits_in_order() -> None:
    turns = Turns()
    first = await turns.take(CELL, NEXT)
    first.begin_cell(7)
    for label in (CELL, "fork"):
        with pytest.raises(Busy, match="cell 7 has run for"):
            await turns.take(label, 8)
    order: list[int] = []

    async def queued(number: int) -> None:
        turn = await turns.take(CELL, 8, queue=True)
        order.append(number)
        turns.release(turn)

    tasks = [asyncio.create_task(queued(number)) for number in range(3)]
    await settle()
    assert (len(turns.queue), order) == (3, [])
    turns.release(first)
    await asyncio.gather(*tasks)
    assert (order, turns.free) == ([0, 1, 2], True)


async def test_a_cell_that_has_not_begun_is_named_by_the_number_it_will_have() -> None:
    turns = Turns()
    await turns.take(CELL, 4)
    with pytest.raises(Busy, match=r"cell 4 has run for 0\.0 s"):
        await turns.take("fork", 4)


async def test_a_short_use_of_the_worker_is_waited_for_and_the_next_cell_refuses_the_others() -> None:
    turns = Turns()
    fork = await turns.take("fork", NEXT)
    cell, other, queued = (
        asyncio.create_task(turns.take(label, NEXT, queue=queue))
        for label, queue in ((CELL, False), ("variable", False), (CELL, True))
    )
    await settle()
    turns.release(fork)
    turn = await cell
    with pytest.raises(Busy):
        await other
    assert not queued.done()
    turns.release(turn)
    assert turns.holder is await queued


async def test_the_first_of_the_queue_goes_before_those_who_came_earlier() -> None:
    turns = Turns()
    fork = await turns.take("fork", NEXT)
    cell = asyncio.create_task(turns.take(CELL, NEXT, queue=True))
    await settle()
    save = asyncio.create_task(turns.take("save", NEXT, first=True))
    await settle()
    turns.release(fork)
    turns.release(await save)
    assert turns.holder is await cell


async def test_a_waiter_who_leaves_gives_the_turn_to_the_next_even_in_the_moment_it_came() -> None:
    turns = Turns()
    first = await turns.take(CELL, NEXT)
    waiting = [asyncio.create_task(turns.take(CELL, NEXT, queue=True)) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    assert len(turns.queue) == 2
    turns.release(first)
    waiting[1].cancel()
    await settle()
    assert waiting[1].cancelled()
    assert turns.holder is await waiting[2]


async def test_a_turn_is_released_once() -> None:
    turns = Turns()
    first = await turns.take(CELL, NEXT)
    turns.release(first)
    second = await turns.take(CELL, NEXT)
    turns.release(first)
    assert turns.holder is second


async def test_after_the_end_there_are_no_turns() -> None:
    turns = Turns()
    await turns.take(CELL, NEXT)
    waiting = asyncio.create_task(turns.take(CELL, NEXT, queue=True))
    await settle()
    turns.close(SessionNotFound("s"))
    for late in (waiting, turns.take(CELL, NEXT, queue=True)):
        with pytest.raises(SessionNotFound):
            await late
    assert turns.try_take("save") is None
