"""Many clients at once, each with a session of its own that it streams from, every event checked."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from support.server import PATIENCE, Server

LONG_SECONDS = 300.0
"""Time for one of thousands of cells."""


class Client:
    """One kept connection that reads chunked answers: light enough that two hundred do not measure themselves."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._server = server
        self._token = token or server.token

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=1 << 20)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, path: str, body: Any, headers: str = "") -> list[dict[str, Any]]:
        """The objects in the answer: one, or one a line."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n{headers}"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        top = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert top.split()[1] in ("200", "201"), top
        if "content-length: " in top:
            size = int(top.partition("content-length: ")[2].split("\r")[0])
            return [json.loads(await self._reader.readexactly(size))]
        whole = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            whole += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return [json.loads(line) for line in whole.splitlines()]


async def stream_from_many(server: Server, sessions: int, executes: int) -> dict[str, float]:
    """Run so many cells in so many sessions at once; fail on anything lost, doubled or crossed. How long cells took."""
    times: list[float] = []
    running = most = 0
    all_made = asyncio.Barrier(sessions)

    async def work(name: str) -> None:
        nonlocal running, most
        client = Client(server)
        await client.open()
        await client.ask("/v1/sessions", {"session_id": name})
        # Else the first are done before the last are made, where that takes longer than their cells do.
        await all_made.wait()
        following = 0
        for number in range(1, executes // sessions + 1):
            code = f"print('{name}', {number})\nprint('{name}' * 20)\n'{name}-{number}'"
            began = time.perf_counter()
            running += 1
            most = max(most, running)
            async with asyncio.timeout(PATIENCE):
                events = await client.ask(
                    f"/v1/sessions/{name}/execute", {"code": code}, "Accept: application/x-ndjson\r\n"
                )
            running -= 1
            times.append(time.perf_counter() - began)
            assert {(event["session_id"], event["cell"]) for event in events} == {(name, number)}
            seqs = [event["seq"] for event in events]
            assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
            assert seqs[0] >= following
            following = seqs[-1] + 1
            text = "".join(event["text"] for event in events if event["type"] == "stdout")
            assert text == f"{name} {number}\n{name * 20}\n"
            assert [event["data"] for event in events if event["type"] == "result"] == [
                {"text/plain": f"'{name}-{number}'"}
            ]
            assert [event["type"] for event in events].count("done") == 1
        client.close()

    await asyncio.gather(*(work(f"s{number}") for number in range(sessions)))
    assert len(times) == executes
    # They did run at once.
    assert most >= sessions // 2
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)], "max": times[-1]}


async def ask_at_once(server: Server, count: int) -> None:
    """Make so many sessions at once and run a cell in each. Each request is answered well."""
    answers: list[int] = []

    async def live(number: int) -> None:
        client = Client(server)
        await client.open()
        await client.ask("/v1/sessions", {"session_id": f"s{number}"})
        body = {"code": f"{number} + 1", "wait": LONG_SECONDS}
        (result,) = await client.ask(f"/v1/sessions/s{number}/execute", body)
        client.close()
        assert result["result"] == {"text/plain": str(number + 1)}
        answers.append(number)

    await asyncio.gather(*(live(number) for number in range(count)))
    assert sorted(answers) == list(range(count))
    assert len(server.client.get("/v1/sessions").json()["sessions"]) == count
