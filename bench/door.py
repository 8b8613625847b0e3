"""The HTTP door under load, beside jupyter_server: `python bench/door.py`.

Both serve sixteen clients, each with a session (a kernel) of its own, on one machine that also makes the load. ingle's
client sends requests over kept connections; jupyter_server's begins kernels over REST and runs code over the
WebSocket of each, as its own clients do.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median, p95

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "http.json"

CLIENTS = 16
CODE = "x = 1"
TICKS = os.sysconf("SC_CLK_TCK")


# --- ingle ---


@dataclass
class Server:
    pid: int
    port: int
    token: str

    def cpu(self) -> float:
        """Seconds of CPU of the server itself, not of its sessions."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def request(self, method: str, path: str, body: Any = None, headers: str = "") -> bytes:
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n{headers}"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@contextlib.contextmanager
def ingle_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as home:
        token = secrets.token_urlsafe()
        process = subprocess.Popen(
            [sys.executable, "-m", "ingle", "serve", "--port", "0", "--preload", ""],
            env={**os.environ, "INGLE_HOME": home, "INGLE_TOKEN": token},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = "".join(iter(process.stderr.readline, "  stop    Ctrl-C\n"))
        found = re.search(r":(\d+)", said)
        assert found, said
        try:
            yield Server(process.pid, int(found[1]), token)
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


class Client(asyncio.Protocol):
    """One connection, one request at a time, answers of a known length: as little as a client can do."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._data.find(b"content-length: ")
        size = int(self._data[at + 16 : self._data.find(b"\r", at)])
        if len(self._data) >= end + 4 + size:
            answer, self._data = bytes(self._data), bytearray()
            assert self._answer is not None
            self._answer.set_result(answer)

    async def ask(self, request: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answer
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), answer
        return answer


async def clients(server: Server, count: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, "127.0.0.1", server.port))[1] for _ in range(count)]


async def ingle_figures(server: Server, rounds: int, size: int) -> dict[str, float]:
    connections = await clients(server, CLIENTS)
    executes = []
    for number, client in enumerate(connections):
        await client.ask(server.request("POST", "/v1/sessions", {"session_id": f"s{number}"}))
        executes.append(server.request("POST", f"/v1/sessions/s{number}/execute", {"code": CODE}))
    nothing = [server.request("GET", "/healthz")] * CLIENTS

    async def load(requests: list[bytes], count: int) -> tuple[float, float]:
        """Requests a second, and seconds of the server's CPU for each."""

        async def work(client: Client, request: bytes) -> None:
            for _ in range(count):
                await client.ask(request)

        began, cpu = time.perf_counter(), server.cpu()
        await asyncio.gather(*(work(*pair) for pair in zip(connections, requests, strict=True)))
        took, used = time.perf_counter() - began, server.cpu() - cpu
        return CLIENTS * count / took, used / (CLIENTS * count)

    await load(executes, 50)
    no_ops, no_op_cpu = await load(nothing, rounds)
    per_second, execute_cpu = await load(executes, rounds)

    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await connections[0].ask(executes[0])
        times.append(time.perf_counter() - began)
    code = f"line = 'x' * 99 + '\\n'\nimport sys\nfor _ in range({size // 100 // 100}): sys.stdout.write(line * 100)"
    streamed = await asyncio.to_thread(stream, server, code, size)
    return {
        "executes per second": per_second,
        "no-ops per second": no_ops,
        "execute, CPU µs": execute_cpu * 1e6,
        "no-op, CPU µs": no_op_cpu * 1e6,
        "execute over no-op, CPU µs": (execute_cpu - no_op_cpu) * 1e6,
        "latency p50, ms": median(times) * 1e3,
        "latency p95, ms": p95(times) * 1e3,
        "streamed, MB per second": streamed / 1e6,
    }


def stream(server: Server, code: str, size: int) -> float:
    """Bytes of output a second that a client sees in an NDJSON stream."""
    headers = "Accept: application/x-ndjson\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        began = time.perf_counter()
        connection.sendall(server.request("POST", "/v1/sessions/s0/execute", {"code": code}, headers))
        data = bytearray()
        while chunk := connection.recv(1 << 20):
            data += chunk
        took = time.perf_counter() - began
    assert data.count(b"x") >= size // 100 * 99, "some of the output is missing"
    return size / took


# --- jupyter_server ---


@contextlib.contextmanager
def jupyter_server() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port, token = free.getsockname()[1], secrets.token_hex()
        free.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", f"--ServerApp.port={port}", "--ServerApp.open_browser=False",
             f"--IdentityProvider.token={token}", "--allow-root", f"--ServerApp.root_dir={home}"],
            env={**os.environ, "JUPYTER_CONFIG_DIR": home, "JUPYTER_RUNTIME_DIR": home, "JUPYTER_DATA_DIR": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}").close()
                    break
                time.sleep(0.1)
            yield f"127.0.0.1:{port}", token
        finally:
            process.terminate()
            process.wait()


async def jupyter_figures(address: str, token: str, rounds: int) -> dict[str, float]:
    import httpx
    from websockets.asyncio.client import connect

    headers = {"Authorization": f"token {token}"}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers, timeout=120) as client:
        kernels = [(await client.post("/api/kernels")).json()["id"] for _ in range(CLIENTS)]
    sockets = [
        await connect(f"ws://{address}/api/kernels/{kernel}/channels", additional_headers=headers, max_size=None)
        for kernel in kernels
    ]

    async def run(connection: Any) -> None:
        name = secrets.token_hex(8)
        content = {"code": CODE, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        header = {"msg_id": name, "username": "", "session": name, "msg_type": "execute_request", "version": "5.3"}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await connection.send(json.dumps(message))
        replied = idle = False
        while not (replied and idle):
            said = json.loads(await connection.recv())
            if said["parent_header"].get("msg_id") == name:
                replied = replied or said["msg_type"] == "execute_reply"
                idle = idle or (said["msg_type"] == "status" and said["content"]["execution_state"] == "idle")

    async def work(connection: Any, count: int) -> None:
        for _ in range(count):
            await run(connection)

    await asyncio.gather(*(work(connection, 3) for connection in sockets))
    began = time.perf_counter()
    await asyncio.gather(*(work(connection, rounds) for connection in sockets))
    per_second = CLIENTS * rounds / (time.perf_counter() - began)
    times = []
    for _ in range(rounds * 2):
        began = time.perf_counter()
        await run(sockets[0])
        times.append(time.perf_counter() - began)
    for connection in sockets:
        await connection.close()
    return {"executes per second": per_second, "latency p50, ms": median(times) * 1e3}


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds: a look, not a measurement")
    parser.add_argument("--ours", action="store_true", help="ingle only, nothing written")
    args = parser.parse_args()
    share = 5 if args.quick else 1
    with ingle_server() as server:
        ours = uvloop.run(ingle_figures(server, 2000 // share, 200_000_000 // share))
    for name, value in ours.items():
        print(f"{name:32} {value:12,.2f}")
    if args.ours:
        return
    with jupyter_server() as (address, token):
        peer = uvloop.run(jupyter_figures(address, token, 40 // share))
    for name, value in peer.items():
        print(f"jupyter_server, {name:26} {value:8,.2f}  {max(ours[name] / value, value / ours[name]):.1f}x")
    OUT.write_text(json.dumps({"ingle": ours, "jupyter_server": peer}, indent=1) + "\n")


if __name__ == "__main__":
    main()
