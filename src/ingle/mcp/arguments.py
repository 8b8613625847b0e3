"""Arguments of the tools: their types, compact schemas made from them, and helpful errors.

Numbers and booleans written as text are converted, because models write them so. An unknown argument is refused before
anything runs, and the error suggests the right name.
"""

import difflib
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ingle.errors import InvalidRequest
from ingle.requests import CommitPolicy

MAX_WAIT_SECONDS = 50.0
"""Maximum wait of a call: many hosts give up after 60 s, some silently."""

QUOTED_CHARS = 200
"""Characters of a wrong value that an error quotes."""

SYNONYMS = {
    "session": "session_id",
    "session_name": "session_id",
    "sessionid": "session_id",
    "id": "session_id",
    "name": "session_id",
    "source": "code",
    "function": "function_code",
    "script": "code",
    "python_code": "code",
    "cmd": "command",
    "script_code": "code",
    "input": "text",
    "line": "text",
    "answer": "text",
    "value": "text",
    "seconds": "wait",
    "max_wait": "wait",
    "timeout_ms": "timeout",
    "timeout_seconds": "timeout",
    "pattern": "grep",
    "regex": "grep",
    "search": "grep",
    "cell_id": "cell",
    "cell_number": "cell",
    "offset": "from_line",
    "start_line": "from_line",
    "limit": "lines",
    "count": "lines",
    "variable": "variable_name",
    "var": "variable_name",
    "working_directory": "cwd",
    "directory": "cwd",
    "workdir": "cwd",
    "environment": "env",
    "envs": "env",
    "task": "task_id",
    "interpreter": "python",
    "new_id": "new_session_id",
    "new_name": "new_session_id",
    "target": "new_session_id",
    "checkpoint_name": "checkpoint",
}
"""Names that models use for arguments without having read the schema."""

SessionId = Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Session-Id"})]
Wait = Annotated[float, Meta(ge=0, description="Seconds, at most 50.")]
Timeout = Annotated[float | None, Meta(description="Seconds until the code itself is interrupted.")]
Code = Annotated[str, Meta(description="Python source.")]


class PythonSession(Struct, forbid_unknown_fields=True):
    code: Code
    session_id: Annotated[SessionId, Meta(description="`main` needs no creating.")] = "main"
    timeout: Timeout = None
    wait: Annotated[Wait, Meta(description="Seconds to wait, at most 50; then the code continues.")] = 45


class Python(Struct, forbid_unknown_fields=True):
    code: Code
    timeout: Timeout = None
    wait: Wait = 45


