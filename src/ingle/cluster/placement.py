"""Placement: which agent gets a new session."""

import hashlib
import random
from collections.abc import Iterable
from typing import Protocol

from ingle import errors
from ingle.cluster.directory import AgentInfo
from ingle.cluster.offer import AgentStatus
from ingle.requests import NewSession


class Place(Protocol):
    """An agent as placement sees it."""

    @property
    def info(self) -> AgentInfo: ...

    @property
    def status(self) -> AgentStatus | None: ...

    @property
    def pending(self) -> int:
        """Sessions that this gateway has asked it for and that its status does not count yet."""
        ...


def load_of(place: Place) -> float:
    """Return how full an agent is. Running cells and waiting starts weigh more than idle sessions."""
    status = place.status
    if status is None:
        return float(place.pending)
    used = status.sessions + status.waiting + place.pending
    return used / max(status.capacity, 1) + (status.running + status.waiting + place.pending) / 1000


def fitting(places: Iterable[Place], new: NewSession) -> list[Place]:
    """Return the agents that may have a session. Raise an error that says why none may."""
    up = [each for each in places if each.status is None or not each.status.draining]
    if not up:
        raise errors.Unavailable("no agent of the cluster takes sessions now; start one, or try again")
    found = [each for each in up if new.labels.items() <= each.info.labels.items()]
    if not found:
        asked = ", ".join(f"{name}={value}" for name, value in new.labels.items())
        raise errors.StartFailed(f"no agent has the labels {asked[:200]}; leave them out, or start an agent with them")
    cards = _cards(new.gpus)
    found = [each for each in found if each.info.gpus >= cards]
    if not found:
        raise errors.StartFailed("no agent has the GPUs that are asked for; ask for fewer, or start an agent with them")
    memory = new.limits.memory or 0
    roomy = [each for each in found if each.status is None or each.status.memory_available >= memory]
    if not roomy:
        raise errors.Overloaded(10.0)
    return roomy


def choose(places: list[Place], new: NewSession, rng: random.Random) -> Place:
    """Return the emptier one of two random agents, of those where the environment is built if there are some."""
    if new.environment is not None:
        warm = [each for each in places if each.status is not None and new.environment in each.status.environments]
        places = warm or places
    return min(rng.sample(places, min(2, len(places))), key=load_of)


def by_load(places: Iterable[Place]) -> list[Place]:
    """Return the agents that take sessions, the emptiest first."""
    return sorted((each for each in places if each.status is None or not each.status.draining), key=load_of)


def home_of(incarnations: Iterable[str], owner: str) -> str:
    """Return the agent of what belongs to a tenant and to no session. Another agent more or less moves few of them."""
    return max(incarnations, key=lambda each: hashlib.blake2b(f"{each}\0{owner}".encode(), digest_size=8).digest())


def _cards(asked: str | None) -> int:
    if asked in (None, "none", ""):
        return 0
    assert asked is not None
    return 1 if asked == "all" else max((int(each) + 1 for each in asked.split(",") if each.isdecimal()), default=0)
