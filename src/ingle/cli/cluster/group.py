"""`ingle cluster`: a cluster on this machine, and the nodes of any cluster."""

from typing import TYPE_CHECKING, Any

import click

from ingle.cli.commands.sessions import laid_out
from ingle.cli.echo import echo, echo_json, tell
from ingle.cli.failure import Failure
from ingle.cli.options import Quantity, VerbGroup
from ingle.cli.services import LOOK_SECONDS, Choice, Target, find_targets, service_options
from ingle.errors import Unreachable
from ingle.quantities import SECONDS
from ingle.settings import data_folder

if TYPE_CHECKING:
    from ingle.cluster.ray.local import LocalCluster, Process

DRAIN_SECONDS = 300.0
"""Time for the moves of a drain, beside the wait for running cells."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON documents, one a line.")


@click.group(cls=VerbGroup, epilog="Example: ingle cluster up --nodes 3")
def cluster() -> None:
    """Run sessions on many machines, or try that out on this one.

    `up` starts a cluster of Ray on this machine, with a gateway that other commands find. On real machines start Ray
    itself, and gateways with `ingle serve --cluster ray://HEAD:PORT`.
    """


@cluster.command(epilog="Example: ingle cluster up --nodes 3 --port 8400")
@click.option("--nodes", type=click.IntRange(1, 200), default=3, show_default=True, help="Number of nodes.")
@click.option("--port", type=int, help="Port of the gateway; 0 uses any free port. Default: the setting.")
@click.option("--no-gateway", is_flag=True, help="Start no gateway.")
@json_option
def up(nodes: int, port: int | None, no_gateway: bool, as_json: bool) -> None:
    """Start a cluster on this machine: a head, nodes, and a gateway.

    It starts only the missing parts, so it also repairs a cluster after a crash. `ingle cluster down` ends everything.
    """
    local = _local()
    local.prepare()
    _say(local.start_head(), as_json)
    for node in local.state.nodes:
        if not node.alive:
            _say(local.start_node(node.name), as_json)
    while len(local.state.nodes) < nodes:
        _say(local.start_node(), as_json)
    if not no_gateway:
        _say(local.start_gateway([] if port is None else ["--port", str(port)]), as_json)
    if as_json:
        return
    echo("try      ingle run -s main '6 * 7'")
    echo("end      ingle cluster down")


@cluster.command(epilog="Example: ingle cluster status --json")
@service_options
@json_option
def status(choice: Choice, as_json: bool) -> None:
    """List the nodes, with the number of sessions on each."""
    rows = _status(choice)
    if as_json:
        echo_json({"nodes": rows})
        return
    table: list[tuple[str, ...]] = [("NODE", "ADDRESS", "PID", "STATE", "SESSIONS")]
    table += [tuple("-" if value is None else str(value) for value in row.values()) for row in rows]
    for line in laid_out(table):
        echo(line)


@cluster.command(epilog="Example: ingle cluster scale 5")
@click.argument("count", type=click.IntRange(1, 200))
@service_options
@json_option
def scale(count: int, choice: Choice, as_json: bool) -> None:
    """Set the number of nodes.

    A local cluster gets more nodes, or nodes without sessions end. In another cluster the gateway asks Ray for so many
    agents, and Ray's autoscaler starts the machines.
    """
    local = _local()
    if choice.url is not None or not local.exists():
        _gateway(choice).ask("PUT", "/v1/nodes", {"count": count})
        if as_json:
            echo_json({"count": count})
        return
    running = [node.name for node in local.state.nodes if node.alive]
    ended = [node.name for node in local.state.nodes if not node.alive]
    missing = max(0, count - len(running))
    leaving = ended[missing:] + _without_sessions(running, len(running) - count, choice)
    for name in (*ended[:missing], *[None] * (missing - len(ended))):
        _say(local.start_node(name), as_json)
    for name in leaving:
        local.remove_node(name)
        tell({"node": name, "state": "ended"}, f"{name} has ended", as_json)


def _without_sessions(nodes: list[str], count: int, choice: Choice) -> list[str]:
    """Return so many nodes without sessions, the last ones first. Raise Failure if there are fewer."""
    from ingle.render.phrases import counted

    if count <= 0:
        return []
    sessions = {told["node"]: told["sessions"] for told in _machines(choice)}
    unused = [name for name in reversed(nodes) if not sessions.get(name)]
    if len(unused) < count:
        used = next(name for name in reversed(nodes) if sessions.get(name))
        has = counted(sessions[used], "session")
        raise Failure(f"{used} has {has}; run `ingle cluster drain {used}` first, or choose a higher number")
    return unused[:count]


@cluster.command(epilog="Example: ingle cluster drain node-2 --wait 5m")
@click.argument("node")
@click.option("--wait", "seconds", type=Quantity(SECONDS), default=60.0, help="Time for running cells.  [default: 1m]")
@service_options
@json_option
def drain(node: str, seconds: float, choice: Choice, as_json: bool) -> None:
    """Move the sessions of a node to others. It gets no more until it is started again.

    A session is saved and goes on elsewhere once its cell has ended. One whose cell runs longer than `--wait` stays.
    """
    gateway = _gateway(choice)
    told = gateway.ask("POST", f"/v1/nodes/{node}/drain", {"seconds": seconds}, timeout=seconds + DRAIN_SECONDS)
    tell(told, f"{len(told['moved'])} sessions moved", as_json)
    for key, why in told["stayed"].items():
        echo(f"{key} stayed: {why}", err=True)
    if told["stayed"]:
        raise SystemExit(1)


@cluster.command(epilog="Example: ingle cluster kill --of main")
@click.argument("node", required=False)
@click.option("--of", "session", help="Kill the node of this session.")
@service_options
@json_option
def kill(node: str | None, session: str | None, choice: Choice, as_json: bool) -> None:
    """Kill a node of the local cluster at once, to see what a crash does."""
    if (node is None) == (session is None):
        raise click.UsageError("name a node, or a session with --of")
    if node is None:
        node = str(_gateway(choice).ask("GET", f"/v1/sessions/{session}")["node"])
    _local().kill_node(node)
    tell({"node": node, "state": "ended"}, f"{node} was killed", as_json)


@cluster.command(epilog="Example: ingle cluster down")
@json_option
def down(as_json: bool) -> None:
    """End the local cluster. Saved sessions stay in its store."""
    _local().down()
    if as_json:
        echo_json({"nodes": []})


def _local() -> "LocalCluster":
    from ingle.cluster.ray.local import LocalCluster

    return LocalCluster(data_folder())


def _say(process: "Process", as_json: bool) -> None:
    """Tell a process that runs now: one line, or one JSON document."""
    told = {"node": process.name, "address": process.host, "pid": process.pid, "state": "running"}
    tell(told, f"{process.name.ljust(8)} {process.host}", as_json)


def _gateway(choice: Choice) -> Target:
    """Return a gateway: the one at the URL, or the first server on this machine."""
    targets = [target for target in find_targets(choice) if target.info is None or target.info.kind == "serve"]
    if not targets:
        raise Failure("no gateway runs here; start one with `ingle cluster up`, or pass --url")
    return targets[0]


def _machines(choice: Choice) -> list[dict[str, Any]]:
    """Return the machines that a gateway knows."""
    told: list[dict[str, Any]] = _gateway(choice).ask("GET", "/v1/nodes", timeout=LOOK_SECONDS)["nodes"]
    return told


def _status(choice: Choice) -> list[dict[str, Any]]:
    """Return one row for each machine: as the gateway knows it, and for a local cluster its processes."""
    local = _local()
    if choice.url is not None or not local.exists():
        return [
            {
                "node": told["node"],
                "address": None,
                "pid": None,
                "state": _word(told),
                "sessions": told["sessions"],
            }
            for told in _machines(choice)
        ]
    try:
        known = {told["node"]: told for told in _machines(choice)}
    except (Failure, Unreachable):
        known = {}
    state = local.state
    return [
        {
            "node": process.name,
            "address": process.host,
            "pid": process.pid,
            "state": "ended" if not process.alive else _word(known.get(process.name, {})),
            "sessions": known.get(process.name, {}).get("sessions"),
        }
        for process in (state.head, *state.nodes, state.gateway)
        if process is not None
    ]


def _word(told: dict[str, Any]) -> str:
    """Return the state of a machine in a word."""
    if told.get("draining"):
        return "draining"
    return "running" if told.get("connected", True) else "out of reach"
