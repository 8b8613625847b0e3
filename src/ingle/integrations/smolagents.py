"""Executor of smolagents: the code of a `CodeAgent` runs in a session of ingle.

    from ingle.integrations.smolagents import IngleExecutor

    with CodeAgent(tools=[...], model=model, executor=IngleExecutor()) as agent:
        agent.run("...")

Tools stay in the agent's process, with their state, connections and secrets. The session has functions that call them.
"""

import io
from typing import Any

import PIL.Image
from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.utils import AgentError

from ingle import errors
from ingle.client import Client, Session
from ingle.client.functions import DescribedFunction, Function
from ingle.tools.shapes import ToolSpec

SERVER = "smolagents"
"""Name of the server that has the agent's tools."""

FINAL_ANSWER = "final_answer"
TYPES = {"any": {}, "image": {"type": "string"}, "audio": {"type": "string"}}
"""Types of smolagents that JSON does not have. Images and sounds come as their bytes in base64."""

FINAL = "ingle.FinalAnswer"
ANSWER = "_ingle_final_answer"

DEFINE_FINAL_ANSWER = """
def _made(tool):
    class FinalAnswer(BaseException):
        __module__, __qualname__ = "ingle", "FinalAnswer"

    def final_answer(*args, **given):
        value = tool(*args, **given)
        globals()["_ingle_final_answer"] = value
        raise FinalAnswer(str(value))

    return final_answer


final_answer = _made(TOOL)
del _made
"""
"""The function that ends a run. It raises no `Exception`, so that code which catches those does not catch it."""


class IngleExecutor(PythonExecutor):
    """Runs an agent's code in one session. Leaving the agent's context, or `cleanup`, ends it.

    `session` is a session of a client of yours; without it, a new one is created on the local service. `options` are
    those of `Client.session`, such as `isolation`, `network` and `environment`.
    """

    def __init__(self, session: Session | None = None, *, logger: AgentLogger | None = None, **options: Any) -> None:
        self._client = Client() if session is None else None
        self._session = session if self._client is None else self._client.session(**options)
        self._logger = logger or AgentLogger(level=LogLevel.OFF)
        self._provided: Any = None

    @property
    def session(self) -> Session:
        """The session, to look at its variables and files."""
        assert self._session is not None
        return self._session

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables of the session. They are of the kinds that `Session.set` sends: JSON, bytes, arrays, tables."""
        for name, value in variables.items():
            self.session.set(name, value)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Let the session call these tools, as functions of its own."""
        if self._provided is not None:
            self._provided.close()
            self._provided = None
        outside = {name: tool for name, tool in tools.items() if type(tool) is not FinalAnswerTool}
        lines = []
        if outside:
            functions = [_function(name, tool) for name, tool in outside.items()]
            self._provided = self.session.provide(*functions, server=SERVER)
            lines = ["import ingle_tools", f"_agent = ingle_tools[{SERVER!r}]"]
            lines += [f"{name} = _agent[{name!r}]" for name in outside]
            lines += ["del ingle_tools, _agent"]
        if FINAL_ANSWER in tools:
            tool = FINAL_ANSWER if FINAL_ANSWER in outside else "lambda answer: answer"
            lines.append(DEFINE_FINAL_ANSWER.replace("TOOL", tool))
        self._run("\n".join(lines))

    def __call__(self, code_action: str) -> CodeOutput:
        """Run the code of one step. An exception in it is raised as AgentError, with what it printed before."""
        return self._run(code_action)

    def _run(self, code: str) -> CodeOutput:
        result = self.session.run(code)
        logs = result.stdout + result.stderr
        error = result.error
        if error is not None and error.name == FINAL:
            return CodeOutput(self._answer(error.value), logs, True)
        if error is not None:
            raise AgentError(f"{logs}\n{error.traceback}", self._logger)
        if result.status != "ok":
            raise AgentError(f"{logs}\nthe code ended as {result.status}", self._logger)
        return CodeOutput((result.result or {}).get("text/plain"), logs, False)

    def _answer(self, text: str) -> Any:
        """Return the final answer as a value, or as text where it is no value that can be sent."""
        try:
            return self.session.get(ANSWER)
        except errors.InvalidRequest:
            return text

    def cleanup(self) -> None:
        """End the session, if this executor has created it, and withdraw the tools."""
        if self._provided is not None:
            self._provided.close()
            self._provided = None
        if self._client is not None and self._session is not None:
            self._session.close()
            self._client.close()
            self._session = None


def _function(name: str, tool: Any) -> Function:
    """Return a tool of smolagents, or an agent that is managed like one, as a function of this program."""
    properties = {each: _schema(about) for each, about in tool.inputs.items()}
    required = [each for each, about in tool.inputs.items() if not about.get("nullable")]
    schema = {"type": "object", "properties": properties, "required": required}
    return DescribedFunction(ToolSpec(name, tool.description, schema), lambda **given: _sendable(tool(**given)))


def _sendable(value: Any) -> Any:
    """Return a tool's result as a session can have it: an image as the bytes of a PNG file."""
    if isinstance(value, PIL.Image.Image):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return file.getvalue()
    return value


def _schema(about: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an input."""
    kind = about.get("type", "any")
    known = TYPES.get(kind) if isinstance(kind, str) else None
    schema: dict[str, Any] = {"type": kind} if known is None else dict(known)
    if about.get("nullable") and "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*kinds, "null"]
    return {**{key: about[key] for key in ("description", "enum", "items", "properties") if key in about}, **schema}
