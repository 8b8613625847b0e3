"""`ingle share`: read-only links to a session."""

import time

import click

from ingle.cli.console.open import address_of, find_server
from ingle.cli.echo import echo, echo_json, tell
from ingle.cli.options import Quantity, json_option
from ingle.cli.services import Choice, find_session, service_options
from ingle.quantities import SECONDS


@click.command(epilog="Example: ingle share main --expires 2h")
@click.argument("session", required=False)
@click.option("--expires", type=Quantity(SECONDS), default="24h", show_default=True, help="Time until the link ends.")
@click.option("--list", "lists", is_flag=True, help="List the links that can be opened.")
@click.option("--revoke", "--remove", metavar="ID", help="Revoke the link with this id.")
@json_option
@service_options
def share(session: str | None, expires: float, lists: bool, revoke: str | None, as_json: bool, choice: Choice) -> None:
    """Print a link that shows SESSION and changes nothing.

    Everybody who has the link can read the cells, outputs and variables of the session, and no files. The link ends at
    its time, when it is revoked, and with the session or the server.
    """
    if (session is not None) + lists + (revoke is not None) != 1:
        raise click.UsageError("name a session to share, or use --list, or --revoke with the id of a link")
    if session is not None:
        target = find_session(choice, session)
        made = target.ask("POST", "/v1/shares", {"session_id": session, "expires_in": expires})
        made["url"] = address_of(target) + made.pop("path")
        tell(made, made["url"], as_json)
        return
    target = find_server(choice)
    if revoke is not None:
        target.ask("DELETE", f"/v1/shares/{revoke}")
        if as_json:
            echo_json({"deleted": revoke})
        return
    found = target.ask("GET", "/v1/shares")
    if as_json:
        echo_json(found)
        return
    for each in found["shares"]:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["expires_at"]))
        echo(f"{each['share_id']}  {each['session_id']:20} until={until} made-by={each['made_by']}")
