"""Calls of a client's functions: their order on the connection, their answers, and calls that are late."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ingle.tools.functions import Outgoing, Provider
from ingle.tools.shapes import FunctionCall, FunctionCancelled, ToolFailed, ToolSpec

pytestmark = [pytest.mark.req("tools.client", "tools.cancel")]

TOOL = ToolSpec("add", "", {"type": "object"})


class Client:
    """Other end of a connection, which takes messages at once or not at all."""

    def __init__(self) -> None:
        self.reads = True
        self.got: list[tuple[str, int]] = []

    def take(self, message: Outgoing) -> bool:
        if self.reads:
            self.got.append(named(message))
        return self.reads


def named(message: Outgoing) -> tuple[str, int]:
    return ("call" if isinstance(message, FunctionCall) else "cancel"), message.id


def begin(provider: Provider, answers: list[object]) -> int:
    return provider.call("add", b"{}", answers.append)


async def test_an_answer_is_handed_on_in_the_turn_that_brings_it_and_once() -> None:
    provider, client, answers = Provider([TOOL]), Client(), list[object]()
    provider.send_by(client.take)
    one, other = begin(provider, answers), begin(provider, answers)
    assert client.got == [("call", one), ("call", other)]
    provider.answer(other, b"2")
    provider.answer(other, b"3")
    provider.fail(one, "no luck")
    second, first = answers[0], answers[1]
    assert (second, isinstance(first, ToolFailed), str(first), len(answers)) == (b"2", True, "no luck", 2)


async def test_nothing_overtakes_what_the_client_has_not_taken() -> None:
    provider, client, answers = Provider([TOOL]), Client(), list[object]()
    provider.send_by(client.take)
    client.reads = False
    number = begin(provider, answers)
    waiting = provider.calls()
    assert named(await anext(waiting)) == ("call", number)
    # It is being written, and the client reads again.
    client.reads = True
    provider.cancel(number)
    assert client.got == []
    assert named(await anext(waiting)) == ("cancel", number)
    later = begin(provider, answers)
    assert client.got == []
    assert named(await anext(waiting)) == ("call", later)
    following = asyncio.ensure_future(anext(waiting))
    await asyncio.sleep(0)
    assert begin(provider, answers) == client.got[0][1]
    following.cancel()
    assert answers == []


async def test_each_call_that_is_late_fails_and_is_cancelled_at_the_client() -> None:
    provider, client = Provider([TOOL], seconds=0.05), Client()
    provider.send_by(client.take)
    late: list[object] = []
    ended = asyncio.get_running_loop().create_future()
    for _ in range(2):
        begin(provider, late)
    quick = begin(provider, late)
    provider.answer(quick, b"1")
    await asyncio.sleep(0.02)  # the timer of the first two comes before the deadline of the last
    last = provider.call("add", b"{}", partial(_end, late, ended))
    async with asyncio.timeout(20):
        await ended
    assert [str(each) for each in late[1:]] == ["the client did not answer within 0.05 s"] * 3
    assert [each for each in client.got if each[0] == "cancel"] == [("cancel", number) for number in (1, 2, last)]
    provider.answer(1, b"too late")
    assert len(late) == 4


def _end(answers: list[object], ended: asyncio.Future[None], answer: object) -> None:
    answers.append(answer)
    ended.set_result(None)


async def test_calls_of_a_client_that_is_gone_fail_at_once() -> None:
    provider, client, answers = Provider([TOOL], seconds=60), Client(), list[object]()
    provider.send_by(client.take)
    begin(provider, answers)
    provider.close()
    assert [str(each) for each in answers] == ["the call was given up: the client that provides it has disconnected"]
    with pytest.raises(ToolFailed, match="add cannot be called"):
        begin(provider, answers)
    assert FunctionCancelled not in [type(each) async for each in provider.calls()]
