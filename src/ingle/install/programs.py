"""The hosts that `ingle install` supports: their configuration files and the form of an entry.

Only `Change.write` writes. It keeps a backup of the old file, and replaces the file atomically.
"""

import contextlib
import difflib
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ingle.errors import InvalidRequest
from ingle.install import edit_config, goose, remove_entry
from ingle.install.edit_config import Entry

T = TypeVar("T")

NAME = "ingle"

GOOSE_TIMEOUT = 300


@dataclass(frozen=True)
class Place:
    """The parts of a machine that decide where hosts have their files. Tests create their own."""

    home: Path
    folder: Path
    """The project folder."""
    environment: Mapping[str, str]
    platform: str = sys.platform
    drive: Path = Path("/mnt/c")
    """Mount point of the Windows disk in WSL."""

    @classmethod
    def here(cls) -> "Place":
        return cls(Path.home(), Path.cwd(), os.environ)

    @property
    def config(self) -> Path:
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")

    @property
    def support(self) -> Path:
        """The folder with the settings of desktop programs."""
        return self.home / "Library" / "Application Support" if self.platform == "darwin" else self.config

    @property
    def windows_roaming(self) -> Path | None:
        """In WSL: the settings folder of Windows programs, if exactly one user has Claude's."""
        if not self.environment.get("WSL_DISTRO_NAME"):
            return None
        found = list(self.drive.glob("Users/*/AppData/Roaming/Claude"))
        return found[0].parent if len(found) == 1 else None


@dataclass(frozen=True)
class Command:
    """The command with which a host starts ingle. The path is absolute, because hosts may have a minimal PATH."""

    program: str
    args: tuple[str, ...]

    @classmethod
    def ours(cls, folders: Iterable[str] = ()) -> "Command":
        """Return the command whose sessions may use these folders, each an absolute DIR or DIR:ro."""
        args = ("mcp", *(arg for folder in folders for arg in ("--folder", folder)))
        script = Path(sys.executable).absolute().parent / "ingle"
        if script.is_file():
            return cls(str(script), args)
        # `-P` keeps the current folder, which sessions may write, off the module path.
        return cls(sys.executable, ("-P", "-m", "ingle", *args))

    def with_flags(self, flags: tuple[str, ...]) -> "Command":
        return Command(self.program, (*self.args, *flags))

    def through_wsl(self, distribution: str) -> "Command":
        return Command("wsl.exe", ("-d", distribution, "--exec", self.program, *self.args))

    def entry(self) -> Entry:
        return {"command": self.program, "args": list(self.args)}

    def typed_entry(self) -> Entry:
        return {"type": "stdio", **self.entry()}

    def goose_entry(self) -> Entry:
        return {
            "name": NAME,
            "description": "Live Python sessions",
            "type": "stdio",
            "enabled": True,
            "cmd": self.program,
            "args": list(self.args),
            "envs": {},
            "timeout": GOOSE_TIMEOUT,
        }


@dataclass(frozen=True)
class Host:
    name: str
    title: str
    user_file: Callable[[Place], Path]
    project_file: str | None
    path: tuple[str, str]
    entry: Callable[[Command], Entry]
    kind: str = "json"
    next_step: str = ""
    """What the user does after the change. Default: restarting the host."""
    starts_in_project: bool = True
    """Whether the host starts its servers in the user's project folder. Others start them in `/` or the home folder."""
    server_of: Callable[[Any], Entry | str] = lambda entry: entry
    """Returns an entry of the host's file as a server that ingle starts, or the reason why it cannot."""
    entry_of: Callable[[Entry], Entry] = lambda server: server
    """Returns the entry that such a server was."""

    @property
    def after(self) -> str:
        return self.next_step or f"Restart {self.title} to use ingle there."


def _claude_desktop(place: Place) -> Path:
    return (place.windows_roaming or place.support) / "Claude" / "claude_desktop_config.json"


