"""`ingle completion`: completion of commands, options and session names for shells."""

import contextlib
import os

import click

from ingle.cli.echo import echo
from ingle.errors import IngleError


def complete_sessions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of sessions that begin with this text. A server that does not answer has none."""
    from ingle.cli.services import Choice, find_targets, list_sessions

    url = ctx.params.get("url")
    choice = Choice(url, os.environ.get("INGLE_TOKEN") or None if url else None, ctx.params.get("pid"))
    found: set[str] = set()
    with contextlib.suppress(IngleError, OSError, click.ClickException):
        for target in find_targets(choice):
            with contextlib.suppress(IngleError, OSError):
                found.update(session["session_id"] for session in list_sessions(target))
    return sorted(name for name in found if name.startswith(incomplete))


session_argument = click.argument("session", shell_complete=complete_sessions)


@click.command(epilog="Example: ingle completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options and the names of live sessions. To have it in each new shell, add a line to its
    start file:

    \b
    bash (4.4 or later): eval "$(ingle completion bash)"         in ~/.bashrc
    zsh:                 eval "$(ingle completion zsh)"          in ~/.zshrc
    fish:                ingle completion fish | source          in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from ingle.cli import COMPLETION, main

    found = get_completion_class(shell)
    assert found is not None
    made = found(main, {}, "ingle", COMPLETION)
    # Not `source()`, which runs bash to check its version.
    echo(made.source_template % made.source_vars())
