"""What a session holds is kept in every Python of the machine, by ways that the guest takes in some versions only.

The tests of what is taken apart and made again, once more in sessions of each other Python.
"""

import sys
from pathlib import Path

import pytest
from test_kinds import EXPECTED
from test_rerun import *  # noqa: F403
from test_saving_running_code import *  # noqa: F403

from ingle.service import Service
from ingle.settings import Settings
from support import kinds
from support.pythons import GOOD, Python
from support.service import make_settings

OTHERS = [python for python in GOOD if python.version[:2] != sys.version_info[:2]]

UNKNOWN = {"sqlite connection, in memory"}
"""Before 3.11 sqlite3 does not tell what is in one."""


def is_old(service: Service) -> bool:
    return any(python.path == service.settings.python for python in OTHERS if python.version < (3, 11))


pytestmark = [
    pytest.mark.req("state.save", "state.load", "cell.pythons"),
    pytest.mark.skipif(not OTHERS, reason="only one CPython from 3.10 on is installed"),
]


@pytest.fixture(scope="module", params=OTHERS, ids=lambda python: python.name)
def settings(request: pytest.FixtureRequest) -> Settings:
    python: Python = request.param
    return make_settings(preload=[], pool=1, python=python.path)


async def test_all_kinds_that_need_nothing_installed_are_kept_as_everywhere(service: Service, tmp_path: Path) -> None:
    chosen = [kind for kind in kinds.KINDS if not kind.needs]
    kept = await kinds.look(service, chosen, folder=str(tmp_path))
    for number, way in enumerate(kinds.WAYS):
        lost = {kind.name for kind, answer in zip(chosen, kept, strict=True) if not answer[number]}
        assert lost == EXPECTED[way] | (UNKNOWN if way in ("saved", "identical") and is_old(service) else set()), way
