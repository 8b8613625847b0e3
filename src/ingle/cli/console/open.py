"""`ingle open`: signs a browser in at a running server."""

from urllib.parse import quote

import click

from ingle.cli.echo import echo
from ingle.cli.failure import Failure
from ingle.cli.services import Choice, Target, find_session, find_targets, only_target, service_options
from ingle.settings import data_folder


def address_of(target: Target) -> str:
    """Return the URL of a service as a browser opens it."""
    if target.info is None:
        return str(target.address).rstrip("/")
    if target.info.url is None:
        raise Failure(f"{target} has no pages; start `ingle serve` for them")
    return target.info.url


def find_server(choice: Choice) -> Target:
    """Return the one service with pages that the options select."""
    found = [target for target in find_targets(choice) if target.info is None or target.info.url is not None]
    none = f"no server with pages runs on {data_folder()}; start one with `ingle serve`"
    return only_target(found, none, "servers have pages")


@click.command("open", epilog="Example: ingle open main")
@click.argument("session", required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the link and open nothing.")
@service_options
def open_console(session: str | None, only_print: bool, choice: Choice) -> None:
    """Open the console in your browser, at SESSION or at the list of all sessions.

    The printed link signs a browser in once, within ten minutes.
    """
    from ingle.support.browser import open_page

    target = find_server(choice) if session is None else find_session(choice, session)
    address = address_of(target)
    path = target.ask("POST", "/v1/signin/codes", {})["path"]
    link = address + path + (f"&session={quote(session)}" if session is not None else "")
    echo(link)
    if not only_print:
        open_page(link)
