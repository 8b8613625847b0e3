"""How the attacks are carried out, for the two files that do: as root, and as an ordinary user."""

import os
import platform
from collections.abc import Iterator

import pytest

import isolation.attacks  # noqa: F401  collects them
from support.attack import ATTACKS, LEVELS, Attack
from support.attacked_server import Fort

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="forts are made by root")


def by_level(who: str) -> list[object]:
    """Every attack at every level that is to hold it, and where it is to be seen that it works."""
    found = []
    for level in LEVELS:
        for attack in ATTACKS:
            if attack.is_repeated(level, who):
                continue
            shows = level == "restricted" or (level == "none" and attack.shows(who) is True)
            if shows or attack.must_hold(level, who):
                reason = attack.known.get((level, who))
                marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason is not None else []
                found.append(pytest.param(level, attack, id=f"{level}-{attack}", marks=marks))
    return found


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
    elif not judgement.breach:
        refused = fort.refused_by_the_machine(attack)
        if refused is not None:
            pytest.skip(f"this machine refuses it to any process: {refused}")
        if fort.level == "none":
            pytest.fail(f"it does not show that it works: {judgement.said}")
        pytest.fail(f"SECURITY.md says that `restricted` lets this through, and it does not: {judgement.said}")
    assert fort.unharmed()