HOSTS = (
    Host(
        "claude-code",
        "Claude Code",
        lambda place: place.home / ".claude.json",
        ".mcp.json",
        ("mcpServers", NAME),
        Command.typed_entry,
        next_step="Open a new Claude Code session to use ingle there.",
    ),
    Host(
        "claude-desktop",
        "Claude Desktop",
        _claude_desktop,
        None,
        ("mcpServers", NAME),
        Command.entry,
        starts_in_project=False,
    ),
    Host(
        "cursor",
        "Cursor",
        lambda place: place.home / ".cursor" / "mcp.json",
        ".cursor/mcp.json",
        ("mcpServers", NAME),
        Command.entry,
    ),
    Host(
        "vscode",
        "VS Code",
        lambda place: place.support / "Code" / "User" / "mcp.json",
        ".vscode/mcp.json",
        ("servers", NAME),
        Command.typed_entry,
    ),
    Host(
        "codex",
        "Codex",
        lambda place: Path(place.environment.get("CODEX_HOME") or place.home / ".codex") / "config.toml",
        ".codex/config.toml",
        ("mcp_servers", NAME),
        Command.entry,
        "toml",
    ),
    Host(
        "gemini",
        "Gemini CLI",
        lambda place: place.home / ".gemini" / "settings.json",
        ".gemini/settings.json",
        ("mcpServers", NAME),
        Command.entry,
    ),
    Host(
        "goose",
        "goose",
        lambda place: place.config / "goose" / "config.yaml",
        None,
        ("extensions", NAME),
        Command.goose_entry,
        "yaml",
        starts_in_project=False,
        server_of=goose.server_of,
        entry_of=goose.extension_of,
    ),
)

BY_NAME = {host.name: host for host in HOSTS}

EDITORS = {"json": edit_config.put_json, "toml": edit_config.put_toml, "yaml": edit_config.put_yaml}
REMOVERS = {"json": remove_entry.remove_json, "toml": remove_entry.remove_toml, "yaml": remove_entry.remove_yaml}
READERS = {"json": edit_config.read_json, "toml": edit_config.read_toml, "yaml": edit_config.read_yaml}


def file_of(host: Host, place: Place, project: bool) -> Path:
    if not project:
        return host.user_file(place)
    if host.project_file is None:
        raise InvalidRequest(f"{host.title} has no settings for a project; leave --project out")
    return place.folder / host.project_file


def command_for(host: Host, place: Place, folders: Iterable[str] = (), flags: tuple[str, ...] = ()) -> Command:
    """Return the command that this host starts, with these folders and other flags of `ingle mcp`."""
    command = Command.ours(folders).with_flags(flags)
    if host.name == "claude-desktop" and place.windows_roaming is not None:
        return command.through_wsl(place.environment["WSL_DISTRO_NAME"])
    return command


