"""Pages of settings and of the command line, from the table of settings and from `--help`."""

import re
from dataclasses import Field, fields
from typing import Any

from ingle.cli.commands.serve import default_text, flag_of
from ingle.quantities import BYTES, SECONDS
from ingle.settings import GROUPS, KINDS, Settings

WIDTH = 78
"""Width of `--help` output in the docs."""

HEAD = """\
# Settings

This page is generated from `src/ingle/settings.py` by `python tools/reference`.

A setting can be given in three places. The first one wins:

1. a flag of `ingle serve`, as `--port 8400`;
2. the environment, as `INGLE_PORT=8400`;
3. the file `config.toml` in the data folder, as `port = 8400`.

`ingle run` uses the same settings from the environment and the file, but pre-starts no workers and preloads no modules.

Write a list with commas in a flag or in the environment (`numpy,pandas`), and as a list in the file
(`["numpy", "pandas"]`).

Write a size as `512M`, `4G` or `1GiB`, where each letter is a power of 1024, or as a number of bytes. Write a time as
`250ms`, `90s`, `5m`, `1h30m` or `30d`, or as a number of seconds. Write both as texts in the file
(`limit_memory = "4G"`). Over HTTP and MCP, sizes and times are always numbers, in bytes and seconds.

Unknown names in `config.toml` and values of the wrong kind are refused. Unknown variables `INGLE_…` in the environment
are named at the start.
"""

UNITS = {BYTES: "a size", SECONDS: "a time"}

GROUP = {
    first: f"\n## {title}\n\n| Setting | Flag | Environment | Value | Default | Meaning |\n|---|---|---|---|---|---|\n"
    for first, title in GROUPS.items()
}

TAIL = """
## Other variables

Two more environment variables are not settings:

- `INGLE_HOME` names the data folder. The default is `~/.local/share/ingle` (or `$XDG_DATA_HOME/ingle`) on Linux and
  `~/Library/Application Support/ingle` on macOS.
- `INGLE_TOKEN` is the token that HTTP requests need. By default the token is in the file `token` in the data folder,
  which the first start creates.

Variables whose names start with `INGLE_` are not passed to sessions.
"""


def settings_page() -> str:
    return HEAD + "".join(GROUP.get(setting.name, "") + _row(setting) for setting in fields(Settings)) + TAIL


def _row(setting: "Field[Any]") -> str:
    choices = setting.metadata["choices"]
    unit = UNITS.get(setting.metadata["unit"]) or KINDS[setting.type]
    value = ", ".join(f"`{choice}`" for choice in choices) if choices else unit
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
    """Return the `--help` output of a command for the docs."""
    from click.testing import CliRunner

    from ingle.cli import main

    return CliRunner().invoke(main, [*words, "--help"], prog_name="ingle", terminal_width=WIDTH).output


def with_help(page: str) -> str:
    """Return the page with every block of `$ ingle … --help` updated."""

    def block(found: "re.Match[str]") -> str:
        return f"```\n$ {found[1]} --help\n{help_of(*found[1].split()[1:])}```"

    return re.sub(r"```\n\$ (ingle[a-z ]*?) --help\n.*?```", block, page, flags=re.DOTALL)
