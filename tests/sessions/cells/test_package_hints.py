"""A module that is not installed: the result says how to install it, if the package index is known to have it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.package_index import LOOP, serve_index
from support.service import make_settings

pytestmark = pytest.mark.req("env.hint")


@pytest.fixture(scope="module")
def settings(bare: str) -> Settings:
    return make_settings(preload=[], pool=0, python=bare)


@pytest.fixture
def index(apart: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of an index that has the package `hearth` and no other."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", LOOP)
    with serve_index(apart / "index") as port:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{LOOP}:{port}/simple")
        yield port


async def notices(service: Service, code: str) -> list[str]:
    result = await service.execute("s", code)
    assert result.error is not None
    assert result.error.name == "ModuleNotFoundError"
    return result.notices


@pytest.mark.both_levels
async def test_a_module_that_the_index_has_is_told_with_the_way_to_install_it(index: int, service: Service) -> None:
    await service.create_session("s")
    told = (
        "hearth is not installed; the package index has a package hearth: if that is the one you mean, "
        "`%pip install hearth` installs it for this session"
    )
    # An answer that comes too late on a busy machine serves the next cell.
    while not (found := await notices(service, "import hearth")):
        continue
    assert found == [told]
    assert await notices(service, "import hearth.warm") == [told], "the first name is what is missing"
    missing = "is not installed, and the package index has no package"
    remedy = "check the name, or put the folder of the module on sys.path"
    while not (found := await notices(service, "import ingle_ember_of_nobody")):
        continue
    assert found == [f"ingle_ember_of_nobody {missing} ingle-ember-of-nobody; {remedy}"]
    while "if the index has it" in (found := await notices(service, "import sklearn"))[0]:
        continue  # as above
    assert found == [f"sklearn {missing} scikit-learn; {remedy}"]
    assert await notices(service, "%pip install --no-index --quiet hearth\nimport hearth") == [], "it was tried"
    assert await notices(service, "import json.nothing") == [], "its package is there"
    assert await notices(service, "raise ModuleNotFoundError('hearth')") == []


@pytest.fixture
def closed(index: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index that accepts connections and never answers."""
    with socket.create_server((LOOP, 0)) as listening:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{LOOP}:{listening.getsockname()[1]}/simple")
        yield


async def test_without_an_answer_only_well_known_modules_are_told_and_nothing_is_claimed(
    closed: None, service: Service
) -> None:
    await service.create_session("s")
    assert await notices(service, "import cv2") == [
        "cv2 is not installed; it comes with the package opencv-python-headless: "
        "`%pip install opencv-python-headless` installs it for this session, if the index has it"
    ]
    assert await notices(service, "import hearth") == []


class TestWithoutANetwork:
    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls, bare: str) -> Settings:
        return make_settings(preload=[], pool=0, python=bare, isolation="sandbox", network="none")

    async def test_the_index_is_not_asked_and_an_environment_is_recommended(self, index: int, service: Service) -> None:
        await service.create_session("s")
        assert await notices(service, "import yaml") == [
            "yaml is not installed; it comes with the package PyYAML, and this session cannot reach a package index: "
            "use an environment that has it (`ingle env create NAME PyYAML`)"
        ]
        assert await notices(service, "import hearth") == []
