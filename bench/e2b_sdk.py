"""The SDK of E2B, unmodified, as a client of ingle: what `bench/compat_e2b.py` runs in a virtual environment with it.

The SDK finds the server in its own variables. It prints its figures as JSON, with its own CPU time of each run.
"""

import asyncio
import json
import statistics
import sys
import time

from e2b_code_interpreter import AsyncSandbox

CLIENT_ROUNDS = 5


async def timed(call: "asyncio.Future[object]") -> float:
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000


async def new_context(sandbox: AsyncSandbox) -> None:
    made = await sandbox.create_code_context()
    await sandbox.run_code("1", context=made)


async def rate(sandboxes: list[AsyncSandbox], times: int) -> float:
    """Return the runs a second where all sandboxes run code at once."""

    async def work(sandbox: AsyncSandbox) -> None:
        for _ in range(times):
            await sandbox.run_code("1")

    began = time.perf_counter()
    await asyncio.gather(*map(work, sandboxes))
    return len(sandboxes) * times / (time.perf_counter() - began)


async def measure(rounds: int, clients: int) -> dict[str, float]:
    sandbox = await AsyncSandbox.create(timeout=300)
    for _ in range(20):
        await sandbox.run_code("1")
    runs = [await timed(sandbox.run_code("1")) for _ in range(rounds)]
    contexts = [await timed(new_context(sandbox)) for _ in range(max(rounds // 20, 5))]
    others = [await AsyncSandbox.create(timeout=300) for _ in range(clients)]
    times = max(rounds // 4, 20)
    before = time.process_time()
    rates = [await rate(others, times) for _ in range(CLIENT_ROUNDS)]
    cpu = (time.process_time() - before) / (CLIENT_ROUNDS * clients * times)
    for each in (sandbox, *others):
        await each.kill()
    middle = statistics.median
    figures = {"run_code": middle(runs), "create_context": middle(contexts), "clients": middle(rates)}
    return {**figures, "cpu_microseconds": cpu * 1e6}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
