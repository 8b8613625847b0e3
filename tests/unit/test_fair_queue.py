"""Fair queue: order within one owner, turns between owners, and bounds that one owner alone cannot fill."""

import asyncio

import pytest

from ingle.support.fair_queue import FairQueue

PATIENCE = 60.0


class Refused(Exception):
    pass


class Requests:
    """Requests for slots of one queue. Each holds its slot until it is let go."""

    def __init__(self, slots: int, share: int, capacity: int) -> None:
        self.queue = FairQueue(slots, share, capacity, lambda seconds: Refused(seconds))
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    async def ask(self, *names: str, seconds: float = PATIENCE) -> None:
        """Begin a request for each name. Its owner is the first letter of the name."""
        for name in names:
            self._gates[name] = asyncio.Event()
            self.tasks[name] = asyncio.get_running_loop().create_task(self._work(name, seconds))
            await settle()

    async def _work(self, name: str, seconds: float) -> None:
        async with self.queue.slot(name[0], seconds):
            self.served.append(name)
            await self._gates[name].wait()

    async def let_go(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()
            await settle()

    async def end(self) -> None:
        for gate in self._gates.values():
            gate.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.queue.length == 0


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_owner_is_served_in_order() -> None:
    requests = Requests(slots=1, share=1, capacity=10)
    await requests.ask("a1", "a2", "a3")
    assert (requests.served, requests.queue.length) == (["a1"], 2)
    await requests.let_go("a1", "a2")
    assert requests.served == ["a1", "a2", "a3"]
    await requests.end()


async def test_owners_take_turns_however_many_requests_one_has() -> None:
    requests = Requests(slots=1, share=1, capacity=100)
    await requests.ask(*(f"a{number}" for number in range(6)), "b0", "b1", "c0")
    for _ in range(8):
        await requests.let_go(requests.served[-1])
    assert requests.served == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4", "a5"]
    await requests.end()


async def test_no_owner_has_all_slots() -> None:
    requests = Requests(slots=4, share=3, capacity=100)
    await requests.ask(*(f"a{number}" for number in range(6)), "b0", "b1")
    assert requests.served == ["a0", "a1", "a2", "b0"]
    await requests.let_go("a0")
    assert requests.served[4:] == ["a3"]
    await requests.let_go("b0")
    assert requests.served[5:] == ["b1"]
    await requests.end()


async def test_a_full_queue_refuses_the_newest_of_the_owner_that_has_most() -> None:
    requests = Requests(slots=1, share=1, capacity=3)
    await requests.ask("a0", "a1", "a2", "a3", "a4")
    with pytest.raises(Refused):
        await requests.tasks["a4"]
    await requests.ask("b0")
    with pytest.raises(Refused):
        await requests.tasks["a3"]
    await requests.ask("c0")
    with pytest.raises(Refused):
        await requests.tasks["a2"]
    await requests.ask("d0")
    with pytest.raises(Refused):
        await requests.tasks["d0"]
    assert requests.queue.length == 3
    await requests.let_go("a0", "a1", "b0", "c0")
    assert requests.served == ["a0", "a1", "b0", "c0"]
    await requests.end()


async def test_a_request_that_left_or_waited_too_long_gives_its_place_up() -> None:
    requests = Requests(slots=1, share=1, capacity=10)
    await requests.ask("a0")
    await requests.ask("a1", seconds=0.01)
    with pytest.raises(Refused):
        await requests.tasks["a1"]
    await requests.ask("a2", "a3")
    requests.tasks["a2"].cancel()
    await settle()
    assert requests.queue.length == 1
    await requests.let_go("a0")
    assert requests.served == ["a0", "a3"]
    await requests.end()


async def test_a_request_cancelled_with_its_slot_on_the_way_hands_it_on() -> None:
    requests = Requests(slots=1, share=1, capacity=10)
    await requests.ask("a0", "a1", "a2")
    requests._gates["a0"].set()
    while len(requests.served) == 1 and requests.queue.length == 2:
        await asyncio.sleep(0)
    requests.tasks["a1"].cancel()
    await settle()
    assert requests.served[-1] == "a2"
    await requests.end()


async def test_a_closed_queue_refuses_all() -> None:
    requests = Requests(slots=1, share=1, capacity=10)
    await requests.ask("a0", "a1")
    requests.queue.close(Refused("closed"))
    await requests.ask("b0")
    for name in ("a1", "b0"):
        with pytest.raises(Refused, match="closed"):
            await requests.tasks[name]
    await requests.end()


async def test_the_time_to_try_again_grows_with_the_queue() -> None:
    requests = Requests(slots=1, share=1, capacity=2)
    await requests.ask("a0")
    await asyncio.sleep(0.02)
    await requests.let_go("a0")
    await requests.ask("a1", "a2", "a3", "a4")
    with pytest.raises(Refused) as refused:
        await requests.tasks["a4"]
    assert refused.value.args[0] > 0
    await requests.end()
