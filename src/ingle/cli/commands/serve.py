"""`ingle serve`: its flags are made from the table of settings."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import click

from ingle import quantities
from ingle.cli.options import GroupedCommand, Quantity, load_settings
from ingle.settings import Settings, data_folder

OFF_OR_ON = ("off", "on")

DEFAULT_WORDS = {"python": "the one ingle runs on"}
"""Texts of defaults that depend on the machine."""


def flag_of(setting: "Field[Any]") -> str:
    return "--" + setting.name.replace("_", "-")


def default_text(setting: "Field[Any]") -> str:
    if setting.name in DEFAULT_WORDS:
        return DEFAULT_WORDS[setting.name]
    value: Any = setting.default if setting.default_factory is MISSING else setting.default_factory()
    if setting.metadata["unit"]:
        return quantities.text_of(setting.metadata["unit"], value)
    return (",".join(value) or "none") if isinstance(value, list) else str(value)


def split_words(context: click.Context, option: click.Parameter, given: str | None) -> list[str] | None:
    """Split words at commas."""
    return None if given is None else [word.strip() for word in given.split(",") if word.strip()]


def gather_words(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """Split words at commas, over several uses of the option."""
    return [word for each in given for word in split_words(context, option, each) or []] if given else None


def gather_values(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """Return the values over several uses of the option, each as it was given."""
    return list(given) or None


def option_of(setting: "Field[Any]") -> Callable[[Any], Any]:
    choices = setting.metadata["choices"]
    text = f"{setting.metadata['help']}  [default: {default_text(setting) or 'empty'}]"
    if choices == OFF_OR_ON:
        # The flag alone means `on`.
        return click.option(
            flag_of(setting), setting.name, type=click.Choice(choices), is_flag=False, flag_value="on", help=text
        )
    if choices:
        return click.option(flag_of(setting), setting.name, type=click.Choice(choices), help=text)
    if unit := setting.metadata["unit"]:
        return click.option(flag_of(setting), setting.name, type=Quantity(unit), help=text)
    if setting.type in (int, float, str):
        return click.option(flag_of(setting), setting.name, type=setting.type, help=text)
    word = setting.metadata["word"]
    return click.option(
        flag_of(setting),
        setting.name,
        metavar=word or "A,B,...",
        multiple=True,
        callback=gather_values if word else gather_words,
        help=text,
    )


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option for each setting, in the order of the table."""
    for setting in reversed(fields(Settings)):
        command = option_of(setting)(command)
    return command


@click.command(
    cls=GroupedCommand,
    epilog="Example: ingle serve --port 8400 --limit-memory 4G --idle-timeout 30m\n\n"
    "Write sizes as 512M or 4G, times as 90s, 5m or 1h30m. Every option can also be set in the environment "
    "(INGLE_PORT=8400) or in config.toml in the data folder (port = 8400). The data folder is INGLE_HOME, or else the "
    "usual one of this system.",
)
@settings_options
@click.option("--no-auth", is_flag=True, help="Same as --auth none: requests need no token. On loopback only.")
@click.option("--open", "opens", is_flag=True, help="Open the console in your browser, where there is one.")
@click.option("--until-eof", is_flag=True, help="End when standard input ends, for a parent program.")
def serve(no_auth: bool, opens: bool, until_eof: bool, **given: Any) -> None:
    """Serve sessions over HTTP until Ctrl-C.

    Requests need the token in the file `token` of the data folder, which the first start creates, or the one in
    INGLE_TOKEN. The first lines printed show the URL, a link that signs a browser in once, the place of the token, and
    a command to try.
    """
    settings = load_settings({**given, "auth": "none"} if no_auth else given)
    from ingle.compat import protocols
    from ingle.http.server import serve as run_server
    from ingle.mcp.http import mounted
    from ingle.support.logs import logging_to

    with logging_to(settings):
        code = run_server(settings, data_folder(), until_eof, mounted, protocols, opens)
    raise SystemExit(code)
