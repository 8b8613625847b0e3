"""Copies, saves and ends of sessions with data on a real GPU. Without one, or without torch, these tests skip."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle.service import Service
from support.gpu_machine import LEVELS, PYTHON, needs_gpu, run, serving
from support.internals import session_of
from support.waiting import until

pytestmark = [pytest.mark.req("gpu.copies"), *needs_gpu]

BEGIN = """
import torch
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(32, 64, device="cuda")
def step():
    optimizer.zero_grad()
    loss = (model(data) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
for _ in range(3):
    step()
base = torch.arange(12, dtype=torch.int32, device="cuda")
part = base[4:8]
half = torch.ones(2, 3, dtype=torch.bfloat16, device="cuda").t()
sparse = torch.eye(3, device="cuda").to_sparse()
pinned = torch.arange(5).pin_memory()
generator = torch.Generator("cuda"); generator.manual_seed(3)
torch.rand(5, device="cuda", generator=generator)
stream = torch.cuda.Stream()
plain = [1, 2]
"""

SHOW = """
part += 100
print(base.tolist(), half.dtype, half.stride(), half.device, sparse.layout, sparse.to_dense().sum().item())
print(pinned.tolist(), plain, sorted(optimizer.state[next(iter(model.parameters()))]))
print(torch.rand(2, device="cuda", generator=generator).tolist(), torch.rand(2, device="cuda").tolist())
print([round(step(), 6) for _ in range(3)], model[1].num_batches_tracked.item())
"""


@pytest.fixture(params=LEVELS)
async def service(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Service]:
    async with serving(home, request.param) as made:
        await made.create_session("s")
        yield made


def memory_of_card() -> int:
    """Return the mebibytes in use on the first card."""
    told = subprocess.run(
        ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return int(told.split()[0])


async def test_copies_of_every_kind_have_the_same_data_and_go_on_alike(service: Service) -> None:
    await run(service, BEGIN)
    made = await service.checkpoint("s", "base")
    assert made.copied == "value"
    assert [each for each in made.notices if "not copied: stream" in each] != []
    forks = await service.fork_session("s", "copy", count=2)
    assert [each.copied for each in forks] == ["value", "value"]
    saved = await service.save_session("s", "kept")
    assert [each.name for each in saved.skipped] == ["stream"]
    tried = await service.trial("s", SHOW, network="allowed", wait=100)
    assert tried.error is None
    expected = tried.stdout
    assert tried.trial is not None
    await service.discard("s", tried.trial.name)
    shown = {"session": (await run(service, SHOW)).stdout}
    for name in ("copy-1", "copy-2"):
        shown[name] = (await run(service, SHOW, name)).stdout
    await service.load_session("kept", "loaded")
    shown["loaded"] = (await run(service, SHOW, "loaded")).stdout
    await service.rollback("s", "base")
    shown["rollback"] = (await run(service, SHOW)).stdout
    await service.rollback("s", "base")
    shown["rollback again"] = (await run(service, SHOW)).stdout
    (again,) = await service.fork_session("copy-1", "again")
    assert again.copied == "value"
    await run(service, "step()", "again")
    assert shown == dict.fromkeys(shown, expected)


async def test_asking_whether_there_is_a_gpu_counts_as_a_context(service: Service) -> None:
    await run(service, "import torch; print(torch.cuda.is_available()); rows = [1]")
    (made,) = await service.fork_session("s", "copy")
    assert made.copied == "value"
    assert (await run(service, "print(torch.ones(2, device='cuda').sum().item(), rows)", "copy")).stdout == "2.0 [1]\n"


@pytest.mark.req("gpu.freed")
async def test_a_checkpoint_and_its_end_hold_nothing_on_the_card(service: Service) -> None:
    before = memory_of_card()
    await run(service, "import torch; big = torch.ones(2 * 10**9, dtype=torch.uint8, device='cuda')")
    await service.checkpoint("s", "base")
    assert memory_of_card() - before > 1800
    worker = session_of(service, "s").worker
    assert worker is not None
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    # The checkpoint is a process too, and must not keep what its original had on the card.
    assert await until(lambda: memory_of_card() - before < 300, 20)
    await service.rollback("s", "base")
    assert (await run(service, "print(big.sum().item())")).stdout == "2000000000\n"
    await session_of(service, "s").checkpoints.remove("base")
    await session_of(service, "s").saves.hibernate()
    assert (await service.get_session("s")).state == "hibernated", (await service.get_session("s")).notices
    assert await until(lambda: memory_of_card() - before < 300, 20)
    assert (await run(service, "print(big.sum().item(), big.device)")).stdout == "2000000000 cuda:0\n"


@pytest.mark.req("gpu.freed")
@pytest.mark.parametrize("killed", ["session", "zygote", "server"])
async def test_kill_minus_nine_leaves_nothing_on_the_card(apart: Path, killed: str) -> None:
    before = memory_of_card()
    code = KILLED.format(home=str(apart / "home"), python=PYTHON, level="none")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    pids = dict(zip(("session", "zygote"), map(int, (await process.stdout.readline()).split()), strict=True))
    assert memory_of_card() - before > 900
    os.kill(process.pid if killed == "server" else pids[killed], signal.SIGKILL)
    if killed == "zygote":
        # Its sessions go on; they end with the server.
        process.kill()
    assert await until(lambda: memory_of_card() - before < 300, 30)
    if process.returncode is None and killed == "session":
        process.kill()
    await process.wait()


KILLED = """
import asyncio, os, sys
from pathlib import Path
from ingle.service import Service
from ingle.settings import Settings
from ingle.support import processes
async def main():
    settings = Settings(preload=["torch"], pool=1, python={python!r}, isolation={level!r}, gpu="all")
    service = Service.local(settings, Path({home!r}))
    await service.start()
    await service.create_session("s")
    fill = "import torch, os; x = torch.ones(10**9, dtype=torch.uint8, device='cuda')"
    result = await service.execute("s", fill, wait=100)
    assert result.status == "ok", result
    result = await service.execute("s", "print(os.getpid(), os.getppid())")
    session, init = map(int, result.stdout.split())
    with open(f"/proc/{{init}}/stat") as file:
        zygote = int(file.read().rpartition(")")[2].split()[1])
    print(session, zygote, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


OTHERS = """
import torch
fresh = [torch.empty(500_000_000, dtype=torch.uint8, device="cuda") for _ in range(8)]
print(sum(int((each == 123).sum().item()) for each in fresh))
"""


async def test_fresh_memory_shows_nothing_of_another_session(service: Service) -> None:
    await run(
        service,
        "import torch; secret = [torch.full((500_000_000,), 123, dtype=torch.uint8, device='cuda') for _ in range(8)]",
    )
    await service.end_session("s")
    await service.create_session("other")
    found = int((await run(service, OTHERS, "other")).stdout)
    # One byte in 256 of any random content is the secret's.
    assert found < 100_000, found


async def test_a_broken_context_is_named_with_what_to_do(service: Service) -> None:
    await run(service, "import torch; kept = torch.ones(3, device='cuda'); rows = [1]")
    result = await service.execute(
        "s", "torch._assert_async(torch.zeros(1, device='cuda')); torch.cuda.synchronize()", wait=100
    )
    assert result.status == "error"
    assert [each for each in result.notices if "CUDA context" in each] != [], result.notices
    (made,) = await service.fork_session("s", "copy")
    assert [each for each in made.notices if "not copied: kept" in each] != [], made.notices
    assert (await run(service, "print(rows, torch.ones(2, device='cuda').sum().item())", "copy")).stdout == "[1] 2.0\n"


async def test_info_and_metrics_tell_what_a_session_uses(service: Service) -> None:
    await run(service, "import torch; x = torch.ones(10**9, dtype=torch.uint8, device='cuda')")

    async def told() -> bool:
        info = await service.get_session("s")
        return info.gpu_memory is not None and info.gpu_memory > 9 * 10**8

    for _ in range(100):
        if await told():
            return
        await asyncio.sleep(0.1)
    raise AssertionError((await service.get_session("s")).gpu_memory)


async def test_a_soft_limit_is_an_ordinary_error(home: Path) -> None:
    async with serving(home, "none", gpu_memory=2 * 10**9) as service:
        await service.create_session("s")
        await run(service, "import torch; kept = torch.ones(10**9, dtype=torch.uint8, device='cuda')")
        result = await service.execute("s", "more = torch.ones(3 * 10**9, dtype=torch.uint8, device='cuda')", wait=100)
        assert result.error is not None
        assert result.error.name == "torch.OutOfMemoryError"
        assert (await run(service, "print(kept[0].item())")).stdout == "1\n"


async def test_a_durable_session_comes_back_on_the_card(home: Path) -> None:
    async with serving(home, "none") as service:
        await service.create_session("s", durable=True)
        await run(service, "import torch; x = torch.arange(5, device='cuda'); y = x[2:]")
    async with serving(home, "none") as service:
        assert (await run(service, "y += 1; print(x.tolist(), x.device)")).stdout == "[0, 1, 3, 4, 5] cuda:0\n"
        await service.end_session("s")
