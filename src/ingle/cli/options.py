"""Options of commands: sizes and times as people write them, help in groups, and the settings that options give."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from ingle import quantities
from ingle.cli import SENTENCE_CHARS
from ingle.cli.echo import echo
from ingle.settings import GROUPS, Settings, load, unknown_variables


class Quantity(click.ParamType[float]):
    """A size or a time, as a number of bytes or seconds."""

    def __init__(self, unit: str, least: float = 0) -> None:
        self.name = "size" if unit == quantities.BYTES else "time"
        self._unit = unit
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return float(value)
        try:
            number = quantities.parse(self._unit, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self._least:
            self.fail(f"{value!r} is less than {self._least:g}", param, ctx)
        return number


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


VERBS = (("new", "create"), ("list", "ls"), ("remove", "rm", "delete", "revoke"))
"""Words for the same thing. A group understands all words for a command that it has, and lists one of them."""


class VerbGroup(click.Group):
    """Group whose help lists its commands, each with the whole first sentence of its help."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        same = next((words for words in VERBS if cmd_name in words), ())
        names = (cmd_name, *same)
        return next((self.commands[name] for name in names if name in self.commands), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        # Help and usage errors show the name that the help lists.
        return command.name if command is not None else name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        shown = [(name, command) for name, command in commands if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(SENTENCE_CHARS)) for name, command in shown])


COMMON = frozenset(
    {
        *("host", "port", "allowed_hosts", "tools", "cluster", "python", "preload", "isolation", "network", "gpu"),
        *("allow_host", "folder", "limit_memory", "limit_processes", "limit_disk", "max_sessions", "idle_timeout"),
        *("idle_policy", "checkpoints", "store", "servers", "tool_policy", "audit", "log_level"),
    }
)
"""Settings that `--help` shows. `--help-all` shows the others too."""

EVERY_SETTING = f"{__name__}.every_setting"
"""Key in the context of click: whether the help has every setting."""


class GroupedCommand(click.Command):
    """Command whose help lists settings under the titles of their groups, after its own options.

    `--help` lists the common ones, because all of them are several screens long.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx)[:-1], _HELP_ALL, *super().get_params(ctx)[-1:]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        title_of: dict[str, str] = {}
        title = ""
        for setting in fields(Settings):
            title = GROUPS.get(setting.name, title)
            title_of[setting.name] = title
        for param in self.get_params(ctx):
            name = param.name or ""
            if name in title_of and name not in COMMON and EVERY_SETTING not in ctx.meta:
                continue
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(title_of.get(name, "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _show_every_setting(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[EVERY_SETTING] = True
        echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_every_setting,
    help="Show this message with all settings and exit.",
)


def load_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings in force, and name variables of the environment that have no effect."""
    settings = load(given)
    for sentence in unknown_variables():
        echo(f"ingle: {sentence}", err=True)
    return settings
