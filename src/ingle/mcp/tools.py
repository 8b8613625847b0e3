"""The table of tools: names, descriptions, arguments. It is the same for every caller.

Most models know nothing else of ingle, so each description says what the tool returns and what to do next.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from ingle.errors import InvalidRequest
from ingle.mcp import arguments


@dataclass(frozen=True)
class Tool:
    name: str
    title: str
    description: str
    arguments: type[Struct]
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False

    @property
    def annotations(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent or self.read_only,
            "openWorldHint": self.open_world,
        }


RUNS: dict[str, bool] = {"destructive": True, "open_world": True}
READS: dict[str, bool] = {"read_only": True}

TABLE = (
    Tool(
        "python_session",
        "Run Python in a live session",
        "Run Python in a live session: variables, imports, functions and files are still there at the next call. "
        "Use it for all Python work; no set-up is needed. The value of the last expression is shown, top-level "
        "`await` works, figures come back as images. An exception is a normal result with its traceback. If the "
        "code takes longer than `wait`, the answer says `running` and the code continues: call `wait`, or "
        "`interrupt`. If it asks for input (`input()`, `getpass`, `pdb`), the answer says `waiting_for_input`: "
        "call `send_input`. A session runs one cell at a time; a second is refused as busy and not run. "
        "Sessions live until destroyed; `main` is restored when the server restarts, and says so.",
        arguments.PythonSession,
        **RUNS,
    ),
    Tool(
        "python",
        "Run Python once",
        "Run Python once, in a fresh session that ends afterwards: nothing is kept, nothing else is touched. "
        "For work of several steps use python_session. If the code takes longer than `wait`, the answer names "
        "a session id to `wait` for.",
        arguments.Python,
        **RUNS,
    ),
    Tool(
        "wait",
        "Wait for running code",
        "Wait for a cell that was still `running`, and get its output and result. Answers as soon as the cell ends "
        "or asks for input. Waiting changes nothing and may be repeated, also after the cell's end. Shows all of "
        "the cell's output so far, or with `from_event` (a number from the last answer) only what is new.",
        arguments.WaitFor,
        **READS,
    ),
    Tool(
        "send_input",
        "Answer a prompt",
        "Answer code that is `waiting_for_input`, and get what it does next. A newline is added. In pdb, send its "
        "commands. Refused if no code waits.",
        arguments.SendInput,
        **RUNS,
    ),
    Tool(
        "interrupt",
        "Interrupt running code",
        "Stop the running cell with KeyboardInterrupt, as Ctrl-C does. Variables are kept. Answers with the "
        "traceback when the session is ready again. If nothing runs it does nothing.",
        arguments.Interrupt,
        idempotent=True,
    ),
    Tool(
        "read_output",
        "Read a cell's output",
        "Read the output of a cell by line number or pattern, if an answer left out lines, or later. "
        "Reading removes nothing.",
        arguments.ReadOutput,
        **READS,
    ),
    Tool(
        "shell",
        "Run a shell command",
        "Run a shell command. If it ends within `wait` seconds, the answer has all its output, and its exit code "
        "unless that is 0. A longer one continues in the background, and the answer names a task id: follow it with "
        "shell_status. Its input is empty unless `interactive`. Only files persist between commands. It runs "
        "where `main` starts, or in a session's folder.",
        arguments.Shell,
        **RUNS,
    ),
    Tool(
        "shell_status",
        "Follow a shell command",
        "Wait for a command that `shell` left running, and get its output and exit code, also after its end "
        "and repeatedly. With `action`: `cancel` ends it and all it started, `pause` and `resume` stop and "
        "continue it, `input` sends `text` to it.",
        arguments.ShellStatus,
        destructive=True,
    ),
    Tool(
        "create_repl_session",
        "Create a session",
        "Create a session beside `main`: for another task, interpreter or folder. Answers with its "
        "session_id; pass it to the other tools. A name that exists is refused. It lives until "
        "destroy_repl_session or until the server ends.",
        arguments.CreateSession,
    ),
    Tool(
        "list_repl_sessions",
        "List sessions",
        "List all live sessions: state, age, cells run, variables, memory, isolation.",
        arguments.ListSessions,
        **READS,
    ),
    Tool(
        "get_session_namespace",
        "Show variables",
        "Show a session's variables with type, size and a short preview; with `variable_name` one in full.",
        arguments.Namespace,
        **READS,
    ),
    Tool(
        "clear_repl_session",
        "Clear a session",
        "Reset a session: remove its variables, functions, imports and event loop tasks, and load the user's "
        "library again. Cell numbers and earlier output stay. Busy while a cell runs.",
        arguments.ClearSession,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "fork_repl_session",
        "Copy a live session",
        "Make live copies of a session with all its variables, of any type and size, in milliseconds: to try several "
        "ways. Each is its own session; files are shared. Threads, tasks and child "
        "processes are not copied, but listed. Busy while a cell runs.",
        arguments.ForkSession,
    ),
    Tool(
        "rollback_repl_session",
        "Go back to an earlier state",
        "Restore all variables of a session to an earlier state, any number of times. action=`checkpoint` stores a "
        "state under a name, `list` shows them, `drop` removes one. Without a name it undoes the last cell, even one "
        "that crashed, if the session has checkpoints=`auto`, else it uses the newest. Files stay.",
        arguments.RollbackSession,
        destructive=True,
    ),
    Tool(
        "save_repl_session",
        "Save a session to disk",
        "Save a session's variables, functions and imports to disk, while it stays usable. `filepath` is a "
        "plain name, or a path below the session's folder for one portable `.ingle` file. "
        "The answer lists what could not be saved, and why. Busy while a cell runs.",
        arguments.SaveSession,
        idempotent=True,
    ),
    Tool(
        "load_repl_session",
        "Load a saved session",
        "Create a session from a saved one. The answer lists what is missing. Files that this server did not write "
        "are refused.",
        arguments.LoadSession,
        open_world=True,
    ),
    Tool(
        "destroy_repl_session",
        "End a session",
        "End a session and everything it started; its variables are lost. Answers with its last state.",
        arguments.DestroySession,
        destructive=True,
    ),
    Tool(
        "add_to_stdlib",
        "Keep a function for later sessions",
        "Add a function to the user's library, which every new session loads, permanently. It is tested first: "
        "failing code is refused and changes nothing. A function of the same name is replaced. Running sessions do "
        "not get it.",
        arguments.AddToStdlib,
    ),
    Tool(
        "list_stdlib_functions",
        "List the user's library",
        "List the user's library: functions with signature and docstring's first line, modules, other names.",
        arguments.ListStdlib,
        **READS,
    ),
)

CORE = ("python_session", "python", "shell", "shell_status", "wait", "send_input", "interrupt", "read_output")
"""The eight most used tools."""

ALIASES = {"execute_repl": "python_session"}
"""Names that work but are not listed."""

INSTRUCTIONS = (
    "ingle runs live Python sessions. Use python_session(code) for Python: state stays from call to call in "
    "session `main`, which starts in the user's folder. Every answer ends with a line in brackets: the cell's "
    "number, how it ended, how long it took. `running` means the code continues: call wait, or interrupt. "
    "`waiting_for_input` means it asks for something: call send_input. Long output is shortened; read_output has "
    "all of it. To keep work apart from `main`'s variables, use another session (create_repl_session), or "
    "python for a single run."
)


def chosen(names: Iterable[str] = ()) -> tuple[Tool, ...]:
    """Return the tools to list, in the order of the table: all, or the named ones; `core` names the most used."""
    wanted: set[str] = set()
    known = {tool.name for tool in TABLE}
    for name in names:
        if name == "core":
            wanted.update(known.intersection(CORE))
        elif name in known:
            wanted.add(name)
        else:
            raise InvalidRequest(f"there is no tool {name[:80]!r}; the tools are core, {', '.join(sorted(known))}")
    return tuple(tool for tool in TABLE if not wanted or tool.name in wanted)
