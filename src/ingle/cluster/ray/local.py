"""A Ray cluster on this machine, for trying things out: one head, several nodes, and a gateway.

Everything is below `cluster/` of the data folder, except the sockets of Ray, whose paths must be short. Each node has
an address of its own in 127.0.0.0/8, and a data folder of its own. Each process leads a process group: `kill -9 -PID`
is the sudden end of a node.
"""

import contextlib
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ingle.cluster.fence import watchdog
from ingle.cluster.fence.watchdog import descendants, send
from ingle.cluster.ray import RESOURCE
from ingle.cluster.token import FILE as CLUSTER_TOKEN
from ingle.cluster.token import VARIABLE as CLUSTER_TOKEN_VARIABLE
from ingle.cluster.token import ClusterToken
from ingle.errors import Conflict, InvalidRequest, StartFailed

START_SECONDS = 90.0
"""Time limit for the start of one process of the cluster."""

STARTS = 3
"""Attempts to start a process of Ray. Ray gives a node half a minute, in which a busy machine may not do it."""

TOO_SLOW = "timed out during startup"
"""What Ray says then."""

STOP_SECONDS = 6.0
"""Time limit for a graceful end of one process: longer than the watchdog's for an agent."""

STEP_SECONDS = 0.05
"""Interval at which a starting or ending process is looked at."""

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Memory for objects of Ray: the least that Ray accepts. Nothing of ours goes there."""

MAX_NODES = 200

TUNING = {
    # A head that was restarted finds its actors again, and nodes wait for it.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    # A lost node is known after 4 s rather than 60 s, so that its agent is started on another one.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    # Workers of Ray are nice by default, and so would be the sessions.
    "RAY_worker_niceness": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Settings of Ray for every process of the cluster."""


class Process(Struct, frozen=True):
    """One process of the cluster, which leads a session and a process group."""

    name: str
    host: str
    pid: int
    started: int
    """Start of the process in ticks since boot: another process may get the same pid later."""

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.started


class State(Struct):
    """What `state.json` holds."""

    network: str
    """First three bytes of the addresses. The head has number 1."""
    port: int
    """Port of the head."""
    sockets: str
    """Folder of Ray's sockets and logs."""
    head: Process | None = None
    gateway: Process | None = None
    nodes: list[Process] = field(default_factory=list)


