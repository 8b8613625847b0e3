"""The part of the fake torch that is about cards."""

import os
import types

import torch

fractions = {}
_queued = []


class Stream:
    pass


def is_initialized():
    return bool(torch.driver.pid)


def device_count():
    return int(os.environ.get("CARDS", "1"))


def init():
    first = not torch.driver.pid
    torch.driver.init()
    while first and _queued:
        _queued.pop(0)()


def is_available():
    if device_count():
        torch.driver.init()
    return device_count() > 0


def synchronize(where):
    torch.driver.call()


def get_rng_state_all():
    return [torch.get_rng_state("cuda:0")]


def set_rng_state(state, where):
    torch.set_rng_state(state, where)


def get_device_properties(number):
    return types.SimpleNamespace(total_memory=10_000)


def set_per_process_memory_fraction(fraction, number):
    fractions[number] = fraction


def _lazy_call(work):
    _queued.append(work)
