"""Agents of smolagents whose code runs in sandboxes of ingle. A scripted model answers what a real one would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from serving import Server
from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, Tool, ToolCollection, tool
from smolagents.models import Model
from smolagents.utils import AgentError

from ingle import Client
from ingle.integrations.smolagents import IngleExecutor

pytestmark = pytest.mark.req("tools.client")

TOOL_SERVER = str(Path(__file__).resolve().parents[2] / "support" / "tool_server.py")


class Script(Model):
    """A model that says these steps, one after another. It keeps what it was asked."""

    def __init__(self, *steps: str) -> None:
        super().__init__()
        self._steps = iter(steps)
        self.seen: list[str] = []

    def generate(self, messages: list[Any], **more: Any) -> ChatMessage:
        self.seen.append(str([each.content if hasattr(each, "content") else each for each in messages]))
        return ChatMessage(role="assistant", content=f"Thought: go on.\n<code>\n{next(self._steps)}\n</code>")


@pytest.fixture
def executor(server: Server) -> Iterator[IngleExecutor]:
    with Client(server.url, server.token) as client, client.session(isolation="sandbox") as session:
        made = IngleExecutor(session)
        yield made
        made.cleanup()


def test_the_118th_number_of_fibonacci(executor: IngleExecutor) -> None:
    """The first task of the quick tour."""
    script = Script(
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n - 1):\n        a, b = b, a + b\n    return a",
        "number = fibonacci(118)\nprint('found', number)",
        "final_answer(number)",
    )
    agent = CodeAgent(tools=[], model=script, executor=executor, add_base_tools=False)
    found = agent.run("Could you give me the 118th number in the Fibonacci sequence?")
    a, b = 0, 1
    for _ in range(117):
        a, b = b, a + b
    assert found == a
    assert f"found {a}" in script.seen[2]


def test_a_leopard_on_the_bridge(executor: IngleExecutor) -> None:
    """The task with a search: the tool runs in this process, with its state."""
    searched = []

    @tool
    def web_search(query: str) -> str:
        """Search the web.

        Args:
            query: What to look for.
        """
        searched.append(query)
        return "The Pont des Arts is 155 metres long." if "Pont" in query else "A leopard runs at 58 km/h."

    script = Script(
        "length = web_search('length of the Pont des Arts')\nspeed = web_search(query='speed of a leopard')",
        "import re\n"
        "metres, kmh = (float(re.search(r'\\d+', each)[0]) for each in (length, speed))\n"
        "metres / (kmh / 3.6)",
        "final_answer(round(metres / (kmh / 3.6), 2))",
    )
    agent = CodeAgent(tools=[web_search], model=script, executor=executor)
    question = "How many seconds would it take for a leopard at full speed to run through Pont des Arts?"
    assert agent.run(question) == 9.62
    assert searched == ["length of the Pont des Arts", "speed of a leopard"]
    assert "9.62" in script.seen[2]


def test_a_tool_with_a_wrong_argument_an_error_and_arguments_of_the_run(executor: IngleExecutor) -> None:
    @tool
    def most_downloaded(task: str, limit: int | None = None) -> list[str]:
        """Return the most downloaded models of a task.

        Args:
            task: The task.
            limit: How many.
        """
        return [f"{task}-{number}" for number in range(limit or 1)]

    script = Script(
        "most_downloaded(7)",
        "try:\n    final_answer(most_downloaded(given['task'], limit=2))\nexcept Exception as error:\n    print(error)",
    )
    agent = CodeAgent(tools=[most_downloaded], model=script, executor=executor)
    assert agent.run("Which?", additional_args={"given": {"task": "text-to-video"}}) == [
        "text-to-video-0",
        "text-to-video-1",
    ]
    assert "task must be a string, not int" in script.seen[1]


def test_an_mcp_tool_keeps_its_state_outside(executor: IngleExecutor) -> None:
    from mcp import StdioServerParameters

    parameters = StdioServerParameters(command=sys.executable, args=[TOOL_SERVER], env={"TOOL_ONLY": "add,count"})
    with ToolCollection.from_mcp(parameters, trust_remote_code=True) as collection:
        script = Script("first = int(count())\nprint(add(a=2, b=3))", "final_answer(int(count()) - first)")
        agent = CodeAgent(tools=[*collection.tools], model=script, executor=executor)
        assert agent.run("How many calls?") == 2


def test_pictures_custom_answers_and_what_the_sandbox_keeps_out(executor: IngleExecutor, tmp_path: Path) -> None:
    class Checked(FinalAnswerTool):
        def forward(self, answer: Any) -> Any:
            return {"checked": answer}

    class Draw(Tool):
        name = "draw"
        description = "Draws."
        inputs = {"size": {"type": "integer", "description": "Width."}}  # noqa: RUF012
        output_type = "image"

        def forward(self, size: int) -> Any:
            return PIL.Image.new("RGB", (size, size))

    (tmp_path / "secret").write_text("x")
    executor.send_tools({"draw": Draw(), "final_answer": Checked()})
    assert executor("draw(4)[1:4]").output == "b'PNG'"
    with pytest.raises(AgentError, match="FileNotFoundError"):
        executor(f"print('before')\nopen({str(tmp_path / 'secret')!r})")
    done = executor("print('end')\nfinal_answer({'x': [1, 2]})")
    assert (done.output, done.logs, done.is_final_answer) == ({"checked": {"x": [1, 2]}}, "end\n", True)
