"""The command line. A command is imported when it is used, and slow libraries only by the command that needs them."""

import atexit
import gc
from importlib import import_module
from typing import Any

import click

from ingle import __version__

GROUPS = {
    "Run code": {
        "run": "commands.run:run",
        "sh": "commands.sh:sh",
        "batch": "batch:batch",
    },
    "Services": {
        "serve": "commands.serve:serve",
        "mcp": "commands.mcp:mcp",
        "cluster": "cluster.group:cluster",
        "open": "console.open:open_console",
        "share": "console.share:share",
        "grant": "commands.grant:grant",
        "token": "commands.token:token",
    },
    "Sessions": {
        "ps": "commands.sessions:ps",
        "top": "live.top:top",
        "new": "commands.control:new",
        "attach": "live.attach:attach",
        "logs": "commands.logs:logs",
        "export": "live.export:export",
        "vars": "commands.sessions:variables",
        "cp": "commands.cp:cp",
        "interrupt": "commands.control:interrupt",
        "approve": "commands.control:approve",
        "clear": "commands.control:clear",
        "stop": "commands.control:stop",
    },
    "Undo, copy and save": {
        "checkpoint": "commands.fork:checkpoint",
        "diff": "commands.fork:diff",
        "rollback": "commands.fork:rollback",
        "fork": "commands.fork:fork",
        "trial": "trial:trial",
        "commit": "trial:commit",
        "discard": "trial:discard",
        "try": "trial:try_cells",
        "merge": "trial:merge",
        "adopt": "trial:adopt",
        "save": "commands.snapshots:save",
        "load": "commands.snapshots:load",
    },
    "Set up": {
        "install": "commands.install:install",
        "doctor": "commands.doctor:doctor",
        "env": "commands.env:env",
        "kernel": "live.kernel:kernel",
        "config": "commands.sessions:config",
        "completion": "completion:completion",
    },
}
"""Commands under the titles of the help. Each value names a module below `ingle.cli`, and the command in it."""

COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}
"""Where each command is."""

SENTENCE_CHARS = 200
"""Length that no first sentence of a command's help reaches, so that the list cuts none."""

COMPLETION = "_INGLE_COMPLETE"
"""Variable in which a shell asks for completions; click reads it."""

GC_THRESHOLD = 100_000
"""Objects made and not freed before the garbage collector looks at the young ones.

Modules are most of what a command makes, and they stay. At the usual 700, walking them takes a tenth of a start. The
largest commands load more than 50,000 objects.
"""

ALIASES = {"ls": "ps", "rm": "stop"}
"""Other names of commands. The help of the command tells them."""

MEANT = {
    **dict.fromkeys(("sessions", "list"), "ps"),
    **dict.fromkeys(("delete", "remove", "end"), "stop"),
    **dict.fromkeys(("snapshots", "restore"), "load"),
    "snapshot": "save",
    "create": "new",
    "undo": "rollback",
    "checkpoints": "checkpoint",
}
"""Words that are no commands, with the command that people mean by them."""


class Commands(click.Group):
    """Group that imports a command when it is asked for."""

    def main(self, *args: Any, **given: Any) -> Any:
        """Run the command line. The variable for completion has one name, however the program was started."""
        gc.set_threshold(GC_THRESHOLD)
        # The interpreter would free each module one by one at its end, which takes a quarter of a short command.
        atexit.register(gc.freeze)
        return super().main(*args, **{"complete_var": COMPLETION, **given})

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command. Its errors become one plain sentence."""
        from ingle.cli.failure import plain_failures

        with plain_failures():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `help`, `help COMMAND` and `version` for the options of that name."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups, each with the whole first sentence of its help."""
        for title, group in GROUPS.items():
            commands = ((name, self.get_command(ctx, name)) for name in group)
            with formatter.section(title):
                formatter.write_dl(
                    [(name, command.get_short_help_str(SENTENCE_CHARS)) for name, command in commands if command]
                )

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
            meant = MEANT.get(args[0], near[0] if near else None)
            hint = f"did you mean {meant!r}?" if meant else "`ingle --help` lists the commands"
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
