"""ingle by the API of Jupyter beside Jupyter Server with ipykernel, with the same client for both.

A round trip ends with the reply and the `idle` of its request. A new context is a kernel that has answered a request.
Turn by turn, so that a noisy machine is noisy for both.

Where many clients run cells at once, all processes share the cores, the client among them. So the CPU time of a cell is
told for the server, the kernels and the client, and the rate of the same client with a server whose answers are
prepared: no server can be asked more often. Run: `python bench/compat.py [--quick]`.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import cpu_seconds, median, p95, together, tree

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "compat.json"
TARGET = 15.0
"""How many times quicker than Jupyter Server the first three figures mean to be."""

CLIENTS, CLIENT_ROUNDS = 16, 5
PATIENCE_SECONDS = 60.0
SPIN = "import time\nfor _ in range(600): time.sleep(0.1)"


class Kernel:
    """One client of one kernel."""

    def __init__(self, kernel_id: str, socket: ClientConnection) -> None:
        self.id = kernel_id
        self._socket = socket

    async def request(self, kind: str, **content: Any) -> str:
        header = {"msg_id": uuid4().hex, "msg_type": kind, "username": "", "session": "s", "date": "", "version": "5.3"}
        said = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}
        await self._socket.send(msgspec.json.encode({**said, "channel": "shell"}).decode())
        return header["msg_id"]

    async def finish(self, request: str, *, seen: str = "") -> None:
        """Wait for the reply and the end of a request, or for a message of the type `seen`."""
        left = {"reply", "idle"}
        while left:
            message = msgspec.json.decode(await self._socket.recv())
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == seen:
                return
            if message["msg_type"].endswith("_reply"):
                left.discard("reply")
            elif message["content"].get("execution_state") == "idle":
                left.discard("idle")

    async def execute(self, code: str = "1+1") -> None:
        await self.finish(await self.request("execute_request", code=code, silent=False, allow_stdin=False))

    async def close(self) -> None:
        await self._socket.close()


class Contestant:
    def __init__(self, url: str, token: str, pid: int) -> None:
        self.url, self.token, self.pid = url, token, pid
        self._headers = {"Authorization": f"token {token}"}
        self._http = httpx.AsyncClient(base_url=url, headers=self._headers, timeout=PATIENCE_SECONDS)

    async def new_kernel(self) -> Kernel:
        """Start a kernel, and wait until it answers."""
        made = (await self._http.post("/api/kernels", json={"name": "python3"})).raise_for_status().json()
        return await self.join(made["id"])

    async def join(self, kernel_id: str) -> Kernel:
        url = self.url.replace("http", "ws") + f"/api/kernels/{kernel_id}/channels?session_id={uuid4().hex}"
        socket = await connect(url, additional_headers=self._headers, max_size=None, compression=None)
        kernel = Kernel(kernel_id, socket)
        await kernel.finish(await kernel.request("kernel_info_request"))
        return kernel

    async def interrupt(self, kernel: Kernel) -> float:
        """Return the milliseconds from an interrupt to the end of the cell."""
        request = await kernel.request("execute_request", code="print('on', flush=True)\n" + SPIN, allow_stdin=False)
        await kernel.finish(request, seen="stream")
        began = time.perf_counter()
        (await self._http.post(f"/api/kernels/{kernel.id}/interrupt")).raise_for_status()
        await kernel.finish(request)
        return (time.perf_counter() - began) * 1000

    async def end(self, kernel: Kernel) -> None:
        await kernel.close()
        (await self._http.delete(f"/api/kernels/{kernel.id}")).raise_for_status()

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def ingle() -> AsyncIterator[Contestant]:
    with tempfile.TemporaryDirectory(prefix="ingle-bench-") as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "ingle", "serve", "--port", "0"],
            env={**os.environ, "INGLE_HOME": home},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = ""
        while "  stop" not in said:
            said += process.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found
        contestant = Contestant(found[0], (Path(home) / "token").read_text().strip(), process.pid)
        try:
            yield contestant
        finally:
            await contestant.close()
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@asynccontextmanager
async def jupyter_server(python: str) -> AsyncIterator[Contestant]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="jupyter-bench-") as home:
        command = [python, "-m", "jupyter_server", f"--port={port}", "--IdentityProvider.token=t", "--allow-root"]
        process = subprocess.Popen(
            [*command, "--no-browser", f"--ServerApp.root_dir={home}"],
            env={**os.environ, "HOME": home},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        contestant = Contestant(f"http://127.0.0.1:{port}", "t", process.pid)
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    await contestant._http.get("/api")
                    break
                except httpx.TransportError:
                    if time.monotonic() > end:
                        raise
                    await asyncio.sleep(0.1)
            yield contestant
        finally:
            await contestant.close()
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@asynccontextmanager
async def canned() -> AsyncIterator[Contestant]:
    """Serve answers that are prepared, for the rate of the client alone."""
    port = free_port()
    process = subprocess.Popen([sys.executable, Path(__file__).with_name("canned.py"), str(port)])
    contestant = Contestant(f"http://127.0.0.1:{port}", "t", process.pid)
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                await (await contestant.join("canned")).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)
        yield contestant
    finally:
        await contestant.close()
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@dataclass
class Load:
    """What many clients at once have cost, per cell."""

    rates: list[float] = field(default_factory=list)
    cells: int = 0
    server: float = 0.0
    kernels: float = 0.0
    client: float = 0.0

    async def run(self, pid: int, calls: list[Callable[[], Awaitable[object]]], times: int) -> None:
        kernels = [each for each in tree(pid) if each != pid]
        before = cpu_seconds([pid]), cpu_seconds(kernels), time.process_time()
        rate, _ = await together(calls, times)
        self.rates.append(rate)
        self.cells += len(calls) * times
        self.server += cpu_seconds([pid]) - before[0]
        self.kernels += cpu_seconds(kernels) - before[1]
        self.client += time.process_time() - before[2]

    @property
    def total(self) -> float:
        return self.server + self.kernels + self.client

    def microseconds(self, seconds: float) -> float:
        return seconds / self.cells * 1e6

    def figures(self) -> dict[str, float]:
        parts = {"server": self.server, "kernels": self.kernels, "client": self.client}
        return {"rate": median(self.rates), **{name: self.microseconds(part) for name, part in parts.items()}}

    def __str__(self) -> str:
        told = [f"{name} {value:.0f} µs" for name, value in self.figures().items() if name != "rate"]
        return f"{median(self.rates):.0f} cells/s; CPU of a cell: {', '.join(told)}"


def show_loads(loads: dict[str, Load]) -> None:
    """Print what a cell costs with many clients, and how far the client bounds the rates."""
    for name, load in loads.items():
        print(f"  {name:14} {load}")
    ours, theirs = loads["ingle"], loads["jupyter_server"]
    ratio = theirs.microseconds(theirs.total) / ours.microseconds(ours.total)
    inside = theirs.microseconds(theirs.total - theirs.client) / ours.microseconds(ours.total - ours.client)
    bound = 1e6 / ours.microseconds(ours.client)
    print(
        f"  CPU time: {ratio:.1f} times less for each cell, {inside:.1f} times without the client's; "
        f"the client's one thread can do {bound:.0f} cells/s at most"
    )


async def timed(times: list[float], call: Callable[[], Awaitable[object]]) -> object:
    began = time.perf_counter()
    answer = await call()
    times.append((time.perf_counter() - began) * 1000)
    return answer


async def measure(rounds: int, python: str) -> tuple[dict[str, dict[str, list[float]]], dict[str, Load]]:
    """Return the figures of both, in milliseconds, and cells a second for `clients`; and what the cells have cost."""
    got: dict[str, dict[str, list[float]]] = {}
    async with ingle() as ours, jupyter_server(python) as theirs, canned() as prepared:
        both = {"ingle": ours, "jupyter_server": theirs}
        kernels = {}
        for name, contestant in both.items():
            got[name] = {"round_trip": [], "new_context": [], "clients": [], "interrupt": []}
            kernels[name] = await contestant.new_kernel()
            for _ in range(20):
                await kernels[name].execute()
        for _ in range(rounds):
            for name in both:
                await timed(got[name]["round_trip"], kernels[name].execute)
        for _ in range(max(rounds // 20, 5)):
            for name, contestant in both.items():
                made = await timed(got[name]["new_context"], contestant.new_kernel)
                assert isinstance(made, Kernel)
                await contestant.end(made)
                got[name]["interrupt"].append(await contestant.interrupt(kernels[name]))
        many = {name: [await each.new_kernel() for _ in range(CLIENTS)] for name, each in both.items()}
        joined = {**many, "canned": [await prepared.join("canned") for _ in range(CLIENTS)]}
        pids = {"ingle": ours.pid, "jupyter_server": theirs.pid, "canned": prepared.pid}
        loads = {name: Load() for name in joined}
        for _ in range(CLIENT_ROUNDS):
            for name, load in loads.items():
                await load.run(pids[name], [each.execute for each in joined[name]], max(rounds // 4, 20))
        for kernel in joined["canned"]:
            await kernel.close()
        for name in both:
            got[name]["clients"] = loads[name].rates
        for name, contestant in both.items():
            for kernel in (*many[name], kernels[name]):
                await contestant.end(kernel)
    return got, loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, nothing written")
    parser.add_argument("--jupyter", default=sys.executable, help="interpreter that has jupyter_server and ipykernel")
    args = parser.parse_args()
    import uvloop

    got, loads = uvloop.run(measure(60 if args.quick else 300, args.jupyter))
    ours, theirs = got["ingle"], got["jupyter_server"]
    ratios = {}
    for name, times in ours.items():
        unit = "cells/s" if name == "clients" else "ms"
        quicker = median(times) / median(theirs[name]) if name == "clients" else median(theirs[name]) / median(times)
        ratios[name] = round(quicker, 1)
        target = "" if name == "interrupt" else f", ≥ {TARGET:g} {'met' if quicker >= TARGET else 'MISSED'}"
        print(
            f"{name:12} ingle {median(times):9.2f} {unit}   jupyter_server {median(theirs[name]):9.2f} {unit}   "
            f"{quicker:6.1f} times{target}"
        )
    show_loads(loads)
    if not args.quick:
        figures = {
            who: {name: {"median": median(times), "p95": p95(times)} for name, times in each.items()}
            for who, each in got.items()
        }
        costs = {name: load.figures() for name, load in loads.items()}
        written = {"machine": platform.platform(), "ratios": ratios, "figures": figures, "16 clients": costs}
        OUT.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
