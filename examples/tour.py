"""A tour of the tools, as a conversation between a model and `ingle mcp`: `python examples/tour.py`.

Starts the server as a host does, speaks to it with the official client, and prints what was asked and what the model
was shown. Needs pandas in the interpreter of the sessions. It has folders of its own, so that nothing of yours changes.
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
    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and print the call and the answer."""
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
    conversation = Conversation(client)
    ask = conversation.ask
    tools = [tool.name for tool in (await client.list_tools()).tools]
    print(f"{len(tools)} tools: {', '.join(tools)}")

    # What a model has written once, every later session knows.
    await ask("add_to_stdlib", function_code=SHARE)
    await ask("list_stdlib_functions")
    await ask("create_repl_session", session_id="calc")
    await ask("python_session", session_id="calc", code=SALES)
    await ask("python_session", session_id="calc", code=TOTALS)
    await ask("python_session", session_id="calc", code="share(total('Oslo'), 29)")
    # An exception is an answer like any other.
    await ask("python_session", session_id="calc", code="total(city)")
    await ask("list_repl_sessions")
    await ask("get_session_namespace", session_id="calc")
    await ask("get_session_namespace", session_id="calc", variable_name="sales")

    # Code that asks is answered.
    await ask("python_session", session_id="calc", code="name = input('Who are you? ')\nprint('Hello', name)")
    await ask("send_input", session_id="calc", text="Ada")
    # Code that takes long goes on while the model does something else.
    await ask("python_session", session_id="calc", code="import time\ntime.sleep(1)\nprint('rested')", wait=0.1)
    await ask("wait", session_id="calc")
    await ask("shell", command="echo from the shell; exit 3")

    # A session is saved, and is there again in another one: the function finds its data.
    await ask("save_repl_session", session_id="calc", filepath="private/sessions/calc.pkl")
    await ask("load_repl_session", session_id="again", filepath="private/sessions/calc.pkl")
    await ask("python_session", session_id="again", code="total('Bern')")
    # Try something out: on a copy, or with a way back.
    await ask("fork_repl_session", session_id="again", new_session_id="what-if")
    await ask("python_session", session_id="what-if", code="sales.amount *= 2\ntotal('Bern')")
    await ask("rollback_repl_session", session_id="again", action="checkpoint", checkpoint="good")
    await ask("python_session", session_id="again", code="del sales, total")
    await ask("rollback_repl_session", session_id="again", checkpoint="good")
    await ask("python_session", session_id="again", code="total('Bern')")

    # What was made in `calc` is not in `main`, which needs no creating.
    await ask("python_session", code="'sales' in globals()")
    await ask("python", code="sum(range(10))")
    await ask("clear_repl_session", session_id="calc")
    for name in ("calc", "again", "what-if"):
        await ask("destroy_repl_session", session_id=name)


async def main(folder: str) -> None:
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
