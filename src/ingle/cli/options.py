"""Options of commands: sizes and times as people write them, help in groups, and the settings that options give."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from ingle import quantities
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


class GroupedCommand(click.Command):
    """Command whose help lists settings under the titles of their groups, after its own options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        title_of: dict[str, str] = {}
        title = ""
        for setting in fields(Settings):
            title = GROUPS.get(setting.name, title)
            title_of[setting.name] = title
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(title_of.get(param.name or "", "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def load_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings in force, and name variables of the environment that have no effect."""
    settings = load(given)
    for sentence in unknown_variables():
        echo(f"ingle: {sentence}", err=True)
    return settings
