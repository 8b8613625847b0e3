"""`ingle install HOST --wrap`: the host's other servers move behind ingle, into a file of ingle's own, and back."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.errors import InvalidRequest
from ingle.install import programs
from ingle.install.edit_config import Entry
from ingle.install.programs import NAME, Change, Command, Host
from ingle.tools import config

FOLDER = "wrapped"
"""Folder of the data folder with the servers of each host, one file each."""

FLAG = "--servers"

ENVIRONMENT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
"""Variables that ingle replaces as hosts do. Other forms are a host's own."""


@dataclass(frozen=True)
class Wrap:
    """Changes of the host's file and of the file of wrapped servers."""

    change: Change
    servers: Path
    entries: dict[str, Entry]
    """Servers of the second file afterwards. Without any, the file is removed."""
    moved: list[str]
    left: dict[str, str]
    """Servers that stay where they are, each with the reason."""

    def write(self) -> Path | None:
        """Write both files. Return the backup of the host's file. No server is in neither of the two at any time."""
        if self.entries:
            self._write_servers()
        backup = self.change.write()
        if not self.entries:
            self.servers.unlink(missing_ok=True)
        return backup

    def _write_servers(self) -> None:
        # Entries hold secrets: only their owner reads the file.
        self.servers.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = self.servers.with_suffix(f".{os.getpid()}.part")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump({"mcpServers": self.entries}, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(fd)
        os.replace(unfinished, self.servers)


def servers_file(home: Path, host: Host, file: Path) -> Path:
    """Return where the servers of a host's file are while they are wrapped."""
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    return home / FOLDER / f"{host.name}-{digest}.json"


def plan_wrap(host: Host, file: Path, command: Command, home: Path, project: Path | None = None) -> Wrap:
    """Return what moves the other servers of a host behind ingle."""
    servers = servers_file(home, host, file)
    before = programs.look(file, project)
    text = programs.text_of(file, before)
    entries, moved, left = _wrapped(servers), [], {}
    for name, entry in _others(host, file, text).items():
        server = host.server_of(entry)
        if isinstance(server, str):
            left[name] = server
            continue
        if reason := _reason_to_stay(file, name, server):
            left[name] = reason
            continue
        if name in entries:
            left[name] = "another server of this name is wrapped already"
            continue
        entries[name] = server
        moved.append(name)
        text = programs.edited(file, programs.REMOVERS[host.kind], text, (host.path[0], name))
    if entries:
        command = command.with_flags((FLAG, str(servers)))
    text = programs.edited(file, programs.EDITORS[host.kind], text, host.path, host.entry(command))
    return Wrap(Change(file, before, text.encode(), project), servers, entries, moved, left)


def plan_unwrap(host: Host, file: Path, home: Path, project: Path | None = None) -> Wrap:
    """Return what gives a host its servers back. A server that it has again meanwhile stays as it is there."""
    servers = servers_file(home, host, file)
    before = programs.look(file, project)
    text = programs.text_of(file, before)
    there, moved = _others(host, file, text), []
    for name, entry in _wrapped(servers).items():
        if name not in there:
            moved.append(name)
            entry = host.entry_of(entry)
            text = programs.edited(file, programs.EDITORS[host.kind], text, (host.path[0], name), entry)
    ours = (programs.READERS[host.kind](text).get(host.path[0]) or {}).get(NAME)
    if isinstance(ours, dict) and isinstance(ours.get("args"), list):
        args = _without_flag(ours["args"], str(servers))
        text = programs.edited(file, programs.EDITORS[host.kind], text, host.path, {**ours, "args": args})
    return Wrap(Change(file, before, text.encode(), project), servers, {}, moved, {})


def _others(host: Host, file: Path, text: str) -> dict[str, Any]:
    """Return the host's servers besides ingle."""
    return {name: entry for name, entry in servers_of(host, file, text).items() if name != NAME}


def servers_of(host: Host, file: Path, text: str) -> dict[str, Any]:
    """Return the entries of a host's file, by name."""
    document = programs.edited(file, programs.READERS[host.kind], text) if text.strip() else {}
    table = document.get(host.path[0]) if isinstance(document, dict) else None
    return table if isinstance(table, dict) else {}


def _reason_to_stay(file: Path, name: str, entry: Any) -> str:
    """Return why ingle could not start a server in the host's place; nothing if it can."""
    if not isinstance(entry, dict) or (isinstance(entry.get("command"), str) == isinstance(entry.get("url"), str)):
        return "it has neither a command nor a URL that ingle knows"
    if entry.get("type") == "sse":
        return "it speaks SSE, which ingle does not"
    if "${" in ENVIRONMENT.sub("", json.dumps(entry, default=str)):
        return "it has variables that only the host knows"
    try:
        # Otherwise ingle would not start with it.
        config.servers_in({name: entry}, file, strict=False)
    except InvalidRequest as error:
        return error.message
    return ""


def _wrapped(servers: Path) -> dict[str, Entry]:
    try:
        found = json.loads(servers.read_text("utf-8"))["mcpServers"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise InvalidRequest(f"{servers} cannot be read: {error}; repair it first") from None
    return dict(found)


def _without_flag(args: list[Any], value: str) -> list[Any]:
    for place in range(len(args) - 1):
        if args[place : place + 2] == [FLAG, value]:
            return [*args[:place], *args[place + 2 :]]
    return args
