"""ingle by the API of E2B, as its SDK sends it, beside Jupyter Server with ipykernel.

E2B's own server is not on PyPI. It is an app in front of a Jupyter Server with ipykernel, so that it cannot be quicker
than these; here the versions that it pins stand for it, in a virtual environment in build/bench. Each is asked in its
own protocol, with one connection for each client. Turn by turn, so that a noisy machine is noisy for both.
Run: `python bench/compat_e2b.py [--quick]`.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

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

VENV = ROOT / "build" / "bench" / "e2b-parts"

TARGET = 15.0
"""How many times quicker than Jupyter Server the first three figures mean to be."""


class Context:
    """A context of a sandbox, and a client with the token of the sandbox."""

    def __init__(self, client: httpx.AsyncClient, context_id: str | None = None) -> None:
        self._client = client
        self._id = context_id

    async def run(self, code: str = "1") -> str:
        body = {"code": code, "context_id": self._id, "language": None, "env_vars": None}
        return (await self._client.post("/execute", json=body)).raise_for_status().text

    async def new_context(self) -> "Context":
        """Return one more context of the sandbox that has run code."""
        made = Context(self._client, (await self._client.post("/contexts", json={})).raise_for_status().json()["id"])
        await made.run()
        return made

    async def end(self) -> None:
        (await self._client.delete(f"/contexts/{self._id}")).raise_for_status()

    async def interrupt(self) -> None:
        """Begin a run, leave it, and run the next code."""
        body = {"code": "print(1, flush=True)\nimport time; time.sleep(60)"}
        async with self._client.stream("POST", "/execute", json=body) as answer:
            async for line in answer.aiter_lines():
                if '"stdout"' in line:
                    break
        assert '"text":"2"' in await self.run("1 + 1")

    async def close(self) -> None:
        await self._client.aclose()


async def new_sandbox(url: str, token: str) -> Context:
    async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": token}, timeout=60) as control:
        answer = await control.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600})
        made = answer.raise_for_status().json()
    headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
    return Context(httpx.AsyncClient(base_url=url, headers=headers, timeout=60))


def install_parts() -> str:
    """Return the interpreter of a virtual environment with the parts of E2B's server."""
    python, stamp = VENV / "bin" / "python", VENV / "stamp"
    if not stamp.is_file() or stamp.read_text() != "\n".join(PARTS):
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([python, ROOT / "tools" / "install.py", *PARTS], check=True)
        stamp.write_text("\n".join(PARTS))
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
            await each.close()
        for each_kernel in (kernel, *kernels):
            await jupyter.end(each_kernel)
    return got, loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--jupyter", help="interpreter that has jupyter_server and ipykernel; default: E2B's versions")
    args = parser.parse_args()
    import uvloop

    show_parts()
    got, loads = uvloop.run(measure(60 if args.quick else 300, args.jupyter or install_parts()))
    for name, times in got["ingle"].items():
        unit, other = ("runs/s" if name == "clients" else "ms"), median(got["jupyter_server"][name])
        quicker = median(times) / other if name == "clients" else other / median(times)
        target = "" if name == "interrupt" else f", target {TARGET:g}"
        print(
            f"{name:14} ingle {median(times):9.2f} {unit}   jupyter_server {other:9.2f} {unit}   "
            f"{quicker:6.1f} times{target}"
        )
    show_loads(loads)


if __name__ == "__main__":
    main()
