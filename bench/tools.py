"""`python bench/tools.py`: calls of tools from a cell, beside the SDK's own client, in one run.

Both call the same server on standard input and output, which answers at once. A second figure is a function of this
program that the cell calls back. The loops take turns, so that whatever else the machine does hits all alike; the ratio
is what to look at.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

# In the place of this folder, whose `mcp` is not the SDK.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mcp.client.client import Client as SdkClient
from mcp.client.stdio import StdioServerParameters

from bench.http_api import ingle_server
from bench.measure import median
from ingle import Client
from ingle.client import Session

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "tools.json"

SERVER_TARGET = 1.3
"""How many times the SDK's own call a tool of a server may take from a cell."""

FUNCTION_TARGET = 0.25
"""Milliseconds that a function of the client may take."""

SERVER = """
import json, sys
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "adds", "version": "1"}}
for line in sys.stdin.buffer:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        answer["result"] = {"protocolVersion": asked["params"]["protocolVersion"], **ABOUT}
    elif asked["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "add", "inputSchema": ADD}]}
    elif asked["method"] == "tools/call":
        total = sum(asked["params"]["arguments"].values())
        answer["result"] = {"content": [{"type": "text", "text": str(total)}], "structuredContent": {"sum": total}}
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""

LOOP = """
import time, tools
_began = time.perf_counter()
for _n in range({calls}):
    {call}
print((time.perf_counter() - _began) / {calls} * 1000)
"""

GATHER = """
import asyncio
_began = time.perf_counter()
for _n in range({calls} // 32):
    await asyncio.gather(*(tools.adds.add.aio(_m, 1) for _m in range(32)))
print((time.perf_counter() - _began) / ({calls} // 32 * 32) * 1000)
"""


def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


def in_cell(session: Session, code: str, calls: int, call: str = "") -> float:
    """Return the milliseconds of one call, as the cell measures them."""
    result = session.run(code.format(calls=calls, call=call))
    assert result.ok, result
    return float(result.stdout)


async def in_sdk(client: SdkClient, calls: int) -> float:
    began = time.perf_counter()
    for number in range(calls):
        await client.call_tool("add", {"a": number, "b": 1})
    return (time.perf_counter() - began) / calls * 1000


def judge(name: str, milliseconds: float, base: float) -> str:
    """Compare a row with its target, if it has one."""
    if name == "tool of a server":
        return f"  ≤ {SERVER_TARGET:g} times {'met' if milliseconds <= SERVER_TARGET * base else 'MISSED'}"
    if name == "function":
        return f"  ≤ {FUNCTION_TARGET:g} ms {'met' if milliseconds <= FUNCTION_TARGET else 'MISSED'}"
    return ""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; nothing written")
    args = parser.parse_args()
    batches, calls = 10, 100 if args.quick else 1000
    rows: dict[str, list[float]] = {"SDK's client": [], "tool of a server": [], "32 at once": [], "function": []}
    with tempfile.TemporaryDirectory() as folder:
        script, file = Path(folder, "server.py"), Path(folder, "servers.json")
        script.write_text(SERVER)
        command = {"command": sys.executable, "args": [str(script)]}
        file.write_text(json.dumps({"mcpServers": {"adds": command}}))
        with ingle_server("--preload", "", "--servers", str(file)) as server, Client(server.local) as ours:
            session = ours.session("bench")
            session.provide(add)
            async with SdkClient(StdioServerParameters(**command), mode="legacy", cache=None) as sdk:
                await sdk.list_tools()
                for batch in range(batches + 1):
                    taken = [
                        await in_sdk(sdk, calls),
                        await asyncio.to_thread(in_cell, session, LOOP, calls, "tools.adds.add(_n, 1)"),
                        await asyncio.to_thread(in_cell, session, GATHER, calls),
                        await asyncio.to_thread(in_cell, session, LOOP, calls, "tools.client.add(_n, 1)"),
                    ]
                    for row, each in zip(rows.values(), taken, strict=True):
                        row += [each] if batch else []  # the first one warms up
    base = median(rows["SDK's client"])
    print(f"{batches * calls} calls each, one after another    ms   times the SDK's client")
    for name, row in rows.items():
        print(f"{name:24} {median(row):18.3f} {median(row) / base:10.2f}{judge(name, median(row), base)}")
    if not args.quick:
        OUT.write_text(json.dumps({name: round(median(row), 4) for name, row in rows.items()}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
