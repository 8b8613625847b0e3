"""ingle by the API of E2B beside Jupyter Server with ipykernel, and the SDK of E2B as a client of ingle.

E2B's own server is not on PyPI. It is an app in front of a Jupyter Server with ipykernel, so that it cannot be quicker
than these; here the versions that it pins stand for it, in a virtual environment in build/bench. Each is asked in its
own protocol by a client that does little more than the protocol needs: plain HTTP over kept connections for ingle, a
WebSocket for each kernel for Jupyter Server. Both clients are in this one process, and both sides take turns, so that
a noisy machine is noisy for both.

The SDK takes more CPU time for a run than the server does. So its figures stand apart, beside that time: they tell
what its users get, and little of the server. Run: `python bench/compat_e2b.py [--quick]`.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import compat
from bench.compat import CLIENT_ROUNDS, CLIENTS, Kernel, Load, show_loads, timed
from bench.measure import median

ROOT = Path(__file__).resolve().parent.parent

PARTS = {
    "jupyter-server==2.20.0": "runs the kernels of E2B's server",
    "ipykernel==6.31.0": "its kernel",
}
"""Parts of E2B's server that install from PyPI, in the versions that it pins."""

MISSING = {
    "template/server": "the app in front of them is in E2B's repository only; it adds its own time to theirs",
    "envd": "a Go program of the virtual machine, for files and commands; it is on no package index",
    "the control plane": "it starts virtual machines with Firecracker, and is on no package index",
}
"""Parts that do not, with the reason."""

SDK = (ROOT / "tests" / "compat" / "e2b_client" / "requirements.txt").read_text().split()

TARGET = 15.0
"""How many times quicker than Jupyter Server the first three figures mean to be."""


