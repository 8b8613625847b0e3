"""Descriptors of the server: how often idle sessions are looked for that could give theirs away."""

import pytest

from ingle.sessions import capacity, descriptors
from ingle.sessions.descriptors import Descriptors
from ingle.sessions.session import Session


def test_scarce_descriptors_cost_few_requests_a_look_at_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    in_use = [0.7]
    monkeypatch.setattr(capacity, "used_descriptors", lambda more=0: in_use[-1])
    monkeypatch.setattr(descriptors, "SEARCH_SECONDS", 3600.0)

    def sessions() -> list[Session]:
        looks.append(in_use[-1])
        return []

    held = Descriptors(sessions)
    held.make_room()
    assert looks == []
    for used in (0.85, 0.86, 0.86, 0.89, 0.89, 0.92, 0.7, 0.85):
        in_use.append(used)
        for _ in range(100):
            held.make_room()
    assert looks == [0.85, 0.89, 0.92]
