"""The command line. A command is imported when it is used, and slow libraries only by the command that needs them."""

from importlib import import_module
from typing import Any

import click

from ingle import __version__

COMMANDS = {
    "batch": "batch:batch",
    "checkpoint": "commands.fork:checkpoint",
    "clear": "commands.control:clear",
    "completion": "completion:completion",
    "config": "commands.sessions:config",
    "cp": "commands.cp:cp",
    "diff": "commands.fork:diff",
    "doctor": "commands.doctor:doctor",
    "env": "commands.env:env",
    "fork": "commands.fork:fork",
    "grant": "commands.grant:grant",
    "install": "commands.install:install",
    "interrupt": "commands.control:interrupt",
    "load": "commands.snapshots:load",
    "logs": "commands.logs:logs",
    "mcp": "commands.mcp:mcp",
    "new": "commands.control:new",
    "ps": "commands.sessions:ps",
    "rollback": "commands.fork:rollback",
    "run": "commands.run:run",
    "save": "commands.snapshots:save",
    "serve": "commands.serve:serve",
    "sh": "commands.sh:sh",
    "stop": "commands.control:stop",
    "token": "commands.token:token",
    "vars": "commands.sessions:variables",
}
"""Where each command is: its module below `ingle.cli`, and its name there."""

COMPLETION = "_INGLE_COMPLETE"
"""Variable in which a shell asks for completions; click reads it."""

ALIASES = {"ls": "ps", "rm": "stop"}
"""Other names of commands. The help of the command tells them."""


class Commands(click.Group):
    """Group that imports a command when it is asked for."""

    def main(self, *args: Any, **given: Any) -> Any:
        """Run the command line. The variable for completion has one name, however the program was started."""
        return super().main(*args, **{"complete_var": COMPLETION, **given})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib

            near = difflib.get_close_matches(args[0], [*COMMANDS, *ALIASES], 1)
            hint = f"did you mean {near[0]!r}?" if near else "`ingle --help` lists the commands"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: ingle run 'print(6 * 7)'",
)
@click.version_option(__version__, "-V", "--version", prog_name="ingle", message="%(prog)s %(version)s")
def main() -> None:
    """Run Python in live sessions, or serve many sessions."""
