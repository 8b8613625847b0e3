"""The phases in the life of an init, without a process."""

import asyncio
import socket

import pytest

from ingle.workers.init_link import NEXT_PHASES, InitGone, InitLink, Phase
from ingle_worker.wire import messages


def test_phases_only_go_forward_and_each_can_be_the_last_before_the_end() -> None:
    order = list(Phase)
    assert set(NEXT_PHASES) == set(order)
    for phase, following in NEXT_PHASES.items():
        assert all(order.index(each) > order.index(phase) for each in following)
        assert (Phase.GONE in following) == (phase is not Phase.GONE)


@pytest.fixture
def events() -> list[object]:
    return []


async def test_an_init_that_never_spoke_is_gone_when_its_socket_is(events: list[object]) -> None:
    link = InitLink(asyncio.get_running_loop(), events.append, frozenset())
    with socket.socket(fileno=link.make_end()):
        link.watch()
        interrupt = link.send_signal(lambda order: messages.Interrupt(order, 1, False))
        assert (link.phase, link.leaving, link.pending) == (Phase.NEW, False, True)
    while not events:
        await asyncio.sleep(0)
    assert (events, link.phase) == ([InitGone()], Phase.GONE)
    link.close()
    assert (interrupt.result(), link.up.done(), link.pending) == (False, True, False)
    # Orders to it are dropped, and their senders need not wait.
    link.kill("too late")
    assert link.killed_because is None
    assert link.send_signal(lambda order: messages.Interrupt(order, 1, False)).result() is False


async def test_messages_that_this_kind_of_init_may_not_send_are_ignored(events: list[object]) -> None:
    link = InitLink(asyncio.get_running_loop(), events.append, frozenset({messages.InitUp}))
    with socket.socket(fileno=link.make_end()) as init:
        link.watch()
        init.sendall(messages.encode(messages.Exited(0, 0.0, 0)) + messages.encode(messages.Swept(0)))
        init.sendall(messages.encode(messages.InitUp(7, 8, True)))
        await asyncio.wait_for(link.up, 10)
    assert (events, link.phase, link.swept, link.joined) == ([messages.InitUp(7, 8, True)], Phase.UP, False, True)
    link.close()
