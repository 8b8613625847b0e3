"""`ingle grant`: folders and hosts that sessions of a running server may use."""

from typing import Any

import click

from ingle.cli.echo import echo, echo_json
from ingle.cli.failure import Failure
from ingle.cli.options import json_option
from ingle.cli.services import Choice, Target, find_targets, only_target, service_options

MAX_NAMED = 20
"""Sessions that an answer names."""


@click.command(epilog="Example: ingle grant ~/data:ro; ingle grant --host api.example.com; ingle grant --remove ~/data")
@click.argument("folders", nargs=-1, metavar="[DIR[:ro|:tracked]]...")
@click.option("--host", "hosts", multiple=True, metavar="HOST[:PORT]", help="Grant a host; may be repeated.")
@click.option(
    "--remove", "--delete", is_flag=True, help="Remove these grants, each a folder, a host or an id of --list."
)
@click.option("--list", "lists", is_flag=True, help="List the grants.")
@click.option("--all-tenants", is_flag=True, help="Grant folders to the sessions of all tenants, not to yours only.")
@click.option("--save", is_flag=True, help="Also write the change to config.toml, for later starts.")
@service_options
@json_option
def grant(
    folders: tuple[str, ...],
    hosts: tuple[str, ...],
    remove: bool,
    lists: bool,
    all_tenants: bool,
    save: bool,
    choice: Choice,
    as_json: bool,
) -> None:
    """Let sessions of a running server use a folder or host, without a restart.

    DIR:ro grants a folder for reading only. The files of DIR:tracked belong to checkpoints: a rollback brings them
    back, in sessions made from now on.

    New sessions have a grant at once, and live sessions have a host at once. A folder is another matter: with isolation
    none or limits a session sees all your files anyway, and a confined session has the folder from its next process on.
    The answer names those sessions. The same holds for --remove. A grant lasts until the server ends, unless it is
    saved. With several servers, choose one with --pid.
    """
    if lists == bool(folders or hosts):
        raise click.UsageError("name a folder or --host, or pass --list")
    if save and choice.url is not None:
        raise click.UsageError("--save writes to this machine's data folder; use it on the server's machine")
    none = "no server is running; start one with `ingle serve --folder DIR`"
    target = only_target(find_targets(choice), none, "servers are running")
    if lists:
        told: Any = target.ask("GET", "/v1/grants")
        lines = _table(told["grants"])
    else:
        wanted = [*((HOST, each) for each in hosts), *((FOLDER, each) for each in folders)]
        changes = [_change(target, kind, text, remove, all_tenants) for kind, text in wanted]
        told = {"changes": changes}
        lines = [line for change in changes for line in _sentences(change, remove)]
        if save:
            lines += [_save(change["grant"], remove) for change in changes]
        elif not remove:
            lines.append("It lasts until this server ends; --save keeps it.")
    if as_json:
        echo_json(told)
        return
    for line in lines:
        echo(line)


FOLDER, HOST = "folder", "host"


def _change(target: Target, kind: str, text: str, remove: bool, all_tenants: bool) -> dict[str, Any]:
    """Add or remove one grant, and return the server's answer."""
    if remove:
        found = _find(target.ask("GET", "/v1/grants")["grants"], kind, text, all_tenants)
        answer: dict[str, Any] = target.ask("DELETE", f"/v1/grants/{found}")
        return answer
    wanted: dict[str, Any] = {"host": text}
    if kind == FOLDER:
        from ingle.client.address import Folder

        folder = Folder.read(text)
        wanted = {**folder.grant, "tenants": "all" if all_tenants else "owner"}
    answer = target.ask("POST", "/v1/grants", wanted)
    return answer


def _find(grants: list[dict[str, Any]], kind: str, text: str, all_tenants: bool) -> str:
    """Return the id of the grant that the user means."""
    import os

    from ingle.isolation.policy import written_folder

    path = os.path.realpath(written_folder(text))
    same = [each for each in grants if each["kind"] == kind and each["name"] in (text, path)]
    wanted = [each for each in same if (each["tenants"] == "all") == all_tenants] or same
    found = [each["id"] for each in [*(each for each in grants if each["id"] == text), *wanted]]
    if not found:
        raise Failure(f"{text} is not granted; list the grants with `ingle grant --list`")
    return str(found[0])


def _sentences(change: dict[str, Any], remove: bool) -> list[str]:
    """Return what a change did, and for which sessions."""
    grant = change["grant"]
    rights = " for reading" if grant.get("read_only") else " and tracked" if grant.get("tracked") else ""
    lines = [f"{grant['name']} is {'no longer granted' if remove else f'granted{rights}'}. New sessions follow that."]
    texts = {
        "now": "no longer have it" if remove else "have it now",
        "next_process": "keep it until their next process" if remove else "have it from their next process on",
        "never": "keep it, because they are not confined" if remove else "have no network",
    }
    for when, text in texts.items():
        names = [_name(each) for each in change["sessions"] if each["when"] == when]
        if names:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            lines.append(f"  {text}: {', '.join(names[:MAX_NAMED])}{more}")
    return lines


def _name(effect: dict[str, Any]) -> str:
    return f"{effect['tenant']}/{effect['session_id']}" if effect["tenant"] else str(effect["session_id"])


def _table(grants: list[dict[str, Any]]) -> list[str]:
    if not grants:
        return ["nothing is granted; share a folder with `ingle grant DIR`"]
    rows = [("ID", "KIND", "RIGHTS", "SESSIONS", "SINCE", "NAME")]
    for each in grants:
        rights = "read" if each.get("read_only") else "read, write" if each["kind"] == FOLDER else "connect"
        rights += ", tracked" if each.get("tracked") else ""
        since = "start" if each.get("source") == "settings" else "later"
        rows.append((each["id"], each["kind"], rights, each["tenants"], since, each["name"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _save(grant: dict[str, Any], remove: bool) -> str:
    """Write the change to config.toml, and return a sentence about it."""
    from ingle.install.edit_config import BrokenFile, change_list
    from ingle.settings import data_folder

    file = data_folder() / "config.toml"
    if grant["kind"] == HOST:
        name, value = "allow_host", grant["name"]
    else:
        name = "folder" if grant["tenants"] == "owner" else "mount"
        suffix = ":ro" if grant.get("read_only") else ":tracked" if grant.get("tracked") else ""
        value = grant["name"] + suffix
    try:
        text = file.read_text("utf-8") if file.exists() else ""
        draft = file.with_suffix(".draft")
        draft.write_text(change_list(text, name, value, remove=remove), "utf-8")
        draft.replace(file)
    except (OSError, UnicodeDecodeError, BrokenFile) as error:
        raise Failure(f"{file} cannot be changed: {error}; it was left as it is") from None
    return f"{file}: {name} {'is without' if remove else 'has'} {value}."