class LocalCluster:
    """The local cluster of a data folder. Methods block."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.folder = home / "cluster"
        self._file = self.folder / "state.json"

    def exists(self) -> bool:
        return self._file.exists()

    @property
    def state(self) -> State:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=State)
        except FileNotFoundError:
            raise InvalidRequest(
                f"no local cluster is in {self._home}; start one with `ingle cluster up --nodes 3`"
            ) from None

    @property
    def address(self) -> str:
        state = self.state
        return f"{host_of(state, 0)}:{state.port}"

    @property
    def store(self) -> str:
        """Return the folder that all nodes share as their store."""
        return str(self.folder / "store")

    def ray_variables(self) -> dict[str, str]:
        """Return the variables by which a process finds Ray's token."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "ray.token"), **TUNING}

    def cluster_variables(self) -> dict[str, str]:
        """Return the settings that gateways and agents share."""
        return {CLUSTER_TOKEN_VARIABLE: str(self.folder / CLUSTER_TOKEN), "INGLE_STORE": self.store}

    def prepare(self, network: str | None = None) -> None:
        """Create the folder, the tokens and the state of a new cluster, with addresses in this network of 256."""
        if self.exists():
            return
        for folder in (self.folder, self.folder / "logs", self.folder / "store"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.folder / "ray.token", secrets.token_urlsafe(32))
        ClusterToken.make(self.folder / CLUSTER_TOKEN)
        network = network or f"127.{random.randint(1, 250)}.{random.randint(1, 250)}"
        self._write(State(network, free_port(f"{network}.1"), tempfile.mkdtemp(prefix="ingle-ray-")))

    def start_head(self) -> Process:
        """Start the head, or start it again with what the one before knew."""
        state = self.state
        if state.head is not None and state.head.alive:
            return state.head
        host = host_of(state, 0)
        variables = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "gcs")}
        arguments = ["--head", f"--port={state.port}", f"--temp-dir={state.sockets}", "--num-cpus=0"]
        head = self._start_ray("head", host, [*arguments, "--include-dashboard=false"], variables)
        self._change(head=head)
        return head

    def start_node(self, name: str | None = None, prefix: tuple[str, ...] = (), **variables: str) -> Process:
        """Start one more node, or one of this name again.

        `prefix` comes before its command line, as `ip netns exec NAME` does. `variables` are settings of its agent.
        """
        state = self.state
        number = int(name.removeprefix("node-")) if name else next_number(state)
        if number > MAX_NODES:
            raise InvalidRequest(f"a local cluster has at most {MAX_NODES} nodes")
        name = f"node-{number}"
        if any(node.name == name and node.alive for node in state.nodes):
            raise Conflict(f"{name} runs already")
        home = self.folder / "nodes" / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        variables = {"INGLE_NODE": name, "INGLE_HOME": str(home), **self.cluster_variables(), **variables}
        resources = msgspec.json.encode({RESOURCE: 1}).decode()
        arguments = [f"--address={self.address}", "--num-cpus=1", f"--resources={resources}"]
        node = self._start_ray(name, host_of(state, number), arguments, variables, prefix)
        others = [each for each in self.state.nodes if each.name != name]
        self._change(nodes=sorted([*others, node], key=number_of))
        return node

    def start_gateway(self, arguments: list[str]) -> Process:
        """Start a gateway in the background, and wait until it listens."""
        state = self.state
        if state.gateway is not None and state.gateway.alive:
            return state.gateway
        command = [sys.executable, "-m", "ingle", "serve", "--cluster", "auto", *arguments]
        variables = {**self.cluster_variables(), "INGLE_HOME": str(self._home)}
        gateway = self._start("gateway", "127.0.0.1", command, variables, "listens on")
        self._change(gateway=gateway)
        return gateway

    def stop_node(self, name: str) -> None:
        """End a node: its agent gracefully, then the processes of Ray, which would wait for half a minute, at once."""
        node = self._node(name)
        agents = [pid for pid, _ in descendants(node.pid) if is_watchdog(pid)]
        send(signal.SIGTERM, agents)
        wait_until(lambda: not any(start_of(pid) for pid in agents), STOP_SECONDS)
        self.kill_node(name)

    def kill_node(self, name: str) -> None:
        """Kill all processes of a node at once, its sessions included."""
        node = self._node(name)
        if node.alive:
            # A process that sees another one end would act: an agent would end its sessions in order.
            stopped: set[int] = set()
            while found := {node.pid, *(pid for pid, _ in descendants(node.pid))} - stopped - {os.getpid()}:
                send(signal.SIGSTOP, found)
                stopped |= found
            send(signal.SIGKILL, stopped)
        kill_session(node.pid)

    def _node(self, name: str) -> Process:
        for node in self.state.nodes:
            if node.name == name:
                return node
        raise InvalidRequest(f"there is no node {name[:80]!r}; `ingle cluster status` lists the nodes")

    def remove_node(self, name: str) -> None:
        self.stop_node(name)
        self._change(nodes=[node for node in self.state.nodes if node.name != name])

    def kill_head(self) -> None:
        """Kill all processes of the head at once. `start_head` brings it back."""
        head = self.state.head
        if head is not None:
            kill_session(head.pid)
            wait_until(lambda: not head.alive, STOP_SECONDS)

    def down(self) -> None:
        """End all processes. Remove what belongs to Ray; the store and the nodes' data stay."""
        state = self.state
        gateway = state.gateway
        if gateway is not None and gateway.alive:
            os.kill(gateway.pid, signal.SIGTERM)
            wait_until(lambda: not gateway.alive, STOP_SECONDS)
            kill_session(gateway.pid)
        for node in state.nodes:
            self.stop_node(node.name)
        self.kill_head()
        shutil.rmtree(state.sockets, ignore_errors=True)
        shutil.rmtree(self.folder / "gcs", ignore_errors=True)
        self._file.unlink()

    def _start_ray(
        self,
        name: str,
        host: str,
        arguments: list[str],
        variables: dict[str, str],
        prefix: tuple[str, ...] = (),
    ) -> Process:
        ray = Path(sys.executable).with_name("ray")
        if not ray.exists():
            raise StartFailed("Ray is not installed; run `pip install 'ingle[ray]'`")
        command = [
            *(*prefix, str(ray), "start", f"--node-ip-address={host}", "--block", "--disable-usage-stats"),
            *("--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=false"),
            *(f"--object-store-memory={OBJECT_STORE_BYTES}", *arguments),
        ]
        for attempt in range(STARTS):
            if name == "head":
                # It names a head that has ended. A new one would take it for its own.
                (Path(self.state.sockets) / "ray_current_cluster").unlink(missing_ok=True)
            try:
                return self._start(name, host, command, {**self.ray_variables(), **variables}, "runtime started")
            except StartFailed as error:
                if TOO_SLOW not in error.message or attempt == STARTS - 1:
                    raise
        raise AssertionError

    def _start(self, name: str, host: str, command: list[str], variables: dict[str, str], word: str) -> Process:
        """Start a process in the background and wait until its log has the word."""
        kept = {key: value for key, value in os.environ.items() if not key.upper().startswith("RAY_")}
        path = self.folder / "logs" / f"{name}.log"
        with open(path, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, **variables},
                start_new_session=True,
            )
        started = start_of(process.pid) or 0
        ready = wait_until(lambda: word.encode() in path.read_bytes() or process.poll() is not None, START_SECONDS)
        if not ready or process.poll() is not None:
            kill_session(process.pid)
            raise StartFailed(f"the {name} of the cluster did not start: {last_line(path)}; {path} has the details")
        # The process is left running, and is known by the state from now on.
        process.returncode = 0
        return Process(name, host, process.pid, started)

    def _change(self, **changes: "Process | list[Process]") -> None:
        self._write(msgspec.structs.replace(self.state, **changes))

    def _write(self, state: State) -> None:
        write_private(self._file, msgspec.json.encode(state).decode())


def host_of(state: State, number: int) -> str:
    """Return the address of a node; the head has number 0."""
    return f"{state.network}.{number + 1}"


def number_of(node: Process) -> int:
    return int(node.name.removeprefix("node-"))


def next_number(state: State) -> int:
    """Return the lowest number that no node has."""
    used = {number_of(node) for node in state.nodes}
    return next(number for number in itertools.count(1) if number not in used)


def start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot, or None if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
        return None if words[0] in (b"Z", b"X") else int(words[19])
    return None


def is_watchdog(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return watchdog.__name__.encode() in file.read().split(b"\0")
    return False


def kill_session(leader: int) -> None:
    """Kill every process of the session that `leader` has begun."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_SECONDS)
    return True


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it wrote nothing"


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 in one step."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    draft.replace(path)
