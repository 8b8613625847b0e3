"""ipykernel through jupyter_client: the peer that everybody knows.

Each figure is what a careful client gets: it waits for the reply on the shell channel and for the kernel's `idle`
on iopub, which is when the outputs are complete.
"""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from bench.measure import together, tree_pss

PATIENCE = 120


class Kernel:
    def __init__(self) -> None:
        self.manager = AsyncKernelManager(kernel_name="python3")
        self.client: AsyncKernelClient

    async def start(self) -> None:
        """Until it answers a request."""
        await self.manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels(hb=False)
        self.client.kernel_info()
        await self.client.get_shell_msg(timeout=PATIENCE)

    async def stop(self) -> None:
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)

    async def execute(self, code: str, on_message: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        sent = self.client.execute(code)
        await self.until_idle(sent, on_message)
        return await self.reply(sent)

    async def until_idle(self, sent: str, on_message: Callable[[dict[str, Any]], None] | None = None) -> None:
        while True:
            message = await self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            if on_message is not None:
                on_message(message)

    async def reply(self, sent: str) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = await self.client.get_shell_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == sent:
                return message

    async def settle(self) -> None:
        """iopub is a subscription, and the first messages of a new one may be missed."""
        while True:
            sent = self.client.execute("1")
            try:
                async with asyncio.timeout(0.5):
                    await self.until_idle(sent)
                await self.reply(sent)
                return
            except TimeoutError:
                continue

    @property
    def pid(self) -> int:
        pid: int = self.manager.provisioner.pid
        return pid


@asynccontextmanager
async def kernel() -> AsyncIterator[Kernel]:
    each = Kernel()
    await each.start()
    await each.settle()
    try:
        yield each
    finally:
        await each.stop()


async def starts(count: int, code: str) -> tuple[list[float], list[float]]:
    """To ready (with `code` run, if any), and to the first result after that."""
    ready, first = [], []
    for _ in range(count):
        each = Kernel()
        began = time.perf_counter()
        await each.start()
        if code:
            await each.reply(each.client.execute(code))
        ready.append(time.perf_counter() - began)
        await each.reply(each.client.execute("1"))
        first.append(time.perf_counter() - began)
        await each.stop()
    return ready, first


async def round_trips(each: Kernel, code: str, count: int, pause: float) -> list[float]:
    for _ in range(5):
        await each.execute(code)
    times = []
    for _ in range(count):
        if pause:
            await asyncio.sleep(pause)
        began = time.perf_counter()
        await each.execute(code)
        times.append(time.perf_counter() - began)
    return times


async def cells_per_second(kernels: int, cells: int) -> tuple[float, float]:
    all_kernels = [Kernel() for _ in range(kernels)]
    for each in all_kernels:
        await each.start()
        await each.settle()

    speeds = await together([partial(each.execute, "x = 1") for each in all_kernels], cells)
    for each in all_kernels:
        await each.stop()
    return speeds


async def pour(each: Kernel, code: str, size: int) -> float:
    seen = 0

    def on_message(message: dict[str, Any]) -> None:
        nonlocal seen
        if message["msg_type"] == "stream":
            seen += len(message["content"]["text"])

    began = time.perf_counter()
    await each.execute(code, on_message)
    took = time.perf_counter() - began
    assert seen == size, (seen, size)
    return took


async def print_to_client(each: Kernel, count: int) -> list[float]:
    times: list[float] = []

    def on_message(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            times.append((time.monotonic_ns() - int(message["content"]["text"])) / 1e9)

    await each.execute("import time")
    for _ in range(count):
        await each.execute("print(time.monotonic_ns(), end=''); time.sleep(0.3)", on_message)
    return times


async def interrupts(each: Kernel, count: int) -> list[float]:
    times = []
    for _ in range(count):
        sent = each.client.execute("while True: pass")
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        await each.manager.interrupt_kernel()
        await each.reply(sent)
        await each.until_idle(sent)
        times.append(time.perf_counter() - began)
    return times


async def deaths(count: int) -> tuple[list[float], list[float]]:
    """Told: by asking every 10 ms whether the process lives, which is quicker than the client's own restarter."""
    told, again = [], []
    for _ in range(count):
        each = Kernel()
        await each.start()
        began = time.perf_counter()
        each.client.execute("import os; os._exit(1)")
        while await each.manager.is_alive():
            await asyncio.sleep(0.01)
        told.append(time.perf_counter() - began)
        await each.manager.restart_kernel(now=True)
        await each.reply(each.client.execute("1"))
        again.append(time.perf_counter() - began)
        await each.stop()
    return told, again


async def memory(cells: list[str], count: int) -> list[float]:
    """PSS of a kernel in MB, so many running at once: fresh, then after each of these cells."""
    kernels = [Kernel() for _ in range(count)]
    for each in kernels:
        await each.start()
    figures = [sum(tree_pss(each.pid) for each in kernels) / count]
    for cell in cells:
        for each in kernels:
            await each.reply(each.client.execute(cell))
        figures.append(sum(tree_pss(each.pid) for each in kernels) / count)
    for each in kernels:
        await each.stop()
    return figures
