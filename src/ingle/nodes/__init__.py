"""Nodes: the machines that sessions and shell tasks run on.

`Node` and `SessionHandle` are what every node offers. The service knows nothing else of a node, so that a session on
another machine can look like one on this machine. Every argument and every answer is plain data that can be sent; a
stream is an async iterator, and an open file is an `OpenFile`.

A session's key is its name, or `tenant/name` outside the default tenant. Answers hold names only.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from ingle.capacity import Capacity, Drained, Load, MachineInfo, MachineUsage, Metrics, NetworkUse, SessionUsage
from ingle.environments.shapes import EnvironmentInfo, NewEnvironment
from ingle.events import (
    AnyEvent,
    CellInfo,
    CheckpointInfo,
    Restored,
    Result,
    RolledBack,
    Saved,
    SessionInfo,
    SnapshotInfo,
    Stdlib,
    StdlibChange,
    Task,
    TaskOutput,
    Variables,
    VariableValue,
)
from ingle.files import Diff, FileInfo, FileList, Unpacked
from ingle.grants import ApprovalInfo, GrantChange, GrantInfo, Isolation, NewGrant
from ingle.introspection import Completeness, Completion, Inspection, Rows
from ingle.output.pages import OutputPage, Reading
from ingle.requests import Author, Bounds, NewCell, NewSession, NewTask
from ingle.tools.shapes import FunctionCall, FunctionCancelled, NewServer, ServerInfo, ToolSpec
from ingle.trials import Committed, FailureInfo, Inspected, TrialInfo, Tried


class Node(Protocol):
    """Machine that runs sessions and shell tasks."""

    @property
    def tasks(self) -> "Tasks": ...

    @property
    def snapshots(self) -> "Snapshots": ...

    @property
    def library(self) -> "Library": ...

    @property
    def grants(self) -> "Grants": ...

    @property
    def environments(self) -> "Environments": ...

    @property
    def tools(self) -> "ToolServers": ...

    @property
    def machines(self) -> "Machines": ...

    async def start(self) -> None: ...

    async def warm(self) -> None:
        """Start workers ahead of the first sessions."""
        ...

    async def stop(self) -> None: ...

    async def create(self, new: NewSession) -> SessionInfo:
        """Create a session and wait until it is ready for its first cell."""
        ...

    def session(self, key: str) -> "SessionHandle":
        """Return a handle of a session. Raise SessionNotFound here or at the first use of the handle."""
        ...

    async def sessions(self, tenant: str) -> list[SessionInfo]: ...

    async def fork(
        self, key: str, names: list[str | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[SessionInfo]:
        """Make one live copy of a session for each name, or none at all. A null name means a random one."""
        ...

    async def isolation(self) -> Isolation:
        """Return the level of isolation, once the node has tested it."""
        ...

    async def capacity(self) -> Capacity:
        """Return how many sessions may live at once, and why not more."""
        ...

    async def load(self, tenant: str) -> Load:
        """Return what the tenant uses: sessions, running cells, shell tasks and persistent shells."""
        ...

    async def metrics(self) -> Metrics: ...

    async def usage(self) -> MachineUsage:
        """Return what the whole machine uses."""
        ...


class SessionHandle(Protocol):
    """One session of a node."""

    @property
    def checkpoints(self) -> "Checkpoints": ...

    @property
    def trials(self) -> "Trials": ...

    @property
    def tools(self) -> "ToolsOfSession": ...

    @property
    def introspection(self) -> "Introspection": ...

    async def info(self) -> SessionInfo: ...

    async def usage(self) -> SessionUsage: ...

    async def network(self) -> NetworkUse:
        """Return the hosts that the session asked for."""
        ...

    async def end(self) -> SessionInfo:
        """End the session and its shell tasks. Return its last state."""
        ...

    async def clear(self) -> SessionInfo:
        """Reset the namespace."""
        ...

    async def rollback(self, checkpoint: str | None) -> RolledBack: ...

    async def diff(self, to: str | None, seconds: float) -> Diff:
        """Compare with another moment; None: the checkpoint of a rollback. Hash variables for `seconds`."""
        ...

    async def adopt(self, fork: str) -> Committed: ...

    async def save(self, target: str, start: str | None) -> Saved:
        """Save the session under a name, or to a file below its folder or the folder `start`."""
        ...

    async def execute(self, new: NewCell) -> int:
        """Start a cell and return its number."""
        ...

    async def wait(self, cell: int | None, seconds: float, from_event: int = 0) -> Result:
        """Return the result of a cell once it has ended or waits for input, or after `seconds`. None: the last cell."""
        ...

    async def input(self, text: str, author: Author, *, eof: bool = False) -> int:
        """Answer a cell that waits for input. Return the number of the cell to wait for."""
        ...

    async def interrupt(self, author: Author) -> int | None:
        """Interrupt the running cell and return its number; None if no cell runs."""
        ...

    def cells(self, first: int, count: int) -> AsyncIterator[CellInfo]:
        """Yield which cells ran. Each may have as much code as a request, so they are not gathered."""
        ...

    async def note(self, text: str, author: Author, *, raw: bool) -> None:
        """Put a note into the timeline."""
        ...

    async def output(self, cell: int, reading: Reading) -> OutputPage: ...

    async def figure(self, file_id: str) -> bytes:
        """Return an image in full size."""
        ...

    def events(self, first: int) -> AsyncIterator[AnyEvent]:
        """Yield the session's events from `first` on, also those to come."""
        ...

    async def variables(self) -> Variables: ...

    async def variable(self, name: str, limit: float, rows: Rows | None = None) -> VariableValue:
        """Return one variable in full, or some of its rows. Its `__repr__` and `__str__` may take `limit` seconds."""
        ...

    async def value(self, name: str, limit: float) -> "OpenValue":
        """Return the value of a variable. Raise Busy while a cell runs."""
        ...

    async def set_value(self, name: str, kind: str, chunks: AsyncIterator[bytes], size: int, limit: float) -> None:
        """Set a variable from at most `size` bytes of this kind."""
        ...

    async def files(self) -> "Folder":
        """Return the session's folder, once its worker has started."""
        ...


