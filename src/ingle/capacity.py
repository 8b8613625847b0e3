"""Public shapes: how many sessions a node holds, what they use (CPU, memory, hosts), and counters."""

from msgspec import Struct, field


class Capacity(Struct, frozen=True):
    """How many sessions a node holds at once, and what bounds the number."""

    sessions: int
    bound: str
    """What bounds the number, in words."""
    remedy: str
    """How to raise it, in the imperative."""
    connections: int
    """How many connections of clients it has file descriptors for."""

    @property
    def sentence(self) -> str:
        """Return the number and its bound, for a banner."""
        return f"up to {self.sessions} sessions at once, because {self.bound}"


class UsageSample(Struct, frozen=True, gc=False):
    """Use of CPU and memory at one time."""

    time: float
    cpus: float
    """CPUs in use since the sample before; 1.0 is one of them."""
    memory: int
    """Bytes of all processes together."""


class ProcessUse(Struct, frozen=True, gc=False):
    """A process of a session."""

    name: str
    memory: int
    """Bytes in memory. Pages that it shares with other processes are counted for each."""


class SessionUsage(Struct):
    """What a session used in the last half hour. It is sampled while it runs cells, and when it is asked for."""

    session_id: str
    samples: list[UsageSample]
    memory_limit: int | None = None
    """Bytes that all its processes may use together; null without a limit."""
    cpus: int = 1
    """CPUs of the machine."""
    processes: list[ProcessUse] = []
    """Those that run now, the largest first; at most 100."""
    disk: int | None = None
    """Bytes of the files in its own folder, as of a few seconds ago."""


class MachineUsage(Struct):
    """What the whole machine used in the last half hour."""

    samples: list[UsageSample]
    cpus: int
    memory_total: int
    memory_available: int
    sessions: int
    """Live sessions of all tenants."""


class HostUse(Struct):
    """A host that code asked for through the proxy."""

    host: str
    """With its port."""
    reached: int = 0
    """Connections that were opened."""
    refused: int = 0
    last: float = 0.0
    """Time of the last one."""
    flag: str | None = None
    """Flag of the server that would allow the host, if it was refused."""


class NetworkUse(Struct):
    """Hosts that a session asked for, the last one first."""

    session_id: str
    network: str
    hosts: list[HostUse]
    more: int = 0
    """Hosts that were asked for earlier and are forgotten."""
    notices: list[str] = field(default_factory=list)
    """Why hosts are not known, or of which other sessions some are."""


class Histogram(Struct):
    """Number of values up to each bound; the last count is for values above all bounds."""

    bounds: list[float]
    counts: list[int]
    sum: float


class Metrics(Struct):
    """Counters of a node. They do not identify sessions."""

    sessions: dict[str, int]
    cells: dict[str, int]
    cell_seconds: Histogram
    start_seconds: Histogram
    worker_exits: dict[str, int]
    output_bytes: int
    egress: dict[str, int] = field(default_factory=dict)
    """Connections through the proxy."""
    egress_bytes: int = 0
    max_sessions: int = 0
    """How many sessions may live at once."""
    gpu_memory: int = 0
    """Bytes that all sessions use on GPUs."""
    gpu_utilization: int = 0
    """Percent of the time in which a GPU computed for sessions, added up over the GPUs."""
    starts_waiting: int = 0
    """Requests for sessions that wait for their turn."""


class MachineInfo(Struct):
    """One machine that sessions run on."""

    node: str
    """Its name, as sessions tell it."""
    sessions: int
    capacity: int
    """Sessions that it holds at most."""
    connected: bool = True
    """Whether this server reaches it."""
    draining: bool = False
    """Whether it gets no more sessions."""


class Drained(Struct):
    """What became of the sessions of a machine."""

    node: str
    moved: list[str] = field(default_factory=list)
    """Keys of sessions that are on other machines now."""
    stayed: dict[str, str] = field(default_factory=dict)
    """Keys of sessions that did not move, and why."""


class Load(Struct):
    """What one tenant uses at the moment."""

    sessions: int
    running: int
    """Cells that run."""
    tasks: int = 0
    """Shell tasks that run."""
    shells: list[str] = field(default_factory=list)
    """Keys of its live persistent shells (`shell_key`)."""
