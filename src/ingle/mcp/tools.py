"""The table of tools: names, words, arguments. Order and content never depend on who asks.

Every door that speaks MCP lists this table and calls through it. What is said here is all that most models will ever
know of ingle, so each description tells what comes back and what to do next.
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
        "code takes longer than `wait`, the answer says `running` and the code goes on: call `wait`, or "
        "`interrupt`. If it asks for input (`input()`, `getpass`, `pdb`), the answer says `waiting_for_input`: "
        "call `send_input`. One cell runs at a time in a session; a second is refused as busy and not run. "
        "Sessions live until destroyed; `main` comes back when the server is started again, and says so.",
        arguments.PythonSession,
        **RUNS,
    ),
    Tool(
        "python",
        "Run Python once",
        "Run Python once, in a fresh session that is gone afterwards: nothing is kept and nothing else is touched. "
        "For work of more than one step use python_session. If the code takes longer than `wait`, the answer names "
        "a session id to `wait` for.",
        arguments.Python,
        **RUNS,
    ),
    Tool(
        "wait",
        "Wait for running code",
        "Wait for a cell that was still `running`, and get its output and result. Answers as soon as the cell ends "
        "or asks for input. Waiting changes nothing and may be repeated, also for a cell that has ended. All of "
        "the cell's output so far is shown, or with `from_event` (the last answer tells the number) only what came "
        "since.",
        arguments.WaitFor,
        **READS,
    ),
    Tool(
        "send_input",
        "Answer a prompt",
        "Answer code that is `waiting_for_input`, and get what it does next. A newline is added. In pdb, send its "
        "commands. Refused when nothing waits.",
        arguments.SendInput,
        **RUNS,
    ),
    Tool(
        "interrupt",
        "Interrupt running code",
        "Stop the running cell with KeyboardInterrupt, as Ctrl-C does. Variables are kept. The answer has the "
        "traceback and comes when the session is ready again. With nothing running it does nothing.",
        arguments.Interrupt,
        idempotent=True,
    ),
    Tool(
        "read_output",
        "Read a cell's output",
        "Read the output of a cell by line number or by pattern, when an answer left lines out, or later on. "
        "Nothing is lost by reading.",
        arguments.ReadOutput,
        **READS,
    ),
    Tool(
        "shell",
        "Run a shell command",
        "Run a shell command. If it ends within `wait` seconds, the answer has all its output, and its exit code "
        "unless that is 0. A longer one goes on in the background, and the answer names a task id: follow it with "
        "shell_status. Its input is empty unless `interactive`. Nothing is kept between commands but files; it runs "
        "where `main` starts, or in a session's folder.",
        arguments.Shell,
        **RUNS,
    ),
    Tool(
        "shell_status",
        "Follow a shell command",
        "Wait for a command that `shell` left running, and get its output and exit code; it works after its end too, "
        "and may be repeated. With `action`: `cancel` ends it and all it started, `pause` and `resume` stop and "
        "continue it, `input` sends `text` to it.",
        arguments.ShellStatus,
        destructive=True,
    ),
    Tool(
        "create_repl_session",
        "Create a session",
        "Make a further session beside `main`: another task, another interpreter, another folder. Answers with its "
        "session_id, to be passed to the other tools. A name that is taken is refused. It lives until "
        "destroy_repl_session or until the server ends.",
        arguments.CreateSession,
    ),
    Tool(
        "list_repl_sessions",
        "List sessions",
        "All live sessions: state, age, cells run, variables, memory, isolation.",
        arguments.ListSessions,
        **READS,
    ),
    Tool(
        "get_session_namespace",
        "Show variables",
        "The variables of a session, with type, size and a short preview; with `variable_name` one of them in full.",
        arguments.Namespace,
        **READS,
    ),
    Tool(
        "clear_repl_session",
        "Clear a session",
        "Reset a session: its variables, functions, imports and tasks of the loop go; the user's library is loaded "
        "anew. Numbering of cells and earlier output stay. Busy while a cell runs.",
        arguments.ClearSession,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "fork_repl_session",
        "Copy a live session",
        "Make live copies of a session with all its variables, of any type and size, in milliseconds: to try several "
        "ways. Each is a session of its own; files are shared. Threads, tasks and child "
        "processes are not copied, and named. Busy while a cell runs.",
        arguments.ForkSession,
    ),
    Tool(
        "rollback_repl_session",
        "Go back to an earlier state",
        "Bring all variables of a session back to an earlier state, again and again. action=`checkpoint` keeps a "
        "state under a name, `list` shows them, `drop` gives one up. Without a name it undoes the last cell, even one "
        "that crashed, if the session was made with checkpoints=`auto`, else it takes the newest. Files stay.",
        arguments.RollbackSession,
        destructive=True,
    ),
    Tool(
        "save_repl_session",
        "Save a session to disk",
        "Save a session's variables, functions and imports to disk; it goes on meanwhile. `filepath` is a "
        "plain name, or a path below the session's folder: then it is one `.ingle` file that can be taken "
        "elsewhere. The answer names what could not be saved, and why. Busy while a cell runs.",
        arguments.SaveSession,
        idempotent=True,
    ),
    Tool(
        "load_repl_session",
        "Load a saved session",
        "Make a new session of a saved one. The answer names what is missing. Files that this server did not write "
        "are refused.",
        arguments.LoadSession,
        open_world=True,
    ),
    Tool(
        "destroy_repl_session",
        "End a session",
        "End a session and everything it started; its variables are lost. Answers with its last figures.",
        arguments.DestroySession,
        destructive=True,
    ),
    Tool(
        "add_to_stdlib",
        "Keep a function for later sessions",
        "Add a function to the user's library, with which every new session begins, for good. It is tried out first: "
        "code that fails is refused and nothing changes. One of the same name is replaced. Running sessions do not "
        "get it.",
        arguments.AddToStdlib,
    ),
    Tool(
        "list_stdlib_functions",
        "List the user's library",
        "What the user's library has: functions with signature and docstring's first line, modules, other names.",
        arguments.ListStdlib,
        **READS,
    ),
)

CORE = ("python_session", "python", "shell", "shell_status", "wait", "send_input", "interrupt", "read_output")
"""The eight most used."""

ALIASES = {"execute_repl": "python_session"}
"""Names that are answered and not listed."""

INSTRUCTIONS = (
    "ingle keeps Python sessions alive. Use python_session(code) for Python: state stays from call to call in "
    "session `main`, which starts in the user's folder. Every answer ends with a line in brackets: the cell's "
    "number, how it ended, how long it took. `running` means the code goes on: call wait, or interrupt. "
    "`waiting_for_input` means it asks for something: call send_input. Long output is shortened; read_output has "
    "all of it. Work that should not meet `main`'s variables goes to a session of its own (create_repl_session) or "
    "to python for a single run."
)


def chosen(names: Iterable[str] = ()) -> tuple[Tool, ...]:
    """The tools to list: all, or those named, with `core` for the most used. In the order of the table."""
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
