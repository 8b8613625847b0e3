"""`python bench/tokens.py`: characters in a model's context for one task, with code and with plain calls of tools.

The task: a server has twenty tools, and one of them returns a table of 200 orders, ten a page. The model has to add up
the paid ones of one country. With plain calls it reads the descriptions of all tools and every page. With code it reads
`python_session` and `search_tools`, finds the tool, writes a loop, and reads the sum. Both are counted as the host puts
them into the context: listings, arguments and results.

The ratio depends on the length of a row, so there are two tables. Long rows are orders as shops have them, with
customer, address and items; short ones lack these. The target is for long rows. Name one to measure it alone.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# In the place of this folder, whose `mcp` is not the SDK.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

TARGET = 20

SERVER = """
import json, sys
NAMES = ("list_orders get_order create_order cancel_order refund_order list_customers get_customer create_customer "
         "update_customer merge_customers list_products get_product create_product set_price list_invoices get_invoice "
         "send_invoice list_shipments track_shipment create_label").split()
ORDERS = [
    {"id": n, "country": ("SE", "DE", "FR", "IT")[n % 4], "paid": n % 3 != 0, "total": 10 + n * 7 % 90,
     "currency": "EUR", "placed": f"2026-10-{n % 28 + 1:02}T09:15:00Z", "note": "leave at the door",
     "customer": {"id": n % 17, "name": f"Customer {n % 17}", "email": f"customer{n % 17}@example.org"},
     "address": {"street": f"Long Street {n}", "city": "Springfield", "postcode": f"{10000 + n}"},
     "items": [{"product": f"product-{n % 9}", "count": 1 + n % 3, "price": 5}, {"product": "wrapping", "count": 1}]}
    for n in range(200)
]
if sys.argv[1:] == ["short"]:
    ORDERS = [{key: each[key] for key in each if key not in ("customer", "address", "items")} for each in ORDERS]
def tool(name):
    verb, thing = name.split("_")
    properties = {
        "page": {"type": "integer", "description": "Page of the listing, from 0; ten entries each."},
        "id": {"type": "integer", "description": f"Number of the {thing}, as listings show it."},
        "fields": {"type": "array", "items": {"type": "string"}, "description": "Fields to return; all by default."},
        "reason": {"type": "string", "description": "Text for the log of the shop, shown to people of the office."},
    }
    text = f"{verb.capitalize()} {thing} of the shop. For questions about {thing}. Needs the right to {verb}."
    return {"name": name, "description": text, "inputSchema": {"type": "object", "properties": properties}}
for line in sys.stdin.buffer:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}
        answer["result"] = {"protocolVersion": asked["params"]["protocolVersion"], **about}
    elif asked["method"] == "tools/list":
        answer["result"] = {"tools": [tool(name) for name in NAMES]}
    elif asked["method"] == "tools/call":
        page = asked["params"]["arguments"].get("page", 0)
        found = {"orders": ORDERS[page * 10 : page * 10 + 10], "more": page < 19}
        answer["result"] = {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": found}
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""

CODE = """
import tools
total, page, more = 0, 0, True
while more:
    found = tools.shop.list_orders(page=page)
    total += sum(each["total"] for each in found["orders"] if each["paid"] and each["country"] == "SE")
    page, more = page + 1, found["more"]
total
"""


class Context:
    """What a model reads and writes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.characters = 0

    async def list(self, names: "set[str] | None" = None) -> None:
        """Read the descriptions of tools."""
        for tool in (await self._client.list_tools()).tools:
            if names is None or tool.name in names:
                self._count({"name": tool.name, "description": tool.description, "schema": tool.input_schema})

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool, and read its result."""
        self._count({"name": name, "arguments": arguments})
        result = await self._client.call_tool(name, arguments)
        assert not result.is_error, result
        text = "".join(getattr(block, "text", "") for block in result.content)
        self.characters += len(text)
        return text

    def _count(self, value: Any) -> None:
        self.characters += len(json.dumps(value, ensure_ascii=False))


async def with_calls(command: dict[str, Any]) -> tuple[int, int]:
    """Return the sum and the characters of a model that calls the tools itself."""
    async with Client(StdioServerParameters(**command), mode="legacy", cache=None) as client:
        context = Context(client)
        await context.list()
        total, page, more = 0, 0, True
        while more:
            found = json.loads(await context.call("list_orders", {"page": page}))
            total += sum(each["total"] for each in found["orders"] if each["paid"] and each["country"] == "SE")
            page, more = page + 1, found["more"]
        return total, context.characters


async def with_code(command: dict[str, Any], folder: str) -> tuple[int, int]:
    """Return the sum and the characters of a model that writes code for a session."""
    file = Path(folder, "servers.json")
    file.write_text(json.dumps({"mcpServers": {"shop": command}}))
    args = ["-m", "ingle", "mcp", "--tools", "python_session,search_tools", "--servers", str(file), "--preload", ""]
    ours = StdioServerParameters(
        command=sys.executable, args=args, env={**os.environ, "INGLE_HOME": f"{folder}/home"}, cwd=folder
    )
    async with Client(ours, mode="legacy", cache=None) as client:
        context = Context(client)
        await context.list()
        found = await context.call("search_tools", {"query": "list orders"})
        assert "list_orders" in found, found
        shown = await context.call("python_session", {"code": CODE})
        return int(shown.split("\n")[0]), context.characters


async def measure(rows: str) -> tuple[int, int]:
    """Return the characters with plain calls and with code, over long or short rows. Both find the same sum."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "server.py")
        script.write_text(SERVER)
        command = {"command": sys.executable, "args": [str(script), rows]}
        (expected, plain), (found, code) = await with_calls(command), await with_code(command, folder)
        assert found == expected, (found, expected)
    return plain, code


if __name__ == "__main__":
    for rows in sys.argv[1:] or ("long", "short"):
        plain, code = asyncio.run(measure(rows))
        met = f"≥ {TARGET} {'met' if plain >= TARGET * code else 'MISSED'}"
        print(f"{rows} rows: plain calls {plain:,} characters, code {code:,}: {plain / code:.1f} times fewer, {met}")
