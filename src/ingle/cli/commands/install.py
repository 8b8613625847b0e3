"""`ingle install`: configures a host to start `ingle mcp`."""

import click

from ingle.cli.failure import plain_failures

NAMES = ("claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "goose", "json")


@click.command(epilog="Example: ingle install claude-code --dry-run")
@click.argument("host", type=click.Choice(NAMES), metavar="HOST")
@click.option("--project", is_flag=True, help="Configure this folder only, in the host's project file.")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
def install(host: str, project: bool, dry_run: bool) -> None:
    """Add ingle to a host: claude-code, claude-desktop, cursor, vscode, codex, gemini or goose.

    Shows the change in the host's settings, leaves everything else there as it is, and makes a backup of the old file.
    A file that cannot be read is not changed. `json` prints the entry for any other host.
    """
    with plain_failures():
        from ingle.install import programs

        if host == "json":
            click.echo(programs.snippet(programs.Command.ours()))
            return
        place = programs.Place.here()
        found = programs.BY_NAME[host]
        file, folder = programs.file_of(found, place, project), place.folder if project else None
        change = programs.plan(found, file, programs.command_for(found, place), folder)
        if not change.needed:
            click.echo(f"{found.title} has ingle already, in {change.file}; nothing was changed.")
            return
        click.echo(change.diff(), nl=False)
        if dry_run:
            click.echo("Nothing was written.")
            return
        backup = change.write()
        click.echo(f"Written to {change.file}." + (f" The old file is {backup}." if backup else ""))
        click.echo(found.after)
