"""Tour of the MCP tools, as a conversation between a model and `ingle mcp`: `python examples/tour.py`.

The program starts the server as a host does and calls its tools with the official client. It prints each call and the
answer that the model sees. It needs pandas in the interpreter of the sessions. It uses temporary folders only.
"""

import asyncio
import os
import sys
import tempfile
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

SALES = """
import pandas as pd
sales = pd.DataFrame({"city": ["Oslo", "Bern", "Oslo", "Bern"], "amount": [3, 5, 8, 13]})
sales
"""

TOTALS = """
def total(city):
    return int(sales[sales.city == city].amount.sum())

print("Oslo:", total("Oslo"))
total("Bern")
"""

SHARE = '''
def share(part, whole):
    """A part of a whole, in per cent."""
    return round(100 * part / whole)
'''

SOURCE = {"code", "function_code"}


class Conversation:
    """Client that prints each call and its answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, tool: str, **arguments: Any) -> str:
        """Call a tool, print the call and the answer, and return the answer."""
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if name not in SOURCE)
        print(f"\n→ {tool}({shown})")
        for name in SOURCE & arguments.keys():
            print("\n".join(f"  │ {line}" for line in arguments[name].strip().splitlines()))
        result = await self._client.call_tool(tool, arguments)
        lines: list[str] = []
        for part in result.content:
            lines += part.text.splitlines() if part.type == "text" else [f"<{part.type}>"]
        print("\n".join(f"  {'✗' if result.is_error else '·'} {line}" for line in lines))
        return "\n".join(lines)


async def tour(client: Client) -> None:
    """Call the tools in the order of a typical conversation."""
    conversation = Conversation(client)
    ask = conversation.ask
    tools = [tool.name for tool in (await client.list_tools()).tools]
    print(f"{len(tools)} tools: {', '.join(tools)}")

    # Every later session has the functions of the user library.
    await ask("add_to_stdlib", function_code=SHARE)
    await ask("list_stdlib_functions")
    await ask("create_repl_session", session_id="calc")
    await ask("python_session", session_id="calc", code=SALES)
    await ask("python_session", session_id="calc", code=TOTALS)
    await ask("python_session", session_id="calc", code="share(total('Oslo'), 29)")
    # An exception is a normal answer.
    await ask("python_session", session_id="calc", code="total(city)")
    await ask("list_repl_sessions")
    await ask("get_session_namespace", session_id="calc")
    await ask("get_session_namespace", session_id="calc", variable_name="sales")

    # The code asks for input, and the model answers.
    await ask("python_session", session_id="calc", code="name = input('Who are you? ')\nprint('Hello', name)")
    await ask("send_input", session_id="calc", text="Ada")
    # Long code continues while the model does something else.
    await ask("python_session", session_id="calc", code="import time\ntime.sleep(1)\nprint('rested')", wait=0.1)
    await ask("wait", session_id="calc")
    await ask("shell", command="echo from the shell; exit 3")

    # Save a session and load it under another name. The loaded function finds its data.
    await ask("save_repl_session", session_id="calc", filepath="private/sessions/calc.pkl")
    await ask("load_repl_session", session_id="again", filepath="private/sessions/calc.pkl")
    await ask("python_session", session_id="again", code="total('Bern')")
    # Try a change on a copy, or return to a checkpoint afterwards.
    await ask("fork_repl_session", session_id="again", new_session_id="what-if")
    await ask("python_session", session_id="what-if", code="sales.amount *= 2\ntotal('Bern')")
    await ask("rollback_repl_session", session_id="again", action="checkpoint", checkpoint="good")
    await ask("python_session", session_id="again", code="del sales, total")
    await ask("rollback_repl_session", session_id="again", checkpoint="good")
    await ask("python_session", session_id="again", code="total('Bern')")

    # Sessions are separate. `main` is created on first use.
    await ask("python_session", code="'sales' in globals()")
    await ask("python", code="sum(range(10))")
    await ask("clear_repl_session", session_id="calc")
    for name in ("calc", "again", "what-if"):
        await ask("destroy_repl_session", session_id=name)


async def main(folder: str) -> None:
    """Start `ingle mcp` in `folder` and run the tour."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "ingle", "mcp", *sys.argv[1:]],
        env={**os.environ, "INGLE_HOME": f"{folder}/data"},
        cwd=f"{folder}/project",
    )
    async with Client(server) as client:
        await tour(client)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/project")
        asyncio.run(main(folder))
