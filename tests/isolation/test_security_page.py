"""SECURITY.md names what `restricted` lets through: the same that the attacks are seen to do."""

import re
from collections import Counter

import pytest

import isolation.attacks  # noqa: F401  collects them
from support.attack import ATTACKS
from support.checkout import beside

FAMILIES = {"secrets", "others", "persistence", "resources", "network", "kernel", "survival", "wire", "files"}


def test_what_restricted_lets_through_is_named() -> None:
    page = beside("SECURITY.md").read_text("utf-8")
    named = dict(re.findall(r"^- `(\w+\.\w+)` \(([a-z, ]+)\)$", page, re.MULTILINE))
    passing = {str(attack): ", ".join(sorted(attack.passes)) for attack in ATTACKS if attack.passes}
    assert named == passing


@pytest.mark.req("safe.isolation")
def test_there_are_attacks_of_every_family_and_each_has_a_name_of_its_own() -> None:
    assert len(ATTACKS) >= 80
    assert {attack.family for attack in ATTACKS} == FAMILIES
    assert not [name for name, count in Counter(map(str, ATTACKS)).items() if count > 1]


def test_most_attacks_are_seen_to_work_where_nothing_holds_them() -> None:
    """Those that no level lets through, or that not every machine has, say why they are not shown."""
    for attack in ATTACKS:
        for who in ("root", "user"):
            shows = attack.shows(who)
            assert shows is True or (isinstance(shows, str) and len(shows) > 10), attack
    assert sum(attack.root is True for attack in ATTACKS) > 100
    assert sum(attack.user is True for attack in ATTACKS) > 80
