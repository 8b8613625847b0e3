"""Sessions on a GPU: the first result on the card, save and restore of its data, and a fork with it.

Each figure is measured beside what it is held to, turn by turn on the same machine: a fresh interpreter and an
ipykernel for the first result, the measured copies between card, memory and disk for saves. On a machine with a GPU:

    INGLE_TORCH_PYTHON=/path/to/python python bench/gpu.py
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median
from ingle.service import Service
from ingle.settings import Settings

PYTHON = os.environ.get("INGLE_TORCH_PYTHON", sys.executable)
FIRST = "import torch; print(torch.ones(1000, device='cuda').sum().item())"
TRIES = 3
GIGABYTE = 10**9
WAIT_SECONDS = 300

COPIES = """
import time, torch
def seconds(work):
    torch.cuda.synchronize(); began = time.perf_counter(); work(); torch.cuda.synchronize()
    return time.perf_counter() - began
data = torch.ones(2 * 10**9, dtype=torch.uint8, device="cuda")
out = min(seconds(lambda: data.cpu()) for _ in range(3))
host = data.cpu()
back = min(seconds(lambda: host.cuda()) for _ in range(3))
print(2 / out, 2 / back)
"""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def run(service: Service, code: str, session: str = "s") -> str:
    result = await service.execute(session, code, wait=WAIT_SECONDS)
    assert result.status == "ok", result.error
    return result.stdout


async def first_result(service: Service) -> dict[str, Any]:
    ours, plain, kernels = [], [], []
    # The first session waits until torch is preloaded, once for each server.
    await service.create_session("warm")
    await run(service, "import torch", "warm")
    await service.end_session("warm")
    for number in range(TRIES):
        began = time.perf_counter()
        await service.create_session(f"first-{number}")
        await run(service, FIRST, f"first-{number}")
        ours.append(time.perf_counter() - began)
        await service.end_session(f"first-{number}")
        plain.append(
            await asyncio.to_thread(timed, lambda: subprocess.run([PYTHON, "-c", FIRST], check=True, stdout=-1))
        )
        taken = await asyncio.to_thread(of_kernel)
        kernels += [] if taken is None else [taken]
    found = {"session": median(ours), "python -c": median(plain), "ipykernel": median(kernels) if kernels else None}
    return found | {"times faster than python -c": found["python -c"] / found["session"]}


def of_kernel() -> float | None:
    """Return how long an ipykernel takes from its start to the first result, if there is one."""
    try:
        from jupyter_client.manager import KernelManager
    except ImportError:
        return None
    began = time.perf_counter()
    manager = KernelManager()
    manager.kernel_spec.argv = [PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    site = str(Path(sys.modules["jupyter_client"].__file__ or "").parent.parent)
    try:
        manager.start_kernel(env={**os.environ, "PYTHONPATH": site})
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(FIRST, timeout=60, output_hook=lambda message: None)
        return time.perf_counter() - began if reply["content"]["status"] == "ok" else None
    except (RuntimeError, TimeoutError):
        return None
    finally:
        manager.shutdown_kernel(now=True)


def disk(folder: Path, size: int = 4 * GIGABYTE) -> tuple[float, float]:
    """Return how many gigabytes per second are written to the disk, and read again."""
    block = os.urandom(1 << 22)
    path = folder / "probe"

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(file.fileno())

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass

    try:
        return size / GIGABYTE / timed(write), size / GIGABYTE / timed(read)
    finally:
        path.unlink()


async def save_and_restore(service: Service, folder: Path, gigabytes: int) -> dict[str, Any]:
    await service.create_session("s")
    out, back = map(float, (await run(service, COPIES)).split())
    write, read = await asyncio.to_thread(disk, folder)
    part = f"torch.randint(256, ({GIGABYTE},), dtype=torch.uint8, device='cuda')"
    fill = f"parts = [{part} for _ in range({gigabytes})]"
    await run(service, f"del data, host; {fill}; torch.cuda.synchronize()")
    began = time.perf_counter()
    saved = await service.save_session("s", "kept")
    save = time.perf_counter() - began
    assert not saved.skipped, saved.skipped
    await service.end_session("s")
    began = time.perf_counter()
    await service.load_session("kept", "again")
    restore = time.perf_counter() - began
    check = await run(service, "print(len(parts), str(parts[0].device))", "again")
    assert check == f"{gigabytes} cuda:0\n", check
    await service.end_session("again")
    held_to_save = gigabytes / out + gigabytes / write
    held_to_restore = gigabytes / back + gigabytes / read
    return {
        "card to memory, GB/s": out,
        "memory to card, GB/s": back,
        "disk write, GB/s": write,
        "disk read, GB/s": read,
        "save, s": save,
        "restore, s": restore,
        "share of the copies' pace, save": held_to_save / save,
        "share of the copies' pace, restore": held_to_restore / restore,
        "share of the copies' pace": (held_to_save + held_to_restore) / (save + restore),
    }


async def fork(service: Service) -> dict[str, Any]:
    times = []
    await service.create_session("f")
    await run(service, f"import torch; x = torch.ones({GIGABYTE}, dtype=torch.uint8, device='cuda')", "f")
    for number in range(TRIES):
        began = time.perf_counter()
        await service.fork_session("f", f"copy-{number}")
        assert await run(service, "print(x.sum().item())", f"copy-{number}") == f"{GIGABYTE}\n"
        times.append(time.perf_counter() - began)
        await service.end_session(f"copy-{number}")
    return {"fork with 1 GB to its first use, s": median(times)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=int, default=10)
    parser.add_argument("--isolation", default="none")
    parser.add_argument("--out", type=Path, help="Write the figures here, too.")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            preload=["torch"],
            pool=2,
            python=PYTHON,
            isolation=given.isolation,
            gpu="all",
            limit_memory=0,
            limit_file_size=0,
            max_snapshot=1 << 38,
        )
        service = Service.local(settings, Path(folder) / "home")
        await service.start()
        try:
            figures["first result"] = await first_result(service)
            figures["fork"] = await fork(service)
            figures["save"] = await save_and_restore(service, Path(folder), given.gigabytes)
        finally:
            await service.stop()
            print(json.dumps(figures, indent=2))
            if given.out is not None:
                given.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