class Introspection(Protocol):
    """Help for people who write code in a session."""

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return the names that may stand at the cursor. No user code runs."""
        ...

    async def inspect(self, code: str, cursor: int, *, source: bool) -> Inspection:
        """Return a description of the object at the cursor. Raise Busy while a cell runs."""
        ...

    async def check(self, code: str) -> Completeness:
        """Return whether code is complete. Raise Busy while a cell runs."""
        ...


class Checkpoints(Protocol):
    """States of one session, in memory, that it can go back to."""

    async def make(self, name: str) -> CheckpointInfo: ...

    async def remove(self, name: str) -> None: ...

    async def list(self) -> list[CheckpointInfo]: ...


class Trials(Protocol):
    """Code of one session that runs in copies of it."""

    async def run(self, new: NewCell, seconds: float) -> Result:
        """Run a cell as a trial. Return its result and effect once it has ended, or after `seconds`."""
        ...

    async def commit(self, name: str) -> Committed: ...

    async def discard(self, name: str) -> None: ...

    async def try_codes(self, codes: list[NewCell], score: str | None, keep: str, budget: float, network: str) -> Tried:
        """Run each code in a copy at the same time. The chosen copy becomes the session."""
        ...

    async def probe(self, new: NewCell, network: str) -> Result:
        """Run a cell in a copy that ends after it."""
        ...

    async def failures(self) -> list[FailureInfo]:
        """Return the moments of failure that are kept."""
        ...

    async def list(self) -> list[TrialInfo]: ...

    async def inspect(self, cell: int | None, expression: str, frame: int, seconds: float) -> Inspected:
        """Evaluate an expression in a frame of a cell that has failed."""
        ...


class Machines(Protocol):
    """Machines of a node: one, or those of a cluster."""

    async def list(self) -> list[MachineInfo]: ...

    async def scale(self, count: int) -> None:
        """Ask for so many machines. They come when the cluster has started them."""
        ...

    async def drain(self, node: str, seconds: float) -> Drained:
        """Move the sessions of a machine to others. It gets no more, and a running cell has `seconds` to end."""
        ...


class ToolServers(Protocol):
    """MCP servers that the operator has named."""

    def names(self, tenant: str) -> list[str]:
        """Return the servers whose tools the code of a tenant may call."""
        ...


class ToolsOfSession(Protocol):
    """Tools that the code of one session may call."""

    async def servers(self) -> list[ServerInfo]:
        """Return the servers with their tools. Servers that do not run yet are started."""
        ...

    async def search(self, query: str, limit: int) -> list[str]:
        """Return the tools that fit these words best, a line each."""
        ...

    async def add(self, name: str, server: NewServer) -> None:
        """Name an MCP server for this session alone, until the session or the node ends."""
        ...

    async def remove(self, name: str) -> bool:
        """Remove a server that was named for this session. Return False if there is none."""
        ...

    async def provide(self, server: str, tools: list[ToolSpec]) -> "ProvidedFunctions":
        """Offer functions of a client, until they are closed."""
        ...

    async def approvals(self) -> list[ApprovalInfo]:
        """Return the calls that wait for a person."""
        ...

    async def decide(self, approval_id: str, allow: bool, author: Author) -> ApprovalInfo:
        """Allow or refuse a call in the name of this author."""
        ...


class ProvidedFunctions(Protocol):
    """Functions of one client. The caller closes them."""

    def calls(self) -> AsyncIterator[FunctionCall | FunctionCancelled]:
        """Yield calls to carry out and calls to give up, until the session ends."""
        ...

    def answer(self, number: int, payload: bytes) -> None: ...

    def fail(self, number: int, message: str) -> None: ...

    def close(self) -> None:
        """Withdraw the functions. Calls in flight fail."""
        ...


class Folder(Protocol):
    """Files of one session, as its code sees them. Paths start at its folder; absolute ones must be granted."""

    async def open(self, path: str) -> "OpenFile": ...

    async def write(self, path: str, chunks: AsyncIterator[bytes], limit: int) -> tuple[FileInfo, bool]:
        """Write a file in one step. Return what it is now, and whether it is new."""
        ...

    async def remove(self, path: str, *, whole: bool = False) -> None:
        """Remove a file or an empty folder; with `whole` a folder and all in it."""
        ...

    async def stat(self, path: str) -> FileInfo: ...

    async def make_folder(self, path: str) -> tuple[FileInfo, bool]:
        """Make a folder and those around it. Return what it is now, and whether it is new."""
        ...

    async def move(self, path: str, target: str) -> FileInfo:
        """Move a file or a folder to another path."""
        ...

    async def list(self, path: str) -> FileList: ...

    async def pack(self, path: str) -> "OpenArchive":
        """Begin to read a file or a folder as a tar stream."""
        ...

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limit: int) -> Unpacked:
        """Unpack a tar stream into a folder, which is made if it is missing."""
        ...


class OpenArchive(Protocol):
    """Tar stream of a folder. The caller closes it."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the stream in bounded pieces. Raise an error instead of ending too early."""
        ...

    def close(self) -> None: ...


