"""APIs of other servers: code over the wire of E2B, as its SDK sends it.

Run: `python bench/compat_e2b.py [--quick]`. Each figure is a median. The client is httpx with one connection for each
client, so that the figures hold the translation and the session, and little else.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

CLIENTS = 16


async def timed(count: int, act: Callable[[], Awaitable[Any]]) -> list[float]:
    """Return the seconds of each of so many calls, one after another."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await act()
        found.append(time.perf_counter() - began)
    return found


class Sandbox:
    """A sandbox, and a client with its token."""

    def __init__(self, url: str, made: dict[str, str]) -> None:
        headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=60)

    async def run(self, code: str) -> str:
        body = {"code": code, "context_id": None, "language": None, "env_vars": None}
        return (await self.client.post("/execute", json=body)).raise_for_status().text

    async def interrupt(self) -> None:
        """Begin a run, leave it, and run the next code."""
        body = {"code": "print(1, flush=True)\nimport time; time.sleep(60)"}
        async with self.client.stream("POST", "/execute", json=body) as answer:
            async for line in answer.aiter_lines():
                if '"stdout"' in line:
                    break
        assert '"text":"2"' in await self.run("1 + 1")


async def measure(url: str, token: str, count: int) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": token}, timeout=60) as control:

        async def create() -> Sandbox:
            made = await control.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600})
            return Sandbox(url, made.raise_for_status().json())

        one = await create()
        await one.run("1")
        found = {"run_code_ms": 1000 * statistics.median(await timed(count * 10, lambda: one.run("1")))}
        new_context = lambda: one.client.post("/contexts", json={})  # noqa: E731
        found["create_context_ms"] = 1000 * statistics.median(await timed(count, new_context))
        found["interrupt_ms"] = 1000 * statistics.median(await timed(count, one.interrupt))
        many = [await create() for _ in range(CLIENTS)]
        began = time.perf_counter()
        await asyncio.gather(*(timed(count, lambda each=each: each.run("1")) for each in many))
        found[f"runs_per_second_{CLIENTS}_clients"] = CLIENTS * count / (time.perf_counter() - began)
        for each in (one, *many):
            await each.client.aclose()
        return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    count = 5 if parser.parse_args().quick else 50
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        server = subprocess.Popen(
            [sys.executable, "-m", "ingle", "serve", "--port", "0"],
            env={**os.environ, "INGLE_HOME": str(home)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        said = ""
        while "  stop" not in said:
            said += server.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found is not None
        try:
            print(json.dumps(asyncio.run(measure(found[0], (home / "token").read_text().strip(), count)), indent=2))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
