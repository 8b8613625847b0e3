"""`ingle save` and `ingle load`: save a session to disk, and restore it."""

import time
from typing import Any

import click

from ingle.cli.completion import session_argument
from ingle.cli.echo import echo, echo_json, tell
from ingle.cli.failure import Failure
from ingle.cli.options import json_option
from ingle.cli.services import Choice, Target, find_session, find_targets, only_target, service_options
from ingle.quantities import rounded_size

TRANSFER_SECONDS = 3600.0
"""Time limit for a save or a load; a session may have many gigabytes."""

BLOCK = 1 << 20


@click.command(epilog="Example: ingle save main calc; ingle save main calc --to calc.ingle")
@session_argument
@click.argument("name")
@service_options
@click.option("--to", "file", metavar="FILE", help="Also write it as one portable file.")
@json_option
def save(session: str, name: str, choice: Choice, file: str | None, as_json: bool) -> None:
    """Save a session under a name, while it stays usable."""
    target = find_session(choice, session)
    said = target.ask("POST", f"/v1/sessions/{session}/save", {"name": name}, TRANSFER_SECONDS)
    if file is not None:
        _download(target, name, file)
    if as_json:
        echo_json(said)
        return
    new = f", {rounded_size(said['new_bytes'])} of it new" if said["new_bytes"] < said["size"] else ""
    echo(f"saved {_variables(said['variables'])} of {session} as {name}: {rounded_size(said['size'])}{new}")
    _print_missing(said)


@click.command(epilog="Example: ingle load calc; ingle load calc -s second; ingle load calc --from calc.ingle --trust")
@click.argument("name", required=False)
@service_options
@click.option("-s", "--session", metavar="NAME", help="Name the new session. Default: the name of the saved one.")
@click.option("--from", "file", metavar="FILE", help="Import this file under the name first.")
@click.option("--trust", is_flag=True, help="Load it even if this ingle did not write it, and run the code in it.")
@click.option("--rerun", is_flag=True, help="Run the cells again that made unsaved variables.")
@click.option("--delete", "--remove", is_flag=True, help="Delete it instead of loading it.")
@json_option
def load(
    name: str | None,
    choice: Choice,
    session: str | None,
    file: str | None,
    trust: bool,
    rerun: bool,
    delete: bool,
    as_json: bool,
) -> None:
    """Restore a saved session as a new one; without a name, list the saved sessions."""
    if name is None and (delete or file is not None or session is not None):
        raise click.UsageError("name the saved session; `ingle load` without anything else lists them")
    from ingle.client.address import snapshot_path

    target = _the_service(choice)
    if name is None:
        said = target.ask("GET", "/v1/snapshots")
        if as_json:
            echo_json(said)
        else:
            _list(said["snapshots"])
        return
    if file is not None:
        _upload(target, name, file)
    if delete:
        target.ask("DELETE", snapshot_path(name))
        tell({"deleted": name}, f"{name} is deleted", as_json)
        return
    body: dict[str, Any] = {"trust": trust, "rerun": rerun}
    if session is not None:
        body["session_id"] = session
    said = target.ask("POST", snapshot_path(name) + "/load", body, TRANSFER_SECONDS)
    if as_json:
        echo_json(said)
        return
    echo(f"session {said['session']['session_id']} is ready with {_variables(said['variables'])} of {name}")
    _print_missing(said)


def _the_service(choice: Choice) -> Target:
    targets = find_targets(choice)
    serving = [target for target in targets if target.info is None or target.info.kind == "serve"]
    none = "no service is running; start one with `ingle serve`, or pass --url"
    return only_target(serving, none, "services are running")


def _download(target: Target, name: str, file: str) -> None:
    import os
    import secrets

    from ingle.client.address import snapshot_path

    draft = f"{file}.{secrets.token_hex(4)}.part"
    with target.client.open("GET", snapshot_path(name) + "/file", timeout=TRANSFER_SECONDS) as answer:
        try:
            # The file gets its name when it is complete.
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                while block := answer.read(BLOCK):
                    out.write(block)
            os.replace(draft, file)
        except OSError as error:
            raise Failure(f"{file} cannot be written: {error.strerror or error}") from None
        finally:
            if os.path.exists(draft):
                os.unlink(draft)


def _upload(target: Target, name: str, file: str) -> None:
    from ingle.client.address import snapshot_path

    path = snapshot_path(name) + "/file"
    try:
        with open(file, "rb") as content, target.client.open("PUT", path, content, timeout=TRANSFER_SECONDS) as answer:
            answer.read()
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror or error}") from None


def _list(snapshots: list[dict[str, Any]]) -> None:
    if not snapshots:
        echo("There is no saved session yet; save one with `ingle save SESSION NAME`", err=True)
    for each in snapshots:
        if each.get("problem"):
            echo(f"{each['name']:20} {each['problem']}")
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["saved_at"]))
        count = len(each["variables"])
        echo(f"{each['name']:20} {when}  {rounded_size(each['size']):>9}  {_variables(count)} of {each['session_id']}")


def _print_missing(said: dict[str, Any]) -> None:
    for each in said["skipped"]:
        made_by = f" (made by {each['made_by'].strip('<>')})" if each.get("made_by") else ""
        echo(f"  without {each['name']} ({each['type']}): {each['reason']}{made_by}")
    for notice in said["notices"]:
        echo(f"  {notice}")


def _variables(count: int) -> str:
    return "1 variable" if count == 1 else f"{count} variables"