class WaitFor(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    wait: Wait = 45
    from_event: Annotated[int, Meta(ge=0, description="Number from the last answer.")] = 0


class SendInput(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(description="Several lines answer several reads.")] = ""
    session_id: SessionId = "main"
    eof: Annotated[bool, Meta(description="End the input then, as Ctrl-D does.")] = False
    wait: Wait = 45


class Interrupt(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    wait: Wait = 10


class ReadOutput(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    cell: Annotated[int | None, Meta(description="Default: the last one.")] = None
    from_line: Annotated[int, Meta(ge=1)] = 1
    lines: Annotated[int, Meta(ge=1)] = 200
    grep: Annotated[str | None, Meta(description="Regular expression.")] = None
    context: Annotated[int, Meta(ge=0, description="Lines around a match.")] = 0
    offset: Annotated[int, Meta(ge=0, description="Characters to skip.")] = 0
    stream: Literal["stdout", "stderr", "both", "background", "displays", "result", "error"] = "stdout"


class CreateSession(Struct, forbid_unknown_fields=True):
    session_id: Annotated[
        str | None,
        Meta(
            description="Default: a random name.",
            extra_json_schema={"x-mcp-header": "Session-Id"},
        ),
    ] = None
    python: Annotated[str | None, Meta(description="Path of an interpreter.")] = None
    environment: Annotated[str | None, Meta(description="Name of one with packages.")] = None
    cwd: Annotated[str | None, Meta(description="Folder.")] = None
    env: dict[str, str] | None = None
    include_stdlib: Annotated[bool, Meta(description="The user's library.")] = True
    checkpoints: Annotated[Literal["manual", "auto"] | None, Meta(description="`auto`: cells can be undone.")] = None
    durable: Annotated[bool, Meta(description="It comes back when the server restarts.")] = False
    shares: Annotated[str | None, Meta(description="Session whose folder it uses.")] = None
    home: Annotated[str | None, Meta(description="Path of its folder in a sandbox.")] = None
    gpus: Annotated[str | None, Meta(description="`all`, `none`, or numbers.")] = None


class ForkSession(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    new_session_id: Annotated[str | None, Meta(description="Several are NAME-1, NAME-2.")] = None
    count: Annotated[int, Meta(ge=1)] = 1
    reseed: Annotated[bool, Meta(description="New random numbers.")] = False


class RollbackSession(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    checkpoint: Annotated[str | None, Meta(description="A name.")] = None
    action: Annotated[
        Literal["rollback", "checkpoint", "list", "drop"], Meta(description="`checkpoint` stores the state now.")
    ] = "rollback"


class CompareSession(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    to: Annotated[str | None, Meta(description="Name of a checkpoint, session or saved session.")] = None


class Trial(Struct, forbid_unknown_fields=True):
    code: str | None = None
    session_id: SessionId = "main"
    action: Literal["run", "commit", "discard"] = "run"
    trial: Annotated[str | None, Meta(description="Default: the open one.")] = None
    network: Literal["held", "allowed"] = "held"
    policy: Annotated[CommitPolicy | None, Meta(description="Commit by itself if all of it holds.")] = None
    timeout: Timeout = None
    wait: Wait = 30


class TryCells(Struct, forbid_unknown_fields=True):
    codes: list[str]
    session_id: SessionId = "main"
    score: Annotated[str | None, Meta(description="Expression; the highest wins.")] = None
    keep: Literal["best", "first_ok", "none"] = "best"
    budget: Annotated[float, Meta(gt=0, le=MAX_WAIT_SECONDS, description="Seconds for all.")] = 40
    network: Literal["held", "allowed"] = "held"


class InspectFailure(Struct, forbid_unknown_fields=True):
    expression: str
    session_id: SessionId = "main"
    cell: Annotated[int | None, Meta(description="Default: the last that failed.")] = None
    frame: Annotated[int, Meta(description="0: the cell's own; -1: where it failed.")] = -1


class ListSessions(Struct, forbid_unknown_fields=True):
    pass


class Namespace(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"
    variable_name: Annotated[str | None, Meta(description="Shows this one in full.")] = None


class ClearSession(Struct, forbid_unknown_fields=True):
    session_id: SessionId = "main"


class SaveSession(Struct, forbid_unknown_fields=True):
    filepath: Annotated[str, Meta(description="A name, or a path below the session's folder for one `.ingle` file.")]
    session_id: SessionId = "main"


class LoadSession(Struct, forbid_unknown_fields=True):
    filepath: Annotated[str, Meta(description="Name or path of the save.")]
    session_id: Annotated[
        str | None, Meta(description="A new name. Default: `main` if there is none, else like the save.")
    ] = None
    rerun: Annotated[bool, Meta(description="Run the cells again that made missing variables.")] = False


class SearchTools(Struct, forbid_unknown_fields=True):
    query: str = ""
    session_id: SessionId = "main"


class AddToStdlib(Struct, forbid_unknown_fields=True):
    function_code: Annotated[str, Meta(description="A whole function with its docstring.")]


class ListStdlib(Struct, forbid_unknown_fields=True):
    pass


class DestroySession(Struct, forbid_unknown_fields=True):
    session_id: SessionId


class Shell(Struct, forbid_unknown_fields=True):
    command: str
    wait: Wait = 5
    timeout: Annotated[float | None, Meta(description="Seconds until the command is stopped.")] = None
    session_id: Annotated[
        str | None,
        Meta(
            description="Use its folder and environment.",
            extra_json_schema={"x-mcp-header": "Session-Id"},
        ),
    ] = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    interactive: Annotated[bool, Meta(description="Keep its input open for `input`.")] = False


class ShellStatus(Struct, forbid_unknown_fields=True):
    task_id: Annotated[str, Meta(description="From `shell`.")]
    wait: Wait = 5
    from_line: Annotated[int, Meta(ge=0)] = 0
    action: Literal["status", "cancel", "pause", "resume", "input"] = "status"
    text: Annotated[str, Meta(description="For `input`; end a line with a newline.")] = ""
    eof: Annotated[bool, Meta(description="End the input after the text.")] = False


T = TypeVar("T", bound=Struct)


def schema_of(arguments: type[Struct]) -> dict[str, Any]:
    """Return a compact JSON schema: optional arguments are not required, and null is not mentioned.

    What `read` checks with a better message is left out: bounds, and that no other argument is known.
    """
    made = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    properties = {}
    for name, each in made["properties"].items():
        prop = dict(each)
        for variant in prop.pop("anyOf", ()):
            if variant.get("type") != "null":
                prop.update(variant)
        if prop.get("default", "") is None:
            del prop["default"]
        if "enum" in prop:
            prop["type"] = "string"
        prop.pop("minimum", None)
        properties[name] = prop
    schema = {"type": "object", "properties": properties}
    if made["required"]:
        schema["required"] = made["required"]
    return schema


def read(tool: str, arguments: type[T], given: dict[str, Any] | None) -> T:
    """Return the checked arguments, or raise an error in the words of the tool, before anything runs."""
    given = given or {}
    for name in given:
        if name not in arguments.__struct_fields__:
            known = list(arguments.__struct_fields__)
            raise InvalidRequest(_unknown(tool, name, known))
    try:
        return msgspec.convert(given, arguments, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{tool}: {_plain(str(error), arguments)}. Nothing was run; call it again.") from None


def _unknown(tool: str, name: str, known: list[str]) -> str:
    meant = SYNONYMS.get(name.lower())
    if meant not in known:
        close = difflib.get_close_matches(name.lower(), known, 1, 0.6)
        meant = close[0] if close else None
    advice = f"Use {meant!r}. " if meant else ""
    takes = f"It takes: {', '.join(known)}." if known else "It takes no arguments."
    return f"{tool} has no argument {name[:80]!r}. {advice}{takes} Nothing was run."


def _plain(message: str, arguments: type[Struct]) -> str:
    """Reorder `Expected X, got Y - at $.name` for people. Name the choices where there are some."""
    problem, _, path = message.rpartition(" - at `$.")
    name = path.rstrip("`")
    if not problem:
        missing = message.removeprefix("Object missing required field ")
        return f"the argument {missing} is missing" if missing != message else f"{message[0].lower()}{message[1:]}"
    choices = schema_of(arguments)["properties"].get(name, {}).get("enum")
    if choices:
        return f"{name}: {problem[0].lower()}{problem[1:QUOTED_CHARS]}; it is one of {', '.join(sorted(choices))}"
    return f"{name}: {problem[0].lower()}{problem[1:QUOTED_CHARS]}"
