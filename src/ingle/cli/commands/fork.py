"""`ingle fork`: live copies of a session."""

import click

from ingle.cli.failure import plain_failures
from ingle.cli.services import Choice, find_session, service_options


@click.command(epilog="Example: ingle fork main try; ingle run -s try 'x += 1'")
@click.argument("session")
@click.argument("name", required=False)
@service_options
@click.option("--count", "-n", type=click.IntRange(min=1), default=1, show_default=True, help="Number of copies.")
@click.option("--reseed", is_flag=True, help="Give each copy new random numbers. Default: continue the original's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def fork(session: str, name: str | None, choice: Choice, count: int, reseed: bool, as_json: bool) -> None:
    """Make live copies of a session, and print their names.

    A copy has the session's whole state and takes milliseconds. Memory is shared until one of them writes to it.
    Several copies are named NAME-1, NAME-2 and so on; without NAME they get random names.
    """
    asked: dict[str, object] = {"count": count, "reseed": reseed}
    if name is not None:
        asked["session_id"] = name
    with plain_failures():
        said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/fork", asked)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(said))
        return
    for made in said["sessions"]:
        click.echo(made["session_id"])
        for notice in made["notices"][1:]:
            click.echo(notice, err=True)
