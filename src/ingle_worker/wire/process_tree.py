"""Messages to and from the processes above sessions: a session's init, the zygote, a shell task's init."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


# --- a session's init -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interrupt:
    """Order to send SIGINT to the worker's process group if it runs this cell. `again`: only if the last was
    ignored. `memory`: to the worker alone, where it raises MemoryError."""

    order: int
    cell: int
    again: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Kill:
    """Order to kill everything below init now."""


@dataclass(frozen=True)
class Stay:
    """Order to wait for another session, instead of ending with the last worker.

    The socket for its `Fork` comes with the frame. Init still kills everything below it first, and reports Swept.
    """

    folders: list[str] = field(default_factory=list)
    """Folders of the session that ends. Before it reports Swept, init removes those that are empty, in this order."""


@dataclass(frozen=True)
class KeepEnds:
    """Order to keep the host's descriptors of this worker while it is idle. They come with the frame.

    Init returns them on `ReturnEnds`, when one of them can be read, and at the worker's end.
    """


@dataclass(frozen=True)
class ReturnEnds:
    """Order to return the descriptors of `KeepEnds` now."""


@dataclass(frozen=True)
class EndsReturned:
    """The descriptors of `KeepEnds` come with the frame, in the same order."""


@dataclass(frozen=True)
class Adopt:
    """Announcement of one more worker in this slot. Its status socket comes with the frame.

    The answer, on that socket, is InitUp without a worker.
    """

    slot: int


@dataclass(frozen=True)
class Enter:
    """Order to mount these folders of the data folder in the session's sandbox. It comes before `Start`.

    `own` folders are created first. `shared` ones exist already, and `shown` ones are read-only. The first of `own` is
    also mounted at the path `home`, if there is one.
    """

    own: list[str]
    shared: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """Own folders that show another folder of the data folder."""
    home: str = ""


@dataclass(frozen=True)
class MakeView:
    """Order to make a view: namespaces in which the folder `target` shows `own`/workspace, or `shown`.

    Of the folders beside `own`, nothing is seen there. The answer is JSON and descriptors, on the socket that comes
    with the frame: the user namespace, the mount namespace, and with `network` a network namespace and the listening
    socket of its proxy.
    """

    own: str
    target: str
    network: bool = False
    protected: list[str] = field(default_factory=list)
    """Folders in which nothing is changed from there: what is written lands in a layer below `own`."""
    shown: str = ""
    """Workspace of another copy, which this one shares. Empty: it has its own."""


@dataclass(frozen=True)
class UseView:
    """Order to run file agents and shell tasks of this worker in its view. The mount namespace comes with the frame."""


@dataclass(frozen=True)
class CloseView:
    """Order to have this worker's view show the files of its session. The answer comes as that of `MakeView`."""

    own: str
    target: str
    protected: list[str] = field(default_factory=list)
    fork: str = ""
    """Folder of the session, if it is a fork: without a view, `target` shows the files of the first session."""
    shown: str = ""
    """Workspace of the fork."""


@dataclass(frozen=True)
class Join:
    """First message to an init that was promised a cgroup. One descriptor per cgroup hierarchy comes with the frame.

    It is a file to write `0` to, or a folder to fork into. There is none if no group is possible.
    """


@dataclass(frozen=True)
class Shell:
    """Order to run a shell task in this session's sandbox. The status socket of its init comes with the frame."""


@dataclass(frozen=True)
class ServeFiles:
    """Order to fork a file agent in this session's confinement. Its socket comes with the frame."""

    outside: bool = False
    """Whether the agent sees the files of the sandbox, also if the worker has a view."""


@dataclass(frozen=True)
class NotEntered:
    """The sandbox could not be entered, and init ends."""

    reason: str


@dataclass(frozen=True)
class InitUp:
    """Init runs. `worker` is 0 if there is none yet. `joined`: the worker is in the promised cgroup.

    With the frame comes the only way out of a sandbox whose network is an allow-list: a listening socket in that
    network, on which the host's proxy accepts.
    """

    pid: int
    worker: int
    joined: bool = False
    tmp: int = 0
    """Bytes of the session's own file system at /tmp, as the kernel has it. 0 without one."""


@dataclass(frozen=True)
class Swept:
    """Nothing is left of a worker. The parent of a killed init sends it with that init's pid.

    `stays`: init has no workers any more, and waits for another session.
    """

    pid: int = 0
    stays: bool = False


@dataclass(frozen=True)
class Signalled:
    """The signal was sent. `ignored`: the worker ignores SIGINT now, so send it again."""

    order: int
    ignored: bool


@dataclass(frozen=True)
class Exited:
    """The worker's wait status and resource usage, sent before its descendants are killed."""

    status: int
    cpu_seconds: float
    peak_kib: int


# --- the zygote -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Order to fork one more worker. Its five descriptors come with the frame.

    `pooled`: it is for the pool, so it has time to rehearse. `uid`: its user, if the server is root. `network`: set if
    it differs from the zygote's default. `group`: a `Join` follows on its status socket. `limits`: those that differ
    from the zygote's plan (`files`, `file_size`, `tmp`, `memory`, `nice`).
    """

    ticket: int
    pooled: bool = False
    uid: int = 0
    network: str = ""
    group: bool = False
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Prove:
    """First order to a zygote with confined sessions: confine a child and let it attack.

    `uid` is its user, as in Fork. `secret` is a file of the server, `port` one it listens on, `server` its pid.
    """

    uid: int
    secret: str
    port: int
    server: int


@dataclass(frozen=True)
class Proof:
    """Result of the self-test: attacks that succeeded, or why the child could not be confined. Both empty: passed."""

    succeeded: list[str]
    refused: str = ""


@dataclass(frozen=True)
class ZygoteReady:
    """The zygote takes orders. `missing` modules could not be preloaded."""

    pid: int
    python: str
    executable: str
    preloaded: list[str]
    missing: list[str]


@dataclass(frozen=True)
class ForkFailed:
    """Report that a Fork failed."""

    ticket: int
    reason: str


# --- a shell task's init --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Order to start a program. Its stdin, stdout and stderr come with the frame. A limit of 0 means none.

    `pty`: the three are one terminal, which becomes the program's controlling terminal. `lingers`: background processes
    may outlive the program, and init with them; otherwise they end with it.
    """

    argv: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    lingers: bool = True
    memory: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0
    files: int = 0
    file_size: int = 0


@dataclass(frozen=True)
class Signal:
    """Order to signal everything below init, or only the program's process group. The answer is Signalled.

    `again`: repeat the last SIGINT only for a process that missed it.
    """

    order: int
    number: int
    group: bool = False
    again: bool = False


@dataclass(frozen=True)
class RunFailed:
    """The program could not be started. `no_folder`: its working folder is missing or not accessible."""

    reason: str
    no_folder: bool = False


@dataclass(frozen=True)
class ProgramExited:
    """The program's wait status and the resource usage so far. `left`: some of its processes still run."""

    status: int
    cpu_seconds: float
    peak_kib: int
    left: bool


@dataclass(frozen=True)
class TreeEnded:
    """The last process below init is gone."""

    cpu_seconds: float
    peak_kib: int


@dataclass(frozen=True)
class Breach:
    """A limit was exceeded, by this much. Everything below init is being killed."""

    limit: str
    used: float