class Connection(asyncio.Protocol):
    """Kept connection of plain HTTP, for one request at a time. It is opened anew if the server has closed it."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._address = urlsplit(url)
        given = {"Host": self._address.netloc, **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._transport: Any = None
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    async def begin(self, method: str, path: str, body: Any = None) -> "asyncio.Future[bytes]":
        """Send a request. The result is the body of its answer."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, self._address.hostname, self._address.port)
        data = b"" if body is None else msgspec.json.encode(body)
        self._data = b""
        self._answer = loop.create_future()
        self._transport.write(
            f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        )
        return self._answer

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the body of the answer to a request."""
        return await (await self.begin(method, path, body))

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or self._answer is None or self._answer.done():
            return
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not head.startswith(b"HTTP/1.1 20"):
            self._answer.set_exception(AssertionError(self._data))
        elif length and len(body) == int(length):
            self._answer.set_result(body)
        elif not length and (head.startswith(b"HTTP/1.1 204") or body.endswith(b"0\r\n\r\n")):
            self._answer.set_result(body)  # in chunks: what is looked for in it is in no length of one

    async def wait_for(self, text: bytes) -> None:
        """Wait until this text is in the answer that is coming."""
        while text not in self._data:
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self._answer = None
        self._transport.close()


class Context:
    """A context of a sandbox, and a connection with the token of the sandbox."""

    def __init__(self, url: str, headers: dict[str, str], connection: Connection, context_id: str | None) -> None:
        self._url, self._headers = url, headers
        self._connection = connection
        self._id = context_id

    async def run(self, code: str = "1") -> bytes:
        body = {"code": code, "context_id": self._id, "language": None, "env_vars": None}
        answer = await self._connection.ask("POST", "/execute", body)
        assert b"end_of_execution" in answer, answer
        return answer

    async def new_context(self) -> "Context":
        """Return one more context of the sandbox that has run code."""
        described = msgspec.json.decode(await self._connection.ask("POST", "/contexts", {}))
        made = Context(self._url, self._headers, self._connection, described["id"])
        await made.run()
        return made

    async def end(self) -> None:
        await self._connection.ask("DELETE", f"/contexts/{self._id}")

    async def interrupt(self) -> None:
        """Begin a run, leave it, and run the next code."""
        other = Connection(self._url, self._headers)
        await other.begin("POST", "/execute", {"code": "print(1, flush=True)\nimport time; time.sleep(60)"})
        await other.wait_for(b'"stdout"')
        other.close()
        assert b'"text":"2"' in await self.run("1 + 1")

    def close(self) -> None:
        self._connection.close()


async def new_sandbox(url: str, token: str) -> Context:
    control = Connection(url, {"X-API-Key": token})
    made = msgspec.json.decode(await control.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600}))
    control.close()
    headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
    return Context(url, headers, Connection(url, headers), None)


def install(folder: str, packages: Iterable[str]) -> str:
    """Return the interpreter of a virtual environment with these packages."""
    venv = ROOT / "build" / "bench" / folder
    python, stamp = venv / "bin" / "python", venv / "stamp"
    if not stamp.is_file() or stamp.read_text() != "\n".join(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, ROOT / "tools" / "install.py", *packages], check=True)
        stamp.write_text("\n".join(packages))
    return str(python)


def show_parts() -> None:
    for name, what in PARTS.items():
        print(f"measured: {name} ({what})")
    for name, why in MISSING.items():
        print(f"not measured: {name} ({why})")


async def measure(rounds: int, python: str) -> tuple[dict[str, dict[str, list[float]]], dict[str, Load]]:
    """Return the figures of both, in milliseconds, and runs a second for `clients`; and what the runs have cost."""
    names = ("run_code", "create_context", "clients", "interrupt")
    got: dict[str, dict[str, list[float]]] = {who: {name: [] for name in names} for who in ("ingle", "jupyter_server")}
    ours, theirs = got["ingle"], got["jupyter_server"]
    async with compat.ingle() as served, compat.jupyter_server(python) as jupyter:
        sandbox, kernel = await new_sandbox(served.url, served.token), await jupyter.new_kernel()
        for _ in range(20):
            await sandbox.run()
            await kernel.execute()
        for _ in range(rounds):
            await timed(ours["run_code"], sandbox.run)
            await timed(theirs["run_code"], kernel.execute)
        for _ in range(max(rounds // 20, 5)):
            made: Any = await timed(ours["create_context"], sandbox.new_context)
            await made.end()
            started: Any = await timed(theirs["create_context"], jupyter.new_kernel)
            assert isinstance(started, Kernel)
            await jupyter.end(started)
            await timed(ours["interrupt"], sandbox.interrupt)
            theirs["interrupt"].append(await jupyter.interrupt(kernel))
        sandboxes = [await new_sandbox(served.url, served.token) for _ in range(CLIENTS)]
        kernels = [await jupyter.new_kernel() for _ in range(CLIENTS)]
        loads = {"ingle": Load(), "jupyter_server": Load()}
        for _ in range(CLIENT_ROUNDS):
            times = max(rounds // 4, 20)
            await loads["ingle"].run(served.pid, [each.run for each in sandboxes], times)
            await loads["jupyter_server"].run(jupyter.pid, [each.execute for each in kernels], times)
        ours["clients"], theirs["clients"] = loads["ingle"].rates, loads["jupyter_server"].rates
        for each in (sandbox, *sandboxes):
            each.close()
        for each_kernel in (kernel, *kernels):
            await jupyter.end(each_kernel)
    return got, loads


async def measure_sdk(rounds: int, python: str) -> dict[str, float]:
    """Return the figures of the SDK with ingle, and its CPU time of a run."""
    async with compat.ingle() as served:
        there = {"E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token}
        command = [python, str(Path(__file__).with_name("e2b_sdk.py")), str(rounds), str(CLIENTS)]
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **there}, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(f"the SDK ended with {process.returncode}")
        return msgspec.json.decode(said, type=dict[str, float])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--jupyter", help="interpreter that has jupyter_server and ipykernel; default: E2B's versions")
    args = parser.parse_args()
    import uvloop

    show_parts()
    rounds = 60 if args.quick else 300
    got, loads = uvloop.run(measure(rounds, args.jupyter or install("e2b-parts", PARTS)))
    for name, times in got["ingle"].items():
        unit, other = ("runs/s" if name == "clients" else "ms"), median(got["jupyter_server"][name])
        quicker = median(times) / other if name == "clients" else other / median(times)
        target = "" if name == "interrupt" else f", ≥ {TARGET:g} {'met' if quicker >= TARGET else 'MISSED'}"
        print(
            f"{name:14} ingle {median(times):9.2f} {unit}   jupyter_server {other:9.2f} {unit}   "
            f"{quicker:6.1f} times{target}"
        )
    show_loads(loads)
    sdk = uvloop.run(measure_sdk(rounds, install("e2b-sdk", SDK)))
    print(
        f"the SDK with ingle: run_code {sdk['run_code']:.2f} ms, create_context {sdk['create_context']:.2f} ms, "
        f"{CLIENTS} clients {sdk['clients']:.0f} runs/s; CPU of a run in the SDK: {sdk['cpu_microseconds']:.0f} µs"
    )


if __name__ == "__main__":
    main()
