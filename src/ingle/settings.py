"""One table of settings: name, flag, environment, TOML key, type, default and help all come from here.

A value is taken from the command line, else from `INGLE_<NAME>`, else from `config.toml` in the data folder, else
the default. docs/settings.md is made from this table, and a test keeps it so.
"""

import math
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from ingle.errors import InvalidRequest


def data_folder() -> Path:
    """`INGLE_HOME`, else the platform's folder for a user's data."""
    home = os.environ.get("INGLE_HOME")
    if home:
        return Path(home).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ingle"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "ingle"


LEVELS = ("none", "limits", "restricted", "sandbox")
"""How far code in a session is confined, from not at all to all that can be done. SECURITY.md has the promises."""

NETWORKS = ("full", "allowlist", "none")
"""What a session can reach, from everything to nothing."""

KINDS: dict[Any, str] = {
    int: "a whole number, 0 or more",
    float: "a number, 0 or more",
    str: "text",
    list[str]: "a list of texts",
}
"""The types of settings, in words."""


def _is_of(kind: Any, value: Any) -> bool:
    if kind is int:
        return type(value) is int and value >= 0
    if kind is float:
        return type(value) in (int, float) and 0 <= value < math.inf
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def setting(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    metadata = {"help": help, "choices": choices}
    if isinstance(default, list):
        return dataclass_field(default_factory=default.copy, metadata=metadata)
    return dataclass_field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """All that an operator can set. Sizes are bytes, times are seconds."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8377, "Port to listen on; 0 takes any free one.")
    allowed_hosts: list[str] = setting(  # noqa: RUF009
        [], "Names under which this server may be addressed, beside those of this machine's loopback."
    )
    python: str = setting(sys.executable, "Interpreter of a session that names none.")
    preload: list[str] = setting(  # noqa: RUF009
        ["numpy", "pandas", "matplotlib"], "Modules imported once and shared by all sessions, when installed."
    )
    start_method: str = setting(
        "auto",
        "How workers start: fork from a loaded interpreter, or spawn a fresh one.",
        ("auto", "fork", "spawn"),
    )
    pool: int = setting(2, "Prepared workers kept ready for each interpreter.")
    isolation: str = setting(
        "auto", "How far code in sessions is confined; auto: as far as this machine can.", ("auto", *LEVELS)
    )
    network: str = setting(
        "allowlist", "What a sandbox can reach: everything, listed hosts by a proxy, nothing.", NETWORKS
    )
    allow_host: list[str] = setting(  # noqa: RUF009
        ["index"], "Hosts that the proxy connects to, each HOST or HOST:PORT; `index` is pip's package index."
    )
    mount: list[str] = setting(  # noqa: RUF009
        [], "Folders that sessions may use beside their own, each DIR, or DIR:ro to read only."
    )
    pythons: list[str] = setting(  # noqa: RUF009
        [],
        "Interpreters that a request may name, beside the default and virtual environments in mounts.",
    )
    keep_env: list[str] = setting(  # noqa: RUF009
        [], "Variables of the server's environment that confined sessions see, beside PATH and the language."
    )
    limit_memory: int = setting(2 * 1024**3, "Memory of a session, all its processes together; 0 is no limit.")
    limit_processes: int = setting(256, "Processes and threads of a session at once; 0 is no limit.")
    limit_files: int = setting(1024, "Open files of each process in a session; 0 is no limit.")
    limit_file_size: int = setting(1024**3, "Size of any file that a session writes; 0 is no limit.")
    limit_tmp: int = setting(512 * 1024**2, "Size of a session's folder for temporary files; 0 is no limit.")
    limit_disk: int = setting(10 * 1024**3, "Size of a session's own folder; 0 is no limit.")
    nice: int = setting(5, "How far a session's processes step back for others; 19 is the most.")
    max_sessions: int = setting(2000, "Sessions at most.")
    checkpoints: str = setting(
        "manual",
        "When a session's state is kept to go back to: when asked for, or before each cell.",
        ("manual", "auto"),
    )
    max_checkpoints: int = setting(8, "Checkpoints that a session keeps; the oldest goes first.")
    max_forks: int = setting(200, "Copies of a session that one request may ask for.")
    wait: float = setting(45.0, "How long a call waits for its cell before it answers `running`.")
    timeout_grace: float = setting(1.0, "Between SIGINT at a cell's timeout and SIGKILL.")
    exit_grace: float = setting(2.0, "Time for exit handlers and threads when a session ends.")
    start_patience: float = setting(60.0, "How long a worker may take to start.")
    idle_timeout: float = setting(300.0, "A session unused for so long counts as idle.")
    idle_policy: str = setting(
        "keep",
        "What happens to an idle session: it is saved, and its process kept while there is room, or freed; or it ends.",
        ("keep", "free", "end"),
    )
    memory_floor: float = setting(
        0.05, "Below this share of the machine's memory, processes of idle sessions are freed; 0: never."
    )
    durable_size: int = setting(
        256 * 1024 * 1024, "A session is saved by itself up to this size; 0: none is, and none comes back by itself."
    )
    durable_age: float = setting(30 * 86400.0, "A durable session that was not used for so long is removed.")
    max_code: int = setting(16 * 1024 * 1024, "Size of a cell's source at most.")
    result_chars: int = setting(200_000, "Characters of each stream in a result; the rest is read by number.")
    timeline_memory: int = setting(4 * 1024 * 1024, "Memory for a session's events; older ones go to disk.")
    max_file: int = setting(1024 * 1024 * 1024, "Size of a file put into a session's folder at most.")
    max_snapshot: int = setting(64 * 1024 * 1024 * 1024, "Size of what is saved of a session at most.")
    timeline_disk: int = setting(4 * 1024 * 1024 * 1024, "Disk for a session's events; past it text is dropped.")
    figures_disk: int = setting(256 * 1024 * 1024, "Disk for a session's images in full size; the oldest go first.")
    shell: str = setting("bash", "Program that runs shell commands; a persistent shell needs it to be bash.")
    shell_folder: str = setting("", "Folder of shell commands without a session; empty: one in the data folder.")
    shell_wait: float = setting(5.0, "How long a call waits for its shell command before it answers `running`.")
    task_grace: float = setting(2.0, "Between SIGTERM at a task's timeout or cancelling and SIGKILL.")
    task_memory: int = setting(256 * 1024, "Memory for a task's output; older output goes to disk.")
    max_tasks: int = setting(1000, "Shell tasks at most that run at once.")
    tasks_kept: int = setting(1000, "Tasks that have ended stay readable, so many at most.")
    task_age: float = setting(86400.0, "A task that ended so long ago is forgotten.")
    auth: str = setting("token", "Whether requests need a token; none is for loopback only.", ("token", "none"))
    max_connections: int = setting(1024, "Connections at most; past it, those that showed no token are closed first.")
    stop_grace: float = setting(0.0, "How long running cells may go on after a signal to stop.")
    audit: str = setting(
        "off", "Whether audit.log in the data folder tells who did what, without code or output.", ("off", "on")
    )
    log_level: str = setting("warning", "What is logged.", ("debug", "info", "warning", "error"))
    log_file: str = setting("", "File to log to; without one, standard error.")
    log_format: str = setting("text", "How it is logged: lines to read, or JSON objects.", ("text", "json"))

    def __post_init__(self) -> None:
        for each in fields(self):
            choices = each.metadata["choices"]
            value = getattr(self, each.name)
            if not _is_of(each.type, value):
                raise InvalidRequest(f"{each.name} is {value!r}; it must be {KINDS[each.type]}")
            if choices and value not in choices:
                raise InvalidRequest(f"{each.name} is {value!r}; it must be one of {', '.join(choices)}")
        if self.port > 65535:
            raise InvalidRequest(f"port is {self.port}; ports go from 0 to 65535")


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force, each from the first place that gives it."""
    return Settings(**{name: value for name, (value, _) in _gather(overrides or {}).items()})


def explain() -> dict[str, tuple[Any, str]]:
    """Each setting in force with the place it comes from, in words."""
    given = _gather({})
    settings = Settings(**{name: value for name, (value, _) in given.items()})
    return {each.name: given.get(each.name, (getattr(settings, each.name), "default")) for each in fields(Settings)}


def _gather(overrides: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """What was given for each setting, and where; nothing for those left to their default."""
    found: dict[str, tuple[Any, str]] = {}
    file = data_folder() / "config.toml"
    from_file: dict[str, Any] = {}
    if file.is_file():
        try:
            from_file = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{file} cannot be read: {error}") from None
    known = {each.name for each in fields(Settings)}
    for name in from_file:
        if name not in known:
            raise InvalidRequest(f"{file} has an unknown setting {name!r}; see `ingle serve --help`")
    for each in fields(Settings):
        given = overrides.get(each.name)
        variable = "INGLE_" + each.name.upper()
        if given is not None:
            found[each.name] = (given, "flag")
        elif (text := os.environ.get(variable)) is not None:
            found[each.name] = (parse(each.name, each.type, text), variable)
        elif each.name in from_file:
            found[each.name] = (from_file[each.name], str(file))
    return found


def parse(name: str, kind: Any, text: str) -> Any:
    """A value from the text of an environment variable."""
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        raise InvalidRequest(f"INGLE_{name.upper()} is {text!r}, which is not a number") from None
    if kind is str:
        return text
    return [part.strip() for part in text.split(",") if part.strip()]
