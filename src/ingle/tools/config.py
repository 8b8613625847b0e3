"""Servers that the operator names: in `config.toml`, and in `mcpServers` files of hosts."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ingle.errors import InvalidRequest
from ingle.tools import policy
from ingle.tools.shapes import CLIENT, NewServer

TABLE = "mcp_servers"
"""Table of `config.toml` with one table for each server."""

KEYS = ("mcpServers", "servers", "mcp_servers")
"""Names under which hosts have their servers."""

OURS = ("ingle",)
"""Names that are left out of a host's file: this server itself."""

KNOWN = frozenset(NewServer.__struct_fields__)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def read_all(home: Path, files: list[str]) -> dict[str, NewServer]:
    """Return all servers by name. A server of `config.toml` comes before one of a file with the same name."""
    found: dict[str, NewServer] = {}
    for file in files:
        found.update(read_file(Path(file).expanduser()))
    found.update(read_config(home / "config.toml"))
    return found


def read_config(file: Path) -> dict[str, NewServer]:
    """Return the servers of `config.toml`. The settings check that only its owner can write the file."""
    try:
        table = tomllib.loads(file.read_text("utf-8")).get(TABLE, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}; correct the file") from None
    return servers_in(table, file, strict=True)


def read_file(file: Path) -> dict[str, NewServer]:
    """Return the servers of a host's file. Keys that only the host knows are ignored."""
    try:
        text = file.read_text("utf-8")
        found = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}; name a file with `mcpServers`") from None
    table = next((found[key] for key in KEYS if isinstance(found, dict) and key in found), None)
    if table is None:
        raise InvalidRequest(f"{file} has no `mcpServers`; name the file in which your host has its servers")
    return servers_in(table, file, strict=False)


def servers_in(table: Any, file: Path, *, strict: bool) -> dict[str, NewServer]:
    """Return the servers of a table. Unless `strict`, ignore keys that only a host knows."""
    if not isinstance(table, dict):
        raise InvalidRequest(f"the servers in {file} are not a table by name")
    found = {}
    for name, entry in table.items():
        if not strict and (name in OURS or not isinstance(entry, dict) or entry.get("disabled")):
            continue
        if not strict:
            entry = {key: value for key, value in entry.items() if key in KNOWN}
        try:
            found[name] = checked(name, msgspec.convert(entry, NewServer))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the server {name!r} in {file} is not understood: {error}") from None
    return found


def checked(name: str, server: NewServer) -> NewServer:
    """Return a server that can be used, or raise an error that says what is missing."""
    if not NAME.fullmatch(name) or name == CLIENT:
        raise InvalidRequest(f"{name[:80]!r} is not a name for a server of tools: letters, digits, '_', '-' and '.'")
    if (server.command is None) == (server.url is None):
        raise InvalidRequest(f"the server {name!r} needs either `command` or `url`")
    if server.share not in ("tenant", "session"):
        raise InvalidRequest(f"`share` of the server {name!r} is {server.share!r}; it is tenant or session")
    policy.check(name, server)
    return server


def expand(text: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` by variables of the server's environment."""

    def value(found: "re.Match[str]") -> str:
        default = found[2]
        given = os.environ.get(found[1], default)
        if given is None:
            raise InvalidRequest(f"the variable {found[1]} is not set, which a server of tools needs")
        return given

    return VARIABLE.sub(value, text)
