"""`ingle cluster`: a cluster on this machine, and the nodes of any cluster."""

from typing import TYPE_CHECKING, Any

import click

from ingle.cli.commands.sessions import laid_out
from ingle.cli.echo import echo
from ingle.cli.failure import Failure, plain_failures
from ingle.cli.services import Choice, Target, find_targets, list_sessions, service_options
from ingle.errors import Unreachable
from ingle.settings import data_folder

if TYPE_CHECKING:
    from ingle.cluster.ray.local import LocalCluster, Process

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(epilog="Example: ingle cluster up --nodes 3")
def cluster() -> None:
    """Run sessions on many machines, or try that out on this one.

    `up` starts a cluster of Ray on this machine. On real machines start Ray itself.
    """


@cluster.command(epilog="Example: ingle cluster up --nodes 3")
@click.option("--nodes", type=click.IntRange(1, 200), default=3, show_default=True, help="Number of nodes.")
def up(nodes: int) -> None:
    """Start a cluster on this machine: a head and nodes.

    What runs already stays: `up` starts what is missing, also after a crash. `ingle cluster down` ends everything.
    """
    with plain_failures():
        local = _local()
        local.prepare()
        _say(local.start_head())
        for node in local.state.nodes:
            if not node.alive:
                _say(local.start_node(node.name))
        while len(local.state.nodes) < nodes:
            _say(local.start_node())
    echo("end      ingle cluster down")


@cluster.command(epilog="Example: ingle cluster status --json")
@service_options
@json_option
def status(choice: Choice, as_json: bool) -> None:
    """List the nodes, with the number of sessions on each."""
    with plain_failures():
        rows = _status(choice)
        if as_json:
            import msgspec

            echo(msgspec.json.encode({"nodes": rows}))
            return
    table: list[tuple[str, ...]] = [("NODE", "ADDRESS", "PID", "STATE", "SESSIONS")]
    table += [tuple("-" if value is None else str(value) for value in row.values()) for row in rows]
    for line in laid_out(table):
        echo(line)


@cluster.command(epilog="Example: ingle cluster kill node-2")
@click.argument("node")
def kill(node: str) -> None:
    """Kill a node of the local cluster at once, to see what a crash does."""
    with plain_failures():
        _local().kill_node(node)


@cluster.command(epilog="Example: ingle cluster down")
def down() -> None:
    """End the local cluster. Saved sessions stay in its store."""
    with plain_failures():
        _local().down()


def _local() -> "LocalCluster":
    from ingle.cluster.ray.local import LocalCluster

    return LocalCluster(data_folder())


def _say(process: "Process") -> None:
    echo(f"{process.name.ljust(8)} {process.host}")


def _gateway(choice: Choice) -> Target:
    """Return a gateway: the one at the URL, or the first server on this machine."""
    targets = [target for target in find_targets(choice) if target.info is None or target.info.kind == "serve"]
    if not targets:
        raise Failure("no gateway runs here; start one with `ingle cluster up`, or pass --url")
    return targets[0]


def _status(choice: Choice) -> list[dict[str, Any]]:
    """Return one row for each node: what the gateway knows, and for a local cluster its processes."""
    counts: dict[str, int] = {}
    known = False
    try:
        for session in list_sessions(_gateway(choice)):
            counts[session.get("node") or ""] = counts.get(session.get("node") or "", 0) + 1
        known = True
    except (Failure, Unreachable):
        if choice.url is not None:
            raise
    state = _local().state
    return [
        {
            "node": process.name,
            "address": process.host,
            "pid": process.pid,
            "state": "running" if process.alive else "ended",
            "sessions": counts.get(process.name, 0) if known and process in state.nodes else None,
        }
        for process in (state.head, *state.nodes, state.gateway)
        if process is not None
    ]
