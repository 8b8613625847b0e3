"""`ingle attach`: a prompt on a live session."""

import sys

import click

from ingle.cli.completion import complete_sessions
from ingle.cli.failure import Failure
from ingle.cli.services import Choice, Target, find_session, find_targets, list_sessions, service_options
from ingle.errors import Unreachable
from ingle.settings import data_folder

MAIN = "main"


@click.command(epilog="Example: ingle attach main")
@click.argument("session", required=False, shell_complete=complete_sessions)
@service_options
def attach(session: str | None, choice: Choice) -> None:
    """Open a prompt on a live session, and see what others run in it.

    Without SESSION it is the only session, or main. Cells of others appear dimmed. Tab completes, name? explains,
    Enter runs whole code, Alt-Enter begins a new line. Ctrl-C interrupts the running cell. Ctrl-D, exit
    and quit detach, and the session goes on.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("attach needs a terminal; run code with `ingle run -s NAME`, or follow `ingle logs -f NAME`")
    name = session or _only_session(choice)
    code = _attach(find_session(choice, name), name)
    if code:
        raise SystemExit(code)


def _only_session(choice: Choice) -> str:
    """Return the name of the one session that can be meant."""
    names: list[str] = []
    for target in find_targets(choice):
        try:
            names += [each["session_id"] for each in list_sessions(target)]
        except Unreachable:
            continue
    if len(set(names)) == 1:
        return names[0]
    if MAIN in names:
        return MAIN
    if not names:
        raise Failure("there is no session; create one with `ingle new NAME`")
    raise Failure(f"name one of the sessions: {', '.join(sorted(set(names)))}")


def _attach(target: Target, name: str) -> int:
    import asyncio

    from ingle.cli.live.attachment import NAME, Attachment
    from ingle.client import AsyncClient

    async def main() -> int:
        async with AsyncClient(str(target.address), target.address.token, name=NAME, start=False) as client:
            return await Attachment(client.session(name, create=False, keep=True), data_folder()).run()

    return asyncio.run(main())
