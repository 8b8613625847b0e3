"""Extensions of goose, which has its own names for the parts of a server."""

from typing import Any

from ingle.install.edit_config import Entry

ORIGINAL = "goose"
"""Key of a wrapped server with the extension as goose had it."""

KINDS = {"stdio": (("cmd", "command"), ("args", "args"), ("envs", "env")), "streamable_http": (("uri", "url"),)}
"""Types of extensions that are MCP servers, each with its keys and those of other hosts. `headers` has one name."""


def server_of(extension: Any) -> Entry | str:
    """Return an extension as a server, or why goose alone can start it."""
    if not isinstance(extension, dict) or extension.get("type") not in KINDS:
        return "it is no server that ingle could start"
    if extension.get("enabled") is False:
        return "it is switched off"
    if extension.get("env_keys"):
        return "its secrets are in the key store of goose"
    if extension.get("available_tools"):
        return "only some of its tools are switched on"
    keys = (*KINDS[extension["type"]], ("headers", "headers"))
    server = {theirs: extension[ours] for ours, theirs in keys if extension.get(ours)}
    return {**server, ORIGINAL: extension}


def extension_of(server: Entry) -> Entry:
    """Return the extension that a wrapped server was."""
    return dict(server[ORIGINAL])
