"""How the attacks are carried out, for the two files that do: as root, and as an ordinary user."""

import os
import platform
from collections.abc import Iterator

import pytest

import isolation.attacks  # noqa: F401  collects them
from isolation.attack import ATTACKS, Attack
from isolation.fort import Fort

BUILT = ("none",)
"""Levels that there are by now."""

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="forts are made by root")


def by_level(who: str) -> list[object]:
    """Every attack at every level; at `limits` only what that level is to stop."""
    return [
        pytest.param(level, attack, id=f"{level}-{attack}")
        for level in BUILT
        for attack in ATTACKS
        if level != "limits" or attack.stops[who] == "limits"
    ]


def forts(who: str) -> Iterator[dict[str, Fort | BaseException]]:
    made: dict[str, Fort | BaseException] = {}
    yield made
    for fort in made.values():
        if isinstance(fort, Fort):
            fort.close()


def fort_of(made: dict[str, Fort | BaseException], level: str, who: str) -> Fort:
    """One at a time: that of the level before goes first."""
    if level not in made:
        for before, fort in list(made.items()):
            if isinstance(fort, Fort):
                fort.close()
            del made[before]
        try:
            made[level] = Fort(level, who)
        except BaseException as error:
            made[level] = error
            raise
    fort = made[level]
    if not isinstance(fort, Fort):
        raise AssertionError(f"there is no server at {level}: {fort}")
    return fort


def check(fort: Fort, attack: Attack) -> None:
    if not attack.arms and platform.machine() != "x86_64":
        pytest.skip("for other processors")
    judgement = fort.run(attack)
    if attack.must_hold(fort.level, fort.who):
        assert not judgement.breach, judgement
    elif fort.level == "none":
        if attack.shows(fort.who) is True:
            assert judgement.breach, f"it does not show that it works: {judgement.said}"
    elif fort.level == "restricted":
        assert judgement.breach, (
            f"SECURITY.md says that `restricted` lets this through, and it does not: {judgement.said}"
        )
    assert fort.unharmed()