def snippet(command: Command) -> str:
    """Return the entry in the form that most hosts read."""
    return json.dumps({"mcpServers": {NAME: command.entry()}}, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class Change:
    """New contents of one file."""

    file: Path
    before: bytes | None
    after: bytes
    project: Path | None = None
    """The folder below which no link is followed; None for a user's own file."""

    @property
    def needed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        old = (self.before or b"").decode().splitlines(keepends=True)
        new = self.after.decode().splitlines(keepends=True)
        name = str(self.file)
        lines = difflib.unified_diff(old, new, name if self.before is not None else "/dev/null", name)
        return "".join(line if line.endswith("\n") else line + "\n\\ no newline at the end\n" for line in lines)

    def write(self) -> Path | None:
        """Replace the file in one step. Return the path of the backup of the old one, if there was one."""
        # The link of a user's own file stays a link: its target is replaced.
        target = Path(os.path.realpath(self.file)) if self.project is None else self.file
        folder = _open_folder(target, self.project, make=True)
        try:
            backup, mode = None, 0o600
            if self.before is not None:
                mode = os.stat(target.name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
                backup = target.with_name(f"{target.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
                _create(backup, folder, self.before, mode)
            unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
            _create(unfinished, folder, self.after, mode)
            try:
                if _read(target, folder) != self.before:
                    raise InvalidRequest(f"{target} was changed by another program just now; run the command again")
                os.replace(unfinished.name, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(unfinished.name, dir_fd=folder)
                raise
        finally:
            os.close(folder)
        return backup


# A project's files may come from a stranger, or be written by a session: a link there could lead to any file of the
# user. So folders are opened one by one without following links, and files by name in the folder that is open.
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _link(path: Path) -> InvalidRequest:
    return InvalidRequest(
        f"{path} is a link, and links in a project are not followed; put a real file or folder in its place, or leave "
        "--project out"
    )


def _open_folder(target: Path, project: Path | None, make: bool) -> int:
    """Open the folder of a file, and create it if wanted. Below `project` no link is followed."""
    if project is None:
        if make:
            target.parent.mkdir(parents=True, exist_ok=True)
        return os.open(target.parent, OPEN_FOLDER)
    path, folder = project, os.open(project, OPEN_FOLDER)
    for name in target.parent.relative_to(project).parts:
        path, outer = path / name, folder
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=outer)
            folder = os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except NotADirectoryError:
            raise _link(path) if path.is_symlink() else NotADirectoryError(f"{path} is not a folder") from None
        finally:
            os.close(outer)
    return folder


def _create(file: Path, folder: int, data: bytes, mode: int) -> None:
    """Write a new file in an open folder. An existing file of this name is left alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(file.name, flags, mode, dir_fd=folder)
    except FileExistsError:
        raise InvalidRequest(f"{file} exists already; move it away, and run the command again") from None
    try:
        with open(fd, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
    except BaseException:
        os.unlink(file.name, dir_fd=folder)
        raise


def _read(file: Path, folder: int) -> bytes | None:
    """Return what a file in an open folder holds; None without one."""
    try:
        with open(os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as opened:
            return opened.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _link(file) if error.errno == errno.ELOOP else error from None


def look(file: Path, project: Path | None) -> bytes | None:
    """Return what a file holds; None without one."""
    target = Path(os.path.realpath(file)) if project is None else file
    try:
        folder = _open_folder(target, project, make=False)
    except FileNotFoundError:
        return None
    try:
        return _read(target, folder)
    finally:
        os.close(folder)


def plan(host: Host, file: Path, command: Command, project: Path | None = None) -> Change:
    """Return the change to make. A file that is broken or cannot be edited safely is refused.

    `project` is the folder whose file this is; links in it are refused. Links of a user's own files are followed.
    """
    before = look(file, project)
    after = edited(file, EDITORS[host.kind], text_of(file, before), host.path, host.entry(command))
    return Change(file, before, after.encode(), project)


def text_of(file: Path, data: bytes | None) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 (byte {error.start}), so it was left as it is") from None


def edited(file: Path, edit: Callable[..., T], text: str, *given: Any) -> T:
    """Return what `edit` makes of the text. Its refusal is raised with the name of the file."""
    try:
        return edit(text, *given)
    except edit_config.BrokenFile as error:
        raise InvalidRequest(f"{file} cannot be read: {error}. It was left as it is; repair it first") from None
    except edit_config.CannotEdit as error:
        raise InvalidRequest(f"{file} was left as it is: {error}") from None


def configured(host: Host, file: Path) -> Entry | None:
    """Return the entry that a host has for ingle, its program under `command`; None without one, or without a file.

    A file that cannot be read raises InvalidRequest, or OSError.
    """
    text = text_of(file, look(file, None))
    value: Any = edited(file, READERS[host.kind], text) if text.strip() else None
    for name in host.path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return None
    return {"command": value["cmd"], **value} if "cmd" in value else value
