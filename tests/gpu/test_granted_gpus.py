"""Sessions on a real GPU. Without one, or without torch, these tests skip themselves (see `support.gpu_machine`)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle.service import Service
from support.gpu_machine import needs_gpu, run, serving

LEVELS = ("none", "limits", "restricted", "sandbox")

pytestmark = [pytest.mark.req("gpu.grant"), *needs_gpu]


@pytest.fixture(params=LEVELS)
async def service(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Service]:
    async with serving(home, request.param) as made:
        await made.create_session("s")
        yield made


TRAIN = """
import torch
model = torch.nn.Linear(100, 100).cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 100, device="cuda")).sum().backward()
optimizer.step()
pinned = torch.ones(1000, 1000).pin_memory().to("cuda", non_blocking=True)
graph, counter = torch.cuda.CUDAGraph(), torch.zeros(10, device="cuda")
with torch.cuda.graph(graph):
    counter += 1
graph.replay()
torch.cuda.synchronize()
print(pinned.sum().item(), counter[0].item())
"""
FILL = """
try:
    torch.empty(10**13, device="cuda")
except torch.OutOfMemoryError as error:
    print(type(error).__name__)
print(counter[0].item())
"""


async def test_a_session_computes_on_its_card_and_survives_a_full_one(service: Service) -> None:
    assert (await run(service, TRAIN)).stdout == "1000000.0 1.0\n"
    assert (await run(service, FILL)).stdout == "OutOfMemoryError\n1.0\n"


async def test_programs_that_a_session_starts_have_the_card_too(service: Service) -> None:
    code = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', PROGRAM], stdout=-1, text=True))"
    program = "import torch; print(torch.ones(3, device='cuda').sum().item())"
    result = await run(service, f"PROGRAM = {program!r}\n{code}")
    assert "stdout='3.0\\n'" in result.stdout, result.stdout


ATTACK = """
import errno, fcntl, glob, os
def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError:
        return False
def requested(number):
    fd = os.open("/dev/nvidiactl", os.O_RDWR)
    try:
        fcntl.ioctl(fd, number, bytearray(64))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(fd)
others = [f"/dev/nvidia{number}" for number in range(1, 16)] + ["/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
others += glob.glob("/dev/nvidia-caps/*") + glob.glob("/dev/dri/*")
print([path for path in others if opened(path)], requested(0xC0384639), requested(0xC030464D), requested(0xC01046D3))
"""


async def test_a_confined_session_opens_nothing_else_of_the_driver(service: Service) -> None:
    level = (await service.get_session("s")).isolation
    if level in ("none", "limits"):
        pytest.skip("nothing confines the session")
    assert (await run(service, ATTACK)).stdout == "[] ENOTTY ENOTTY ENOTTY\n"


async def test_no_preload_starts_the_driver(service: Service) -> None:
    code = "import torch; print(torch.cuda.is_initialized(), 'libcuda' in open('/proc/self/maps').read())"
    assert (await run(service, code)).stdout.startswith("False ")
