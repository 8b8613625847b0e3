"""Pages made from what they describe.

`python -m ingle.cli.reference > docs/settings.md` makes the page of settings from their table;
`python -m ingle.cli.reference docs/cli.md` renews what `--help` says in the page of the command line.
"""

import re
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from ingle.cli.commands.serve import default_text, flag_of
from ingle.settings import KINDS, Settings

WIDTH = 78
"""Columns of what `--help` says in the docs."""

HEAD = """\
# Settings

Made from the table in `src/ingle/settings.py` by `python -m ingle.cli.reference`; a test keeps it up to date.

A setting can be given in three places. The first that gives it wins:

1. a flag of `ingle serve`, as `--port 8400`;
2. the environment, as `INGLE_PORT=8400`;
3. the file `config.toml` in the data folder, as `port = 8400`.

`ingle run` takes the same settings from the environment and the file, but keeps no prepared workers and preloads
nothing.

A list is written with commas in a flag or in the environment (`numpy,pandas`), and as a list in the file
(`["numpy", "pandas"]`). Sizes are bytes, times are seconds. A name in `config.toml` that is not in this table is
refused, and so is a value of the wrong kind.

| Setting | Flag | Environment | Value | Default | Meaning |
|---|---|---|---|---|---|
"""

TAIL = """
Two more variables are read from the environment, and are no settings:

- `INGLE_HOME` names the data folder. Without it, it is `~/.local/share/ingle` (or `$XDG_DATA_HOME/ingle`) on Linux and
  `~/Library/Application Support/ingle` on macOS.
- `INGLE_TOKEN` is the token that HTTP requests need. Without it, the token is in the file `token` in the data
  folder, which is made at the first start.

No variable whose name begins with `INGLE_` is handed on to sessions.
"""


def settings_page() -> str:
    return HEAD + "".join(_row(setting) for setting in fields(Settings)) + TAIL


def _row(setting: "Field[Any]") -> str:
    choices = setting.metadata["choices"]
    value = ", ".join(f"`{choice}`" for choice in choices) if choices else KINDS[setting.type]
    default = default_text(setting)
    cells = [
        f"`{setting.name}`",
        f"`{flag_of(setting)}`",
        f"`INGLE_{setting.name.upper()}`",
        value,
        default if " " in default else f"`{default}`",
        setting.metadata["help"],
    ]
    return f"| {' | '.join(cells)} |\n"


def help_of(*words: str) -> str:
    """What a command says of itself, laid out for the docs."""
    from click.testing import CliRunner

    from ingle.cli import main

    return CliRunner().invoke(main, [*words, "--help"], prog_name="ingle", terminal_width=WIDTH).output


def with_help(page: str) -> str:
    """The page, with every block that begins with `$ ingle … --help` as the command says it now."""

    def block(found: "re.Match[str]") -> str:
        return f"```\n$ {found[1]} --help\n{help_of(*found[1].split()[1:])}```"

    return re.sub(r"```\n\$ (ingle[a-z ]*?) --help\n.*?```", block, page, flags=re.DOTALL)


if __name__ == "__main__":
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(with_help(file.read_text("utf-8")), "utf-8")
    else:
        print(settings_page(), end="")
