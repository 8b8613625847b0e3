"""Every attack at every level, on a server of root's."""

from collections.abc import Iterator

import pytest

from support.attack import ROOT, Attack
from support.attack_runner import AS_ROOT, by_level, check, fort_of, forts
from support.attacked_server import Fort

pytestmark = [AS_ROOT, pytest.mark.req("safe.isolation")]


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Fort | BaseException]]:
    yield from forts(ROOT)


@pytest.mark.parametrize(("level", "attack"), by_level(ROOT))
def test_an_attack_works_where_nothing_holds_it_and_fails_where_something_should(
    made: dict[str, Fort | BaseException], level: str, attack: Attack
) -> None:
    check(fort_of(made, level, ROOT), attack)
