"""The table of tools: names, descriptions, arguments. It is the same for every caller.

Most models know nothing else of ingle, so each description says what the tool returns and what to do next. Words in
braces are filled in from the facts of the server.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from ingle.errors import InvalidRequest
from ingle.mcp import arguments

DEFAULT_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""Hints that hosts assume by the protocol. They are not listed, because every listed byte is part of each context."""


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

    @property
    def listed_annotations(self) -> dict[str, Any]:
        """Return the annotations that differ from what hosts assume."""
        return {name: value for name, value in self.annotations.items() if DEFAULT_HINTS.get(name) is not value}


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
        "`interrupt`. If it asks for input (`input()`, `getpass`, `pdb`), the answer says `waiting for input`: "
        "call `send_input`. A session runs one cell at a time; a second is refused as busy. {life}",
        arguments.PythonSession,
        **RUNS,
    ),
    Tool(
        "python",
        "Run Python once",
        "Run Python once, in a fresh session that ends afterwards. For work of several steps use python_session. "
        "If the code takes longer than `wait`, the answer names a session id to `wait` for.",
        arguments.Python,
        **RUNS,
    ),
    Tool(
        "wait",
        "Wait for running code",
        "Wait until a `running` cell ends or asks for input. Shows all of its output so far, or with `from_event` "
        "only what is new. Changes nothing and may be repeated, also after the cell's end.",
        arguments.WaitFor,
        **READS,
    ),
    Tool(
        "send_input",
        "Answer a prompt",
        "Answer code that is `waiting for input`, and get what it does next. A newline is added. In pdb, send its "
        "commands.",
        arguments.SendInput,
        **RUNS,
    ),
    Tool(
        "interrupt",
        "Interrupt running code",
        "Stop the running cell with KeyboardInterrupt, as Ctrl-C does. Variables are kept. Answers with the "
        "traceback when the session is ready again.",
        arguments.Interrupt,
        idempotent=True,
    ),
    Tool(
        "read_output",
        "Read a cell's output",
        "Read the output of a cell by line number or pattern, if an answer left out lines, or later.",
        arguments.ReadOutput,
        **READS,
    ),
    Tool(
        "shell",
        "Run a shell command",
        "Run a command in bash. If it takes longer than `wait`, it continues in the background, and the answer names "
        "a task id for shell_status. Its input is empty unless `interactive`. Only files persist between commands. "
        "{shell_place}",
        arguments.Shell,
        **RUNS,
    ),
    Tool(
        "shell_status",
        "Follow a shell command",
        "Wait for a command that `shell` left running, and get its output and exit code, also after its end. "
        "`cancel` ends it and all it started, `pause` and `resume` stop and continue it, `input` sends `text` to it.",
        arguments.ShellStatus,
        destructive=True,
    ),
    Tool(
        "create_repl_session",
        "Create a session",
        "Create a session beside `main`, for another task, interpreter or folder. Pass its session_id to the other "
        "tools. {session_life}",
        arguments.CreateSession,
    ),
    Tool(
        "list_repl_sessions",
        "List sessions",
        "List live sessions (state, cells, variables, memory), shell tasks that run, and saved sessions.",
        arguments.ListSessions,
        **READS,
    ),
    Tool(
        "get_session_namespace",
        "Show variables",
        "Show a session's variables with type, size and a short preview.",
        arguments.Namespace,
        **READS,
    ),
    Tool(
        "clear_repl_session",
        "Clear a session",
        "Remove all variables, functions, imports and event loop tasks of a session. Earlier output stays.",
        arguments.ClearSession,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "fork_repl_session",
        "Copy a live session",
        "Make live copies of a session with all its variables, of any type and size, in milliseconds: to try several "
        "ways. Each has its own files. Threads, tasks and child processes are not copied, but listed.",
        arguments.ForkSession,
    ),
    Tool(
        "rollback_repl_session",
        "Go back to an earlier state",
        "Restore all variables of a session to a checkpoint, any number of times. Without a name it undoes the last "
        "cell, even one that crashed, if the session has checkpoints=`auto`, else it uses the newest checkpoint. "
        "Files of its own folder and of tracked ones go back too, others stay.",
        arguments.RollbackSession,
        destructive=True,
    ),
    Tool(
        "diff",
        "Show what changed",
        "Show how a session differs now from a checkpoint, a fork or a saved session: variables, and files with diffs. "
        "Without a name: what `rollback_repl_session` would undo.",
        arguments.CompareSession,
        **READS,
    ),
    Tool(
        "trial",
        "Try a cell before keeping it",
        "Run code in a copy of a session and see what it would change: variables, files, network, processes. Then "
        "`commit` makes the copy the session, without running it again, or `discard` drops it. Use it for code that "
        "deletes or overwrites. Until then the session is busy. No connection leaves unless network=`allowed`.",
        arguments.Trial,
        **RUNS,
    ),
    Tool(
        "try_cells",
        "Try several codes, keep one",
        "Run several codes, each in a copy of the session at the same time. The copy with the highest `score` becomes "
        "the session; without one, the first that succeeds.",
        arguments.TryCells,
        **RUNS,
    ),
    Tool(
        "inspect_failure",
        "Look into a failed cell",
        "Evaluate an expression in a frame of a cell that failed, if its result says that the failure is kept.",
        arguments.InspectFailure,
        **READS,
    ),
    Tool(
        "destroy_repl_session",
        "End a session",
        "End a session and everything it started; its variables are lost.",
        arguments.DestroySession,
        destructive=True,
    ),
    Tool(
        "save_repl_session",
        "Save a session to disk",
        "Save a session's variables, functions and imports to disk, while it stays usable. "
        "The answer lists what could not be saved, and why.",
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
        "search_tools",
        "Find tools",
        "Find functions of other servers that code can call: `import tools; tools.SERVER.NAME(…)`. Returns signatures. "
        "Loop and filter in one cell.",
        arguments.SearchTools,
        read_only=True,
        open_world=True,
    ),
    Tool(
        "add_to_stdlib",
        "Keep a function for later sessions",
        "Add a function to the user's library, which every new session loads, permanently. It is tested first. A "
        "function of the same name is replaced. Running sessions do not get it.",
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

DEFAULT = (
    *CORE,
    "create_repl_session",
    "list_repl_sessions",
    "get_session_namespace",
    "clear_repl_session",
    "fork_repl_session",
    "rollback_repl_session",
    "diff",
    "trial",
    "destroy_repl_session",
)
"""What a model needs daily. Saves and the user's library are listed with `all`."""

SETS = {"core": CORE, "default": DEFAULT, "all": tuple(tool.name for tool in TABLE)}

SEARCH = "search_tools"
"""Listed also in short lists, where the operator has named servers of tools."""

ALIASES = {"execute_repl": "python_session"}
"""Names that work but are not listed."""


def chosen(names: Iterable[str] = ("default",)) -> tuple[Tool, ...]:
    """Return the tools to list, in the order of the table. A name is that of a tool or of a set."""
    wanted: set[str] = set()
    known = [tool.name for tool in TABLE]
    for name in names:
        if name not in SETS and name not in known:
            choices = ", ".join([*SETS, *sorted(known)])
            raise InvalidRequest(f"there is no tool {name[:80]!r}; the tools are {choices}")
        wanted.update(SETS.get(name, (name,)))
    return tuple(tool for tool in TABLE if tool.name in (wanted or DEFAULT))


def with_search(listed: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools to list where code can call tools of other servers: the search for them, too."""
    names = {tool.name for tool in listed} | {SEARCH}
    return tuple(tool for tool in TABLE if tool.name in names)


def answered(listed: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools to answer: the listed ones, and all if the default ones are listed.

    A shorter list is a choice of the operator. The default one only saves a model's context.
    """
    return TABLE if {tool.name for tool in listed}.issuperset(DEFAULT) else listed
