"""`ingle token`: tokens for others, each with a tenant, a scope and limits."""

import time

import click

from ingle.cli.echo import echo, echo_json
from ingle.cli.options import Quantity, VerbGroup, json_option
from ingle.quantities import BYTES
from ingle.settings import LEVELS, NETWORKS, data_folder

SIZE_FROM_ONE = Quantity(BYTES, least=1)


@click.group(cls=VerbGroup, epilog="Example: ingle token new ci --tenant ci --scope execute --sessions 10")
def token() -> None:
    """Manage tokens for others, who see only their own sessions.

    Running servers know a new token at once, and refuse a revoked one within a second or two. `create`, `ls` and
    `remove` are the same as `new`, `list` and `revoke`.
    """


@token.command(epilog="Example: ingle token new ci --tenant ci --scope execute --sessions 10")
@click.argument("name")
@click.option("--tenant", help="Tenant whose sessions it sees and creates. Default: the name of the token.")
@click.option(
    "--scope",
    type=click.Choice(["read", "execute", "approve", "admin"]),
    default="execute",
    show_default=True,
    help="read: look; execute: also create, use and end sessions; approve: look and answer calls of tools; admin: all.",
)
@click.option("--sessions", type=click.IntRange(0), metavar="N", help="Maximum number of live sessions and shells.")
@click.option("--running", type=click.IntRange(0), metavar="N", help="Maximum number of running cells and shell tasks.")
@click.option("--bytes-per-minute", type=SIZE_FROM_ONE, help="Maximum bytes of requests and answers.")
@click.option("--isolation", type=click.Choice(LEVELS), help="Weakest isolation level of its sessions.")
@click.option("--network", type=click.Choice(NETWORKS), help="Most network access of its sessions.")
@click.option("--gpus", metavar="all|none|N,N", help="Most GPUs of its sessions.")
@click.option("--memory", type=SIZE_FROM_ONE, help="Maximum memory of each of its sessions.")
@click.option("--processes", type=click.IntRange(1), metavar="N", help="Maximum processes of each of its sessions.")
@click.option("--disk", type=SIZE_FROM_ONE, help="Maximum disk use of each of its sessions.")
@json_option
def new(
    name: str,
    tenant: str | None,
    scope: str,
    sessions: int | None,
    running: int | None,
    bytes_per_minute: int | None,
    isolation: str | None,
    network: str | None,
    gpus: str | None,
    memory: int | None,
    processes: int | None,
    disk: int | None,
    as_json: bool,
) -> None:
    """Create a token and print it. It is shown only once, because only its hash is stored."""
    from ingle.callers import Limits
    from ingle.http.auth import tokens_file
    from ingle.requests import Bounds, SessionLimits

    limits = Limits(sessions, running, bytes_per_minute)
    bounds = Bounds(isolation, network, gpus, SessionLimits(memory, processes, disk=disk))
    made, entry = tokens_file.add(data_folder(), name, tenant if tenant is not None else name, scope, limits, bounds)
    if as_json:
        echo_json({"token": made, **_shown(entry)})
    else:
        echo(made)


@token.command("list", epilog="Example: ingle token list --json")
@json_option
def list_tokens(as_json: bool) -> None:
    """List the tokens, without their secrets."""
    import msgspec

    from ingle.http.auth import tokens_file

    entries = tokens_file.read(data_folder())
    if as_json:
        echo_json({"tokens": [_shown(entry) for entry in entries]})
        return
    if not entries:
        echo("There is no token for others yet; create one with `ingle token new NAME`", err=True)
    for entry in entries:
        about = msgspec.to_builtins(entry.limits) | msgspec.to_builtins(entry.bounds)
        about |= about.pop("limits", {})
        limits = " ".join(f"{name}={value}" for name, value in about.items())
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created_at))
        echo(f"{entry.name:20} tenant={entry.tenant} scope={entry.scope} made={made} {limits}".rstrip())


@token.command(epilog="Example: ingle token revoke ci")
@click.argument("name")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke a token, also at running servers."""
    from ingle.http.auth import tokens_file

    tokens_file.revoke(data_folder(), name)
    if as_json:
        echo_json({"deleted": name})


def _shown(entry: object) -> dict[str, object]:
    import msgspec

    shown: dict[str, object] = msgspec.to_builtins(entry)
    del shown["hash"]
    return shown
