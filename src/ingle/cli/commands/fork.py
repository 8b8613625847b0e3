"""`ingle fork`, `checkpoint`, `rollback` and `diff`: live copies of a session, and states to return to."""

import time
from typing import Any

import click

from ingle.cli.completion import session_argument
from ingle.cli.echo import echo, echo_change, echo_json
from ingle.cli.options import json_option
from ingle.cli.services import Choice, find_session, service_options


@click.command(epilog="Example: ingle fork main try; ingle run -s try 'x += 1'")
@session_argument
@click.argument("name", required=False)
@service_options
@click.option("--count", "-n", type=click.IntRange(min=1), default=1, show_default=True, help="Number of copies.")
@click.option("--at", type=click.IntRange(min=0), help="Copy the state right after this cell. Default: the state now.")
@click.option("--reseed", is_flag=True, help="Give each copy new random numbers. Default: continue the original's.")
@json_option
def fork(
    session: str, name: str | None, choice: Choice, count: int, at: int | None, reseed: bool, as_json: bool
) -> None:
    """Make live copies of a session, and print their names.

    A copy has the session's whole state and takes milliseconds. Memory is shared until one of them writes to it.
    Several copies are named NAME-1, NAME-2 and so on; without NAME they get random names.
    With --at, a checkpoint must hold the state after that cell, such as the automatic one before the last cell.
    """
    asked: dict[str, object] = {"count": count, "reseed": reseed}
    if at is not None:
        asked["at"] = at
    if name is not None:
        asked["session_id"] = name
    said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/fork", asked)
    if as_json:
        echo_json(said)
        return
    for made in said["sessions"]:
        echo(made["session_id"])
        for notice in made["notices"][1:]:
            echo(notice, err=True)


@click.command(epilog="Example: ingle checkpoint main before; ingle rollback main before")
@session_argument
@click.argument("name", required=False)
@service_options
@click.option("--delete", "--remove", is_flag=True, help="Remove the checkpoint instead of making it.")
@json_option
def checkpoint(session: str, name: str | None, choice: Choice, delete: bool, as_json: bool) -> None:
    """Keep the state of a session in memory; without a name, list its checkpoints.

    A checkpoint takes milliseconds. `ingle rollback` returns to it, as often as you like, until the session ends.
    """
    from urllib.parse import quote

    path = f"/v1/sessions/{session}/checkpoints"
    if delete and name is None:
        raise click.UsageError("--delete needs the NAME of a checkpoint")
    target = find_session(choice, session)
    if name is None:
        said = target.ask("GET", path)
    elif delete:
        target.ask("DELETE", f"{path}/{quote(name, safe='')}")
        said = {"deleted": name}
    else:
        said = target.ask("POST", path, {"name": name})
    if as_json:
        echo_json(said)
    elif name is None:
        for line in [_line(each) for each in said["checkpoints"]] or [f"session {session!r} has no checkpoints"]:
            echo(line)
    elif delete:
        echo(f"checkpoint {name} is deleted")
    else:
        echo(f"checkpoint {name} has the state after cell {said['cell']}")
        for notice in said["notices"]:
            echo(f"ingle: {notice}", err=True)


@click.command(epilog="Example: ingle rollback main before")
@session_argument
@click.argument("name", required=False)
@service_options
@json_option
def rollback(session: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Return a session to a checkpoint, or with automatic checkpoints to before its last cell.

    The files of its own folder and of tracked folders return too.
    """
    said = find_session(choice, session).ask(
        "POST", f"/v1/sessions/{session}/rollback", {} if name is None else {"name": name}
    )
    if as_json:
        echo_json(said)
    else:
        echo_change(said)


@click.command(epilog="Example: ingle diff main before")
@session_argument
@click.argument("name", required=False)
@service_options
@json_option
def diff(session: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Show how a session differs from a checkpoint, a fork or a snapshot; without a name, from where a rollback leads.

    Variables are shown with short values, or with type, shape and size. Texts are shown as unified diffs, other files
    with their sizes.
    Write snapshot:NAME, session:NAME or checkpoint:NAME where names are the same.
    """
    from urllib.parse import quote

    import msgspec

    from ingle.files import FileDiff, VariableDiff
    from ingle.render.diff import file_line, heading, variable_line

    query = "" if name is None else f"?to={quote(name, safe='')}"
    said = find_session(choice, session).ask("GET", f"/v1/sessions/{session}/diff{query}")
    if as_json:
        echo_json(said)
        return
    echo(heading(said["kind"], said["to"]), err=True)
    for each in said["variables"] or []:
        echo(variable_line(msgspec.convert(each, VariableDiff)))
    if said["unknown"]:
        echo(f"not compared: {', '.join(said['unknown'])}")
    for each in said["files"] or []:
        echo(each["text"].rstrip("\n") if each["text"] else file_line(msgspec.convert(each, FileDiff)))
    if said["more_files"]:
        echo(f"and {said['more_files']} more files")
    if said["files"] == [] and not said["variables"]:
        echo("nothing differs", err=True)
    for notice in said["notices"]:
        echo(notice, err=True)


def _line(checkpoint: dict[str, Any]) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(checkpoint["created_at"]))
    return (
        f"{checkpoint['name']:20} {made}  after cell {checkpoint['cell']}{'  automatic' if checkpoint['auto'] else ''}"
    )
