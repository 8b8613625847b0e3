"""GPUs that sessions are granted, with files in the place of a driver's device nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingle import errors
from ingle.callers import Caller
from ingle.isolation import gpu_usage, gpus
from ingle.requests import Bounds
from ingle.service import Service
from support.fake_gpus import give_torch, make_cards
from support.service import make_settings

pytestmark = [pytest.mark.req("gpu.grant")]

LOOK = """
import os
def content(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
print(*(content(f"FOLDER/{name}") for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm-tools")), sep="; ")
print(os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cards, as the driver of NVIDIA shows them."""
    return make_cards(tmp_path, monkeypatch)


@asynccontextmanager
async def serving(home: Path, level: str, gpu: str) -> AsyncIterator[Service]:
    settings = make_settings(preload=[], pool=0, isolation=level, gpu=gpu, network="full")
    service = Service.local(settings, home)
    try:
        await service.start()
    except errors.IsolationUnavailable as error:
        pytest.skip(str(error))
    try:
        yield service
    finally:
        await service.stop()


async def look(service: Service, session: str, folder: str = "/dev") -> list[str]:
    result = await service.execute(session, LOOK.replace("FOLDER", folder))
    assert result.status == "ok", result.error
    return result.stdout.splitlines()


async def test_a_sandbox_has_exactly_the_granted_cards(home: Path, devices: Path) -> None:
    async with serving(home, "sandbox", "all") as service:
        made = await service.create_session("both")
        assert made.gpus == [0, 1]
        assert await look(service, "both") == ["nvidia0; nvidia1; nvidiactl; FileNotFoundError", "0,1"]
        made = await service.create_session("one", gpus="1")
        assert made.gpus == [1]
        assert await look(service, "one") == ["FileNotFoundError; nvidia1; nvidiactl; FileNotFoundError", "1"]
        made = await service.create_session("none", gpus="none")
        assert made.gpus == []
        missing = "; ".join(["FileNotFoundError"] * 4)
        assert await look(service, "none") == [missing, ""]


async def test_a_restricted_session_opens_the_granted_cards_only(home: Path, devices: Path) -> None:
    async with serving(home, "restricted", "1") as service:
        made = await service.create_session("s")
        assert made.gpus == [1]
        found = await look(service, "s", str(devices))
        assert found == ["PermissionError; nvidia1; nvidiactl; PermissionError", "1"]


async def test_a_card_has_the_same_id_at_every_level(home: Path, devices: Path, tmp_path: Path) -> None:
    for number, name in ((0, "GPU-????????-????"), (1, "GPU-0d1e2f")):
        card = tmp_path / "cards" / f"0000:0{number}:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text(f"Model: \t A card\nGPU UUID: \t {name}\nDevice Minor: \t {number}\n")
    async with serving(home, "none", "all") as service:
        await service.create_session("s")
        assert (await look(service, "s"))[1] == "0,GPU-0d1e2f"


async def test_without_confinement_nothing_is_hidden_unless_it_was_asked_for(
    home: Path, devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    async with serving(home, "none", "auto") as service:
        made = await service.create_session("s")
        assert (made.gpus, [each for each in made.notices if "GPU" in each]) == ([0, 1], [])
        assert (await look(service, "s"))[1] == "None"
        made = await service.create_session("one", gpus="0")
        assert made.gpus == [0]
        assert any("only hidden" in each for each in made.notices)
        assert (await look(service, "one"))[1] == "0"


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
async def test_confined_sessions_get_no_card_by_default_and_are_told_how(home: Path, devices: Path, level: str) -> None:
    async with serving(home, level, "auto") as service:
        made = await service.create_session("s")
        assert made.gpus == []
        with pytest.raises(errors.NotGranted, match="--gpu all"):
            await service.create_session("more", gpus="all")
        result = await service.execute("s", "raise RuntimeError('No CUDA GPUs are available')")
        assert [each for each in result.notices if "--gpu all" in each] != []
        result = await service.execute("s", "raise RuntimeError('something else')")
        assert result.notices == []


async def test_a_request_gets_no_more_than_the_server_grants(home: Path, devices: Path) -> None:
    async with serving(home, "sandbox", "0") as service:
        with pytest.raises(errors.NotGranted, match="the GPU 1 is not granted"):
            await service.create_session("s", gpus="0,1")
        with pytest.raises(errors.InvalidRequest, match="names the GPU 7, and this machine has 0, 1"):
            await service.create_session("s", gpus="7")
        for text in ("", "one", "0,", "-1", "٣"):
            with pytest.raises(errors.InvalidRequest, match="it must be"):
                await service.create_session("s", gpus=text)
        bounded = service.acting_for(Caller("team", bounds=Bounds(gpus="none")))
        assert (await bounded.create_session("s")).gpus == []
        with pytest.raises(errors.NotGranted):
            await bounded.create_session("more", gpus="0")


def test_a_server_that_grants_a_missing_card_does_not_start(home: Path, devices: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match="--gpu names the GPU 2"):
        gpus.Gpus("2")


def test_cards_of_another_driver_are_found_by_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dev"
    (folder / "dri").mkdir(parents=True)
    for name in ("kfd", "dri/card0", "dri/renderD128", "dri/renderD129"):
        (folder / name).touch()
    monkeypatch.setattr(gpus, "DEVICES", folder)
    granted = gpus.Gpus("1").settle(None, None, "sandbox")
    assert [path for _, path in granted.cards.nodes()] == ["/dev/dri/renderD129", "/dev/kfd"]
    assert granted.environment() == {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
async def test_code_that_only_asks_for_a_card_is_told_how_to_get_one(home: Path, devices: Path, level: str) -> None:
    async with serving(home, level, "auto") as service:
        await service.create_session("s")
        code = "class cuda:\n    is_available = staticmethod(lambda: False)\nprint(cuda.is_available())"
        result = await service.execute("s", code)
        assert (result.stdout, [each for each in result.notices if "--gpu all" in each] != []) == ("False\n", True)
        assert (await service.execute("s", "x = 1")).notices == []


async def test_a_session_with_a_card_is_told_nothing(home: Path, devices: Path) -> None:
    async with serving(home, "none", "all") as service:
        await service.create_session("s")
        code = "class cuda:\n    is_available = staticmethod(lambda: False)\nprint(cuda.is_available())"
        assert (await service.execute("s", code)).notices == []


async def test_the_limit_of_memory_on_cards_is_set_when_the_driver_starts(home: Path, devices: Path) -> None:
    settings = make_settings(preload=[], pool=0, isolation="none", gpu="all", gpu_memory=2500)
    service = Service.local(settings, home)
    await service.start()
    try:
        await service.create_session("s")
        await give_torch(service, "s")
        code = "import torch; print(torch.cuda.fractions); torch.cuda.init(); print(torch.cuda.fractions)"
        assert (await service.execute("s", code)).stdout == "{}\n{0: 0.25}\n"
    finally:
        await service.stop()


def test_what_processes_use_is_unknown_without_the_drivers_library() -> None:
    nvml = gpu_usage.Nvml("libno-such-library.so.1")
    assert (nvml.cards, nvml.measure()) == (0, {})
