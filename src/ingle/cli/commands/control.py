"""`ingle new`, `clear`, `interrupt`, `stop` and `approve`: the life of a session, and the end of a server."""

import os
import signal
import sys
import time
from typing import Any

import click

from ingle import errors
from ingle.cli.commands.run import env_option
from ingle.cli.completion import complete_sessions, session_argument
from ingle.cli.echo import echo, echo_json, tell
from ingle.cli.failure import Failure
from ingle.cli.options import Quantity
from ingle.cli.services import (
    Choice,
    Target,
    find_or_choose,
    find_session,
    find_targets,
    list_sessions,
    only_target,
    service_options,
)
from ingle.quantities import BYTES, SECONDS
from ingle.settings import LEVELS, NETWORKS
from ingle.support import processes

STOP_SECONDS = 60.0
"""Time for a server to end its sessions after SIGTERM."""

POLL_SECONDS = 0.02

MAX_APPROVALS = 20
"""Calls that `approve` shows at once."""


@click.command(epilog="Example: ingle new work --durable --memory 1G; ingle run -s work 'x = 1'")
@click.argument("name", required=False)
@service_options
@click.option("--python", metavar="PATH", help="Use this interpreter, CPython 3.10 or later.")
@click.option("--cwd", metavar="DIR", help="Start in this folder. Default: this one if it is granted, else its own.")
@env_option
@click.option("--durable", is_flag=True, help="Save it after each cell, and bring it back after a restart.")
@click.option("--isolation", type=click.Choice(LEVELS), help="Lowest isolation level; the server's may be stronger.")
@click.option("--network", type=click.Choice(NETWORKS), help="Most network access; the server's may be less.")
@click.option("--gpus", metavar="all|none|N,N", help="GPUs that it may use; the server may allow less.")
@click.option("--memory", type=Quantity(BYTES, least=1), help="Maximum memory of all its processes.")
@click.option("--idle-timeout", type=Quantity(SECONDS), help="Time without use after which it counts as idle.")
@click.option("--checkpoints", type=click.Choice(["manual", "auto"]), help="auto: one before each cell.")
@click.option("--shares", metavar="SESSION", help="Use the folder of this session of yours.")
@click.option("--home", metavar="PATH", help="Show its folder at this path of a sandbox, such as /home/user.")
@click.option("--json", "as_json", is_flag=True, help="Print the session as one JSON document.")
def new(
    name: str | None,
    choice: Choice,
    cwd: str | None,
    memory: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Create a session of a running service, and print its name.

    Without NAME the service chooses one. `ingle run -s NAME` creates a session too; this command sets its options.
    """
    body = {key: value for key, value in given.items() if value}
    if name is not None:
        body["session_id"] = name
    if memory is not None:
        body["limits"] = {"memory": memory}
    target = find_or_choose(choice, name or "")
    local = target.address.path is not None
    here = os.getcwd() if local and not (given["shares"] or given["home"]) else None
    try:
        place = os.path.abspath(cwd) if cwd is not None and local else cwd or here
        said = target.ask("POST", "/v1/sessions", body if place is None else {**body, "cwd": place})
    except errors.NotGranted:
        if cwd is not None:
            raise
        said = target.ask("POST", "/v1/sessions", body)
    if as_json:
        echo_json(said)
        return
    echo(said["session_id"])
    for notice in said["notices"]:
        echo(f"ingle: {notice}", err=True)


@click.command(epilog="Example: ingle clear main")
@session_argument
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print the session as one JSON document.")
def clear(session: str, choice: Choice, as_json: bool) -> None:
    """Reset the namespace of a session; its name, folder and output are kept."""
    said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/clear", {})
    tell(said, f"session {session!r} has no variables any more", as_json)


@click.command(epilog="Example: ingle interrupt main")
@session_argument
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print the result of the cell as one JSON document.")
def interrupt(session: str, choice: Choice, as_json: bool) -> None:
    """Interrupt the running cell of a session; its state is kept."""
    said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/interrupt", {})
    if as_json:
        echo_json(said)
    elif said.get("interrupted") is False:
        echo("no cell was running, so nothing was interrupted")
    else:
        echo(f"cell {said['cell']} is {said['status']}")


@click.command(epilog="Example: ingle stop main; ingle stop a b; ingle stop --server --pid 4711")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, shell_complete=complete_sessions)
@service_options
@click.option("--server", is_flag=True, help="Stop a server and all its sessions; not with --url.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document for each session, or for the server.")
def stop(sessions: tuple[str, ...], choice: Choice, server: bool, as_json: bool) -> None:
    """End sessions with everything they started, or a whole server.

    If one of the sessions does not exist, none is ended. `ingle rm` is the same.
    """
    if not sessions and not server:
        raise click.UsageError("name a session (`ingle ps` lists them), or pass --server to end the whole server")
    if sessions and server:
        raise click.UsageError("a session or --server, not both; --server ends all its sessions")
    if server:
        target = _the_server(choice)
        said = _stop_server(target)
        tell(said, f"the server ({target}) has ended", as_json)
    for session, target in {name: find_session(choice, name) for name in sessions}.items():
        said = target.ask("DELETE", f"/v1/sessions/{session}")
        tell(said, f"session {session!r} has ended", as_json)


def _the_server(choice: Choice) -> Target:
    if choice.url is not None:
        raise Failure("a server at a URL cannot be stopped from here; stop it on its machine")
    return only_target(find_targets(choice), "no server is running, so there is none to stop", "servers are running")


def _stop_server(target: Target) -> dict[str, Any]:
    """Send SIGTERM, and wait until the server has ended."""
    import msgspec

    from ingle.support.running_servers import connect, peer_pid

    assert target.address.path is not None
    assert target.info is not None
    try:
        with connect(target.address.path) as connection:
            # From the kernel, because the pid in the file may belong to another process by now.
            pid = peer_pid(connection)
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pid = 0
    except OSError as error:
        raise Failure(f"the server ({target}) cannot be stopped: {error}") from None
    deadline = time.monotonic() + STOP_SECONDS
    while pid and processes.lives(pid):
        if time.monotonic() > deadline:
            raise Failure(f"the server ({target}) was told to stop {STOP_SECONDS:g} s ago and is still running")
        time.sleep(POLL_SECONDS)
    return {"stopped": True, **msgspec.to_builtins(target.info)}


@click.command(epilog="Example: ingle approve; ingle approve 3f2a --deny")
@click.argument("approval", required=False)
@service_options
@click.option("--deny", is_flag=True, help="Refuse the call.")
@click.option("--all", "every", is_flag=True, help="Answer all calls that wait, without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print each call as a JSON document; ask for none.")
def approve(approval: str | None, choice: Choice, deny: bool, every: bool, as_json: bool) -> None:
    """Answer calls of tools that wait for a person.

    With an id, or the beginning of one, that call is allowed or refused. Without one, the calls that wait are listed,
    and at a terminal each is asked for. A token needs the scope `approve`.
    """
    found = [(target, each) for target in find_targets(choice) for each in _waiting(target)]
    if approval is not None:
        found = [each for each in found if each[1]["id"].startswith(approval)]
        if len(found) != 1:
            raise Failure(f"{len(found) or 'no'} calls that wait have an id with {approval!r}; see `ingle approve`")
    if not found and not as_json:
        echo("No call waits for approval.")
    for target, each in found[:MAX_APPROVALS]:
        if not as_json:
            echo(f"{each['id']}  {each['session']}  {each['server']}.{each['tool']}{_hint(each)}")
            echo(f"    {each['arguments']}")
        answered = approval is not None or every or (not as_json and _wanted(deny))
        if answered:
            path = f"/v1/sessions/{each['session']}/approvals/{each['id']}"
            target.ask("POST", path, {"allow": not deny})
        if as_json:
            echo_json({**each, "allowed": not deny if answered else None})
        elif answered:
            echo("    refused" if deny else "    allowed")


def _waiting(target: Target) -> list[dict[str, Any]]:
    """Return the calls of a service that wait, each with the name of its session."""
    waiting: list[dict[str, Any]] = []
    for session in list_sessions(target):
        name = session["session_id"]
        found = target.ask("GET", f"/v1/sessions/{name}/approvals")["approvals"]
        waiting += [{**each, "session": name} for each in found]
    return waiting


def _hint(approval: dict[str, Any]) -> str:
    return "  (may destroy)" if approval["destructive"] else "  (only reads)" if approval["read_only"] else ""


def _wanted(deny: bool) -> bool:
    """Ask at a terminal. Elsewhere the calls are only listed."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return click.confirm("    refuse it?" if deny else "    allow it?", default=False)
