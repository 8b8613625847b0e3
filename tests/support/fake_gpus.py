"""GPUs for tests on machines without one: files in the place of device nodes, and a module in the place of torch."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle.isolation import gpus
from ingle.service import Service

FAKE_TORCH = Path(__file__).parent / "fake_torch"


def make_cards(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Have this machine show two cards, as the driver of NVIDIA does. Return the folder of their device nodes."""
    devices = folder / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "null"):
        (devices / name).write_text(name)
    patch.setattr(gpus, "DEVICES", devices)
    patch.setattr(gpus, "NVIDIA_CARDS", folder / "cards")
    return devices


async def give_torch(service: Service, session: str) -> None:
    """Put the fake torch into the folder of a session."""

    async def content(path: Path) -> AsyncIterator[bytes]:
        yield path.read_bytes()

    for path in FAKE_TORCH.glob("torch/*.py"):
        await service.write_file(session, str(path.relative_to(FAKE_TORCH)), content(path))
