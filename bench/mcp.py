"""`python bench/mcp.py`: the MCP door over stdio, beside the SDK's own server and other REPL servers, in one run.

Every contestant is spoken to by the same few lines of JSON, so the client costs each the same. The others come from
PyPI into environments of their own under `.venv-bench/`, made when they are missing (`--quick` leaves them out). Times
depend on the machine; the ratios, taken in the same minutes, are what to look at.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median, p95

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "bench" / "mcp.json"
ENVIRONMENTS = ROOT / ".venv-bench"

NO_OP = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("noop")
@server.tool()
def noop(code: str) -> str:
    return "2"
server.run("stdio")
"""

PRINTS = 200


@dataclass
class Contestant:
    name: str
    command: list[str]
    tool: str
    argument: str = "code"
    before: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    rounds: int = 300


class Talk:
    """One server and the plainest client there can be."""

    def __init__(self, contestant: Contestant, folder: str) -> None:
        self._contestant = contestant
        self._number = 0
        self._process = subprocess.Popen(
            contestant.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **contestant.environment},
        )

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if answer.get("id") == self._number and "method" not in answer:
                    assert "result" in answer, answer
                    result: dict[str, Any] = answer["result"]
                    return result
        raise RuntimeError(f"{self._contestant.name} has ended")

    def begin(self) -> None:
        client = {"name": "bench", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        assert self._process.stdin is not None
        self._process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        self._process.stdin.flush()

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def run(self, code: str) -> str:
        each = self._contestant
        return json.dumps(self.call(each.tool, {each.argument: code, **each.more}))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def measure(contestant: Contestant, folder: str) -> dict[str, float]:
    """Seconds to the first listing and the first cell, milliseconds of a short call, prints that arrived."""
    began = time.perf_counter()
    talk = Talk(contestant, folder)
    try:
        talk.begin()
        talk.ask("tools/list", {})
        listed = time.perf_counter() - began
        for tool, arguments in contestant.before:
            talk.call(tool, arguments)
        began = time.perf_counter()
        talk.run("1+1")
        first = time.perf_counter() - began
        for _ in range(min(20, contestant.rounds)):
            talk.run("1+1")
        times = []
        for _ in range(contestant.rounds):
            began = time.perf_counter()
            talk.run("1+1")
            times.append((time.perf_counter() - began) * 1000)
        figures = {"listed": listed, "first": first, "p50": median(times), "p95": p95(times)}
        if contestant.tool != "noop" and contestant.rounds >= PRINTS:
            figures["prints"] = sum(f"mark-{n}-" in talk.run(f"print('mark-{n}-')") for n in range(PRINTS))
        return figures
    finally:
        talk.end()


def side_by_side(contestants: list[Contestant], folder: str, batches: int = 40, size: int = 50) -> list[list[float]]:
    """Milliseconds of short calls, in turns, so that whatever else the machine does hits all alike."""
    talks = [Talk(each, folder) for each in contestants]
    times: list[list[float]] = [[] for _ in talks]
    try:
        for talk in talks:
            talk.begin()
            for _ in range(size):
                talk.run("1+1")
        for _ in range(batches):
            for talk, taken in zip(talks, times, strict=True):
                for _ in range(size):
                    began = time.perf_counter()
                    talk.run("1+1")
                    taken.append((time.perf_counter() - began) * 1000)
    finally:
        for talk in talks:
            talk.end()
    return times


def program(package: str, *pinned: str) -> Path:
    """A package's environment, made if it is missing."""
    folder = ENVIRONMENTS / package
    if not (folder / ".done").exists():
        print(f"  installing {package}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, package, *pinned], check=True)
        (folder / ".done").touch()
    return folder / "bin"


@contextlib.contextmanager
def jupyter_lab(folder: str) -> Iterator[str]:
    """A Jupyter server for those who need one; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = str(program("jupyter-mcp-server") / "jupyter-lab")
    options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--IdentityProvider.token=bench"]
    process = subprocess.Popen([lab, *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ours(home: str, *flags: str) -> Contestant:
    command = [sys.executable, "-m", "ingle", "mcp", *flags]
    return Contestant("ingle", command, "python_session", environment={"INGLE_HOME": home}, rounds=PRINTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ingle and the SDK's own server only; nothing written")
    args = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}

    def take(contestant: Contestant) -> None:
        print(f"  {contestant.name}", file=sys.stderr, flush=True)
        rows[contestant.name] = measure(contestant, folder)

    with tempfile.TemporaryDirectory() as folder:
        pair = [ours(folder + "/home"), Contestant("no-op on MCPServer", [sys.executable, "-c", NO_OP], "noop")]
        for contestant in pair:
            take(contestant)
        for contestant, times in zip(pair, side_by_side(pair, folder), strict=True):
            rows[contestant.name] |= {"p50": median(times), "p95": p95(times)}
        if not args.quick:
            posit = str(program("posit-mcp-repl") / "posit-mcp-repl")
            flags = ["--interpreter", "python", "--sandbox", "danger-full-access"]
            take(Contestant("posit-mcp-repl", [posit, *flags], "repl", "input", rounds=PRINTS))
            ipybox = str(program("ipybox", "mcp<2") / "ipybox")
            take(Contestant("ipybox", [ipybox, "--workspace", folder], "execute_ipython_cell", rounds=PRINTS))
            with jupyter_lab(folder) as url:
                command = [str(program("jupyter-mcp-server") / "jupyter-mcp-server"), "--transport", "stdio"]
                environment = {"JUPYTER_URL": url, "JUPYTER_TOKEN": "bench"}
                notebook = {"notebook_name": "bench", "notebook_path": "bench.ipynb", "mode": "create"}
                before = [("use_notebook", notebook)]
                take(Contestant("jupyter-mcp-server", command, "execute_code", before=before,
                                environment=environment, rounds=20))  # fmt: skip
    base = rows["ingle"]["p50"]
    print(f"{'':22} {'tools/list s':>13} {'first cell s':>13} {'p50 ms':>9} {'p95 ms':>9} {'times ingle':>12}  prints")
    for name, row in rows.items():
        prints = f"{row['prints']:.0f} of {PRINTS}" if "prints" in row else ""
        print(
            f"{name:22} {row['listed']:13.2f} {row['first']:13.3f} {row['p50']:9.3f} {row['p95']:9.3f} "
            f"{row['p50'] / base:11.1f}x  {prints}"
        )
    if not args.quick:
        about = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(about, indent=1) + "\n")
        print(f"written: {OUT}", file=sys.stderr)


if __name__ == "__main__":
    main()
