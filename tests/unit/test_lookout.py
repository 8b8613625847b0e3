"""Waiting for the other side, asleep or awake."""

import asyncio
import os
import socket
import threading

import pytest

from ingle.sessions.cells.pace import Pace
from ingle_worker.session.lookout import Lookout
from ingle_worker.wire.waiting import SOON, TRIAL, WARM, WHILE, Choice

ASLEEP, AWAKE = False, True


def waits(choice: Choice, count: int, seconds: dict[bool, float]) -> list[bool]:
    """How each of so many waits was done, where either way takes so long."""
    ways = []
    for _ in range(count):
        ways.append(choice.awake)
        choice.took(seconds[choice.awake])
    return ways


def test_both_ways_are_tried_and_the_quicker_one_is_taken():
    asleep_is_quicker = waits(Choice(), 2 * TRIAL + WHILE, {ASLEEP: 0.00005, AWAKE: 0.00005 + 2 * WARM})
    assert asleep_is_quicker == [ASLEEP] * TRIAL + [AWAKE] * TRIAL + [ASLEEP] * WHILE
    awake_is_quicker = waits(Choice(), 2 * TRIAL + WHILE, {ASLEEP: 0.00009, AWAKE: 0.00005})
    assert awake_is_quicker == [ASLEEP] * TRIAL + [AWAKE] * TRIAL + [AWAKE] * WHILE


def test_it_is_found_out_when_the_other_way_has_become_quicker():
    choice = Choice()
    idle, busy = {ASLEEP: 0.00009, AWAKE: 0.00004}, {ASLEEP: 0.00009, AWAKE: SOON}
    waits(choice, 2 * TRIAL, idle)
    for machine, way in ((busy, ASLEEP), (busy, ASLEEP), (idle, AWAKE), (idle, AWAKE)):
        # As it was decided before, then the other way for a moment, then the better one.
        after = waits(choice, WHILE + TRIAL, machine)
        assert after.count(not after[0]) == TRIAL
        assert choice.awake is way


def test_staying_awake_in_vain_weighs_more_than_a_long_sleep():
    choice = Choice()
    waits(choice, TRIAL, {ASLEEP: SOON * 0.99})
    ways = waits(choice, TRIAL + 1, {AWAKE: 10.0, ASLEEP: SOON * 0.99})
    assert ways[-1] is ASLEEP


def test_a_lookout_reads_what_comes_and_the_end():
    ours, theirs = socket.socketpair()
    lookout = Lookout()
    lookout.watch(theirs.fileno())
    lookout.alone = True
    told = []

    def answer():
        while data := lookout.read():
            told.append(lookout._choice.awake)
            theirs.sendall(data)

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(4 * TRIAL):
        ours.sendall(b"%d" % number)
        assert ours.recv(100) == b"%d" % number
    ours.shutdown(socket.SHUT_WR)
    thread.join()
    assert len(told) == 4 * TRIAL
    ours.close()
    theirs.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        lookout.read()


def test_a_lookout_sleeps_where_others_are_at_work(monkeypatch):
    read, write = os.pipe()
    lookout = Lookout()
    lookout.watch(read)
    lookout._choice.awake = True
    lookout._soon = True
    looks = []
    monkeypatch.setattr(lookout, "_ready", type("Ready", (), {"poll": lambda self, wait: looks.append(wait) or [1]})())
    os.write(write, b"a")
    assert lookout.read() == b"a"
    assert looks == []
    lookout.alone = lookout._soon = True
    os.write(write, b"b")
    assert lookout.read() == b"b"
    assert looks == [0]
    os.close(read)
    os.close(write)


async def test_the_loop_stays_awake_for_one_cell_and_not_for_two():
    loop = asyncio.get_running_loop()
    pace = Pace()
    pace._choice.awake = pace._soon = True
    assert pace.begun(loop) is True
    assert pace._looking
    await asyncio.sleep(0)  # everybody else has his turn meanwhile
    assert pace.begun(loop) is False
    while pace._looking:
        await asyncio.sleep(0)
    pace.ended(0.00005)
    pace.ended(0.00005)
    assert pace.begun(loop) is True


async def test_the_loop_falls_asleep_when_no_answer_comes():
    loop = asyncio.get_running_loop()
    pace = Pace()
    pace._choice.awake = pace._soon = True
    pace.begun(loop)
    while pace._looking:
        await asyncio.sleep(0)
    pace.ended(1.0)
    pace.begun(loop)
    assert not pace._looking, "the next is not expected soon, since this one was not"
