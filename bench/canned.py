"""Kernel server without a kernel: each request gets the messages that ingle would send, prepared beforehand.

Its rate is the most that the client of `bench/compat.py` can ask for. That script runs it: `canned.py PORT`.
"""

import asyncio
import json
import sys

import msgspec
from websockets.asyncio.server import ServerConnection, serve

HEADER = {
    "msg_id": "0123456789abcdef0123456789abcdef_1",
    "username": "ingle",
    "session": "0123456789abcdef0123456789abcdef",
    "date": "2026-01-01T00:00:00.000000Z",
    "version": "5.4",
}
PARENT = "PARENT"
"""Stands for the header of the request in a prepared message."""


def prepared(channel: str, kind: str, content: dict[str, object]) -> tuple[str, str]:
    """Return a message as the texts before and after the header of its request."""
    said = {"header": {**HEADER, "msg_type": kind}, "msg_id": HEADER["msg_id"], "msg_type": kind}
    said |= {"parent_header": PARENT, "metadata": {}, "content": content, "buffers": [], "channel": channel}
    before, after = json.dumps(said).split(json.dumps(PARENT))
    return before, after


BUSY, IDLE = (prepared("iopub", "status", {"execution_state": state}) for state in ("busy", "idle"))
ANSWERS = {
    "execute_request": [
        BUSY,
        prepared("iopub", "execute_input", {"code": "1+1", "execution_count": 1}),
        prepared("iopub", "execute_result", {"data": {"text/plain": "2"}, "metadata": {}, "execution_count": 1}),
        prepared(
            "shell", "execute_reply", {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}
        ),
        IDLE,
    ],
    "kernel_info_request": [BUSY, prepared("shell", "kernel_info_reply", {"status": "ok"}), IDLE],
}


async def answer(connection: ServerConnection) -> None:
    async for frame in connection:
        header = msgspec.json.decode(frame)["header"]
        parent = msgspec.json.encode(header).decode()
        for before, after in ANSWERS[header["msg_type"]]:
            await connection.send(f"{before}{parent}{after}")


async def main(port: int) -> None:
    async with serve(answer, "127.0.0.1", port, compression=None) as server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
