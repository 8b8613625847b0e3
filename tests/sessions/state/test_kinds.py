"""What is kept of more than a hundred kinds of objects, and that the docs say the same."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support import kinds
from support.checkout import beside
from support.service import make_settings

NOT_SAVED = {"pair of sockets", "running thread", "child process", "generator that has begun"}
"""Each of them is in the middle of something, or part of another process."""

NOT_COPIED = {"executor with a thread", "running thread", "child process"}
"""The kernel copies one thread of one process."""

EXPECTED: dict[str, set[str]] = {
    "saved": NOT_SAVED,
    "identical": NOT_SAVED,
    "made again": set(),
    "forked": NOT_COPIED,
    "rolled back": NOT_COPIED,
}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=["numpy", "pandas"], pool=1)


@pytest.mark.req("state.save")
@pytest.mark.req("state.load")
@pytest.mark.req("state.fork")
@pytest.mark.req("state.rollback")
async def test_all_but_a_few_kinds_of_objects_are_kept_and_the_docs_say_which(service: Service, tmp_path: Path) -> None:
    chosen = kinds.present()
    assert len(chosen) > 100
    kept = await kinds.look(service, chosen, folder=str(tmp_path))
    answers = dict(zip([kind.name for kind in chosen], kept, strict=True))
    for number, way in enumerate(kinds.WAYS):
        lost = {name for name, answer in answers.items() if not answer[number]}
        assert lost == EXPECTED[way], way
    assert beside("docs/reference/kinds.md").read_text() == kinds.table(chosen, list(answers.values())), (
        "run `python tests/support/kinds.py > docs/reference/kinds.md`"
    )


TORCH = os.environ.get("INGLE_TORCH_PYTHON") or (sys.executable if find_spec("torch") is not None else None)
"""An interpreter that has torch."""


@pytest.mark.skipif(TORCH is None, reason="torch is not installed; INGLE_TORCH_PYTHON may name a Python that has it")
@pytest.mark.req("state.save")
@pytest.mark.req("state.load")
async def test_whatever_torch_makes_is_kept(service: Service) -> None:
    chosen = [kind for kind in kinds.KINDS if kind.needs == "torch"]
    answers = dict(zip([kind.name for kind in chosen], await kinds.look(service, chosen, TORCH), strict=True))
    assert len(answers) == 6
    assert {name: answer for name, answer in answers.items() if not all(answer)} == {}