class OpenFile(Protocol):
    """File open for reading. The caller closes it."""

    size: int
    modified: float
    tag: str

    def chunks(self, start: int, count: int) -> AsyncIterator[bytes]:
        """Yield `count` bytes from `start` on, in bounded pieces."""
        ...

    def close(self) -> None: ...


class OpenValue(OpenFile, Protocol):
    """Value of a variable, as a file of one of the kinds in `ingle_worker.wire.values`."""

    kind: str


class Tasks(Protocol):
    """Shell tasks of a node."""

    async def start(self, new: NewTask) -> str:
        """Start a command and return the id of its task."""
        ...

    def task(self, task_id: str, tenant: str) -> "TaskHandle":
        """Return a handle of a task. Raise TaskNotFound here or at the first use of the handle."""
        ...

    async def end_shell(self, tenant: str, session_key: str | None, name: str) -> bool:
        """End a persistent shell and what runs in it. Return False if there is none of that name."""
        ...

    def list(self, tenant: str, limit: int, before: str | None) -> AsyncIterator[Task]:
        """Yield the tenant's last tasks, `limit` at most, without their text. `before` is the id of a task."""
        ...


class TaskHandle(Protocol):
    """One shell task of a node."""

    async def wait(self, seconds: float, *, from_event: int = 0, from_line: int = 0) -> Task:
        """Return the task once its shell has ended, or after `seconds`. If it had ended, wait for all of the task."""
        ...

    async def cancel(self) -> None: ...

    async def interrupt(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def input(self, text: str, *, eof: bool) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def output(self, stream: str, from_line: int, lines: int, grep: str | None) -> TaskOutput: ...

    def events(self, first: int) -> AsyncIterator[AnyEvent]:
        """Yield the task's events from `first` on, until the task is over."""
        ...


class Snapshots(Protocol):
    """Saved sessions of a node."""

    async def load(
        self, new: NewSession, source: str, start: str | None, *, trust: bool = False, rerun: bool = False
    ) -> Restored:
        """Create a session with the variables of a snapshot.

        `trust`: accept a snapshot of any writer. `rerun`: run the cells again that made what could not be saved.
        """
        ...

    async def delete(self, tenant: str, name: str) -> None: ...

    async def open(self, tenant: str, name: str) -> OpenFile:
        """Return a snapshot as one portable file."""
        ...

    async def write(self, tenant: str, name: str, chunks: AsyncIterator[bytes], limit: int) -> SnapshotInfo:
        """Store a portable file of at most `limit` bytes under a name."""
        ...

    def list(self, tenant: str) -> AsyncIterator[SnapshotInfo]:
        """Yield all snapshots. Each may name many variables, so they are not gathered."""
        ...


class Library(Protocol):
    """Each tenant's own library, which new sessions load."""

    async def add(self, tenant: str, addition: str, bounds: Bounds) -> StdlibChange:
        """Add code, once it has compiled and run in a session within these bounds."""
        ...

    async def list(self, tenant: str) -> Stdlib: ...


class Grants(Protocol):
    """Folders and hosts that sessions of a node may use."""

    async def add(self, new: NewGrant) -> GrantChange:
        """Grant a folder or host, until the node ends. What is granted already is never narrowed."""
        ...

    async def remove(self, grant_id: str) -> GrantChange: ...

    async def list(self) -> list[GrantInfo]: ...


class Environments(Protocol):
    """Named sets of packages for an interpreter."""

    async def build(self, name: str, new: NewEnvironment, seconds: float) -> EnvironmentInfo:
        """Build an environment beside the one of that name. Return it once it is built, or after `seconds`."""
        ...

    async def list(self) -> list[EnvironmentInfo]: ...

    async def remove(self, name: str) -> None:
        """Remove an environment that no session uses."""
        ...
