"""`ingle install`: configures a host to start `ingle mcp`."""

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from ingle.cli.echo import echo
from ingle.cli.failure import Failure

if TYPE_CHECKING:
    from ingle.install.programs import Change, Host
    from ingle.install.wrap import Wrap

NAMES = ("claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "goose", "json")


def granted_folder(text: str) -> str:
    """Return a folder as the server will be given it: absolute. Raise an error if sessions cannot have it."""
    from ingle.client.address import Folder
    from ingle.isolation.policy import can_be_granted
    from ingle.settings import data_folder

    folder = Folder.read(text)
    if not folder.read_only and not can_be_granted(folder.path, data_folder()):
        raise Failure(f"sessions cannot have {folder.path}: it is your home, contains it, or overlaps ingle's data")
    return folder.text


def ask_folder(title: str) -> list[str]:
    """Ask for the folder of sessions at a terminal. Return no folder if none is wanted, or without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        echo(
            f"{title} has no project, so each session starts in an empty folder and sees no file of yours; "
            "share one with --folder DIR.",
            err=True,
        )
        return []
    given = click.prompt(f"{title} has no project. Folder that sessions may use (empty: none)", default="")
    return [granted_folder(given)] if given else []


@click.command(epilog="Example: ingle install claude-code --dry-run")
@click.argument("host", type=click.Choice(NAMES), metavar="HOST")
@click.option("--project", is_flag=True, help="Configure this folder only, in the host's project file.")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="DIR",
    help="Let sessions use this folder, DIR, or DIR:ro for reading only, and start in the first; may be repeated.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter of sessions, such as .venv/bin/python of a project.  [default: the one ingle runs on]",
)
@click.option("--wrap", is_flag=True, help="Move the host's other servers behind ingle, after asking.")
@click.option("--unwrap", is_flag=True, help="Give the host its servers back: undo --wrap.")
@click.option("--remove", is_flag=True, help="Take ingle out of the host's settings again.")
@click.option("--yes", is_flag=True, help="Do not ask before servers are moved.")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
def install(
    host: str,
    project: bool,
    folders: tuple[str, ...],
    python: str | None,
    wrap: bool,
    unwrap: bool,
    remove: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Add ingle to a host: claude-code, claude-desktop, cursor, vscode, codex, gemini or goose.

    Shows the change in the host's settings, leaves everything else there as it is, and makes a backup of the old file.
    A file that cannot be read is not changed. `json` prints the entry for any other host.

    Without --folder, sessions start in the folder in which the host starts ingle: the project, where it has one. For a
    host without projects, this command asks for a folder at a terminal.

    With --wrap the model has the tools of the host's other servers from inside code, and `search_tools` to find them.
    """
    from ingle.install import programs, removal
    from ingle.install import wrap as install_wrap
    from ingle.settings import data_folder

    granted = [granted_folder(each) for each in folders]
    flags = () if python is None else ("--python", interpreter_of(python))
    if host == "json":
        if wrap or unwrap or remove:
            raise Failure("--wrap, --unwrap and --remove change a host's file; name the host")
        echo(programs.snippet(programs.Command.ours(granted).with_flags(flags)))
        return
    place = programs.Place.here()
    found = programs.BY_NAME[host]
    file, folder = programs.file_of(found, place, project), place.folder if project else None
    if remove:
        removed = removal.plan_removal(found, file, data_folder(), folder)
        if removed is None:
            echo(f"{found.title} has no entry for ingle in {file}; nothing was changed.")
        else:
            apply_change(removed, dry_run, f"{found.title} lets go of ingle when it starts again.")
        return
    if unwrap:
        move_servers(found, install_wrap.plan_unwrap(found, file, data_folder(), folder), yes, dry_run)
        return
    if not granted and not found.starts_in_project:
        granted = ask_folder(found.title)
    command = programs.command_for(found, place, granted, flags)
    if wrap:
        move_servers(found, install_wrap.plan_wrap(found, file, command, data_folder(), folder), yes, dry_run)
        return
    change = programs.plan(found, file, command, folder)
    if not change.needed:
        echo(f"{found.title} has ingle already, in {change.file}; nothing was changed.")
        return
    apply_change(change, dry_run, found.after)


def apply_change(change: "Change", dry_run: bool, next_step: str) -> None:
    """Show a change of a host's file, and write it."""
    echo(change.diff(), nl=False)
    if dry_run:
        echo("Nothing was written.")
        return
    backup = change.write()
    echo(f"Written to {change.file}." + (f" The old file is {backup}." if backup else ""))
    echo(next_step)


def move_servers(host: "Host", planned: "Wrap", yes: bool, dry_run: bool) -> None:
    """Show what moves, ask, and move it."""
    for name, reason in planned.left.items():
        echo(f"{name} stays where it is: {reason}.")
    if not planned.change.needed:
        echo(f"{planned.change.file} has no servers to move; nothing was written.")
        return
    echo(planned.change.diff(), nl=False)
    if planned.moved:
        names = ", ".join(planned.moved)
        echo(f"From {planned.servers}: {names}" if not planned.entries else f"Into {planned.servers}: {names}")
    asked = sys.stdin is not None and sys.stdin.isatty()
    if dry_run or not (yes or (asked and click.confirm("Move them?"))):
        echo("Nothing was written." + ("" if dry_run or asked else " Repeat with --yes to do it."))
        return
    backup = planned.write()
    echo(f"Written to {planned.change.file}." + (f" The old file is {backup}." if backup else ""))
    if planned.entries:
        echo(f"`ingle install {host.name} --unwrap` undoes it.")
    echo(host.after)


def interpreter_of(python: str) -> str:
    """Return the absolute path of an interpreter. A link is not followed: it is what makes a virtual environment."""
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise Failure(f"there is no interpreter {python}; name one, such as .venv/bin/python")
    return os.path.abspath(path)
