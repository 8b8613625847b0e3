"""The table of settings: name, flag, environment variable, TOML key, type, default and help.

The first source that has a value wins: command line, `INGLE_<NAME>`, `config.toml` in the data folder, default.
docs/settings.md is generated from this table, and a test compares the two.
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
    """Return `INGLE_HOME`, or else the platform's folder for user data."""
    home = os.environ.get("INGLE_HOME")
    if home:
        return Path(home).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ingle"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "ingle"


LEVELS = ("none", "limits", "restricted", "sandbox")
"""Isolation levels from weakest to strongest. SECURITY.md says what each promises."""

NETWORKS = ("full", "allowlist", "none")
"""Network modes from most to least access."""

KINDS: dict[Any, str] = {
    int: "a whole number, 0 or more",
    float: "a number, 0 or more",
    str: "text",
    list[str]: "a list of texts",
}
"""Names of the setting types for error messages."""


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
    """All settings of an operator. Sizes are in bytes, times in seconds."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8377, "Port to listen on; 0 uses any free port.")
    allowed_hosts: list[str] = setting(  # noqa: RUF009
        [], "Host names that this server answers to, in addition to those of the loopback interface."
    )
    python: str = setting(sys.executable, "Default interpreter of sessions.")
    preload: list[str] = setting(  # noqa: RUF009
        ["numpy", "pandas", "matplotlib"], "Modules to import once and share between all sessions, if installed."
    )
    start_method: str = setting(
        "auto",
        "How to start workers: fork from a loaded interpreter, or spawn a fresh one.",
        ("auto", "fork", "spawn"),
    )
    pool: int = setting(2, "Pre-started workers for each interpreter.")
    isolation: str = setting(
        "auto", "Isolation level of sessions; auto uses the strongest that this machine supports.", ("auto", *LEVELS)
    )
    network: str = setting(
        "allowlist", "Network of a sandbox: everything, allowed hosts through a proxy, or nothing.", NETWORKS
    )
    allow_host: list[str] = setting(  # noqa: RUF009
        ["index"],
        "Hosts that sandboxes may reach in addition to pip's package index, each HOST or HOST:PORT; "
        "`none` takes the index away.",
    )
    mount: list[str] = setting(  # noqa: RUF009
        [], "Folders of the host that sessions may use, each DIR, or DIR:ro for reading only."
    )
    pythons: list[str] = setting(  # noqa: RUF009
        [],
        "Interpreters that requests may name, in addition to the default and virtual environments in mounts.",
    )
    keep_env: list[str] = setting(  # noqa: RUF009
        [], "Environment variables of the server that confined sessions see, in addition to PATH and the locale."
    )
    limit_memory: int = setting(2 * 1024**3, "Memory of all processes of a session together; 0 is no limit.")
    limit_processes: int = setting(256, "Processes and threads of a session at the same time; 0 is no limit.")
    limit_files: int = setting(1024, "Open files of each process in a session; 0 is no limit.")
    limit_file_size: int = setting(1024**3, "Size of any file that a session writes; 0 is no limit.")
    limit_tmp: int = setting(512 * 1024**2, "Size of a session's folder for temporary files; 0 is no limit.")
    limit_disk: int = setting(10 * 1024**3, "Size of a session's own folder; 0 is no limit.")
    nice: int = setting(5, "Nice value of a session's processes; 19 is the lowest priority.")
    max_sessions: int = setting(2000, "Maximum number of sessions.")
    checkpoints: str = setting(
        "manual",
        "When to make checkpoints: on request, or also before each cell.",
        ("manual", "auto"),
    )
    max_checkpoints: int = setting(8, "Maximum number of checkpoints of a session; the oldest is removed first.")
    max_forks: int = setting(200, "Maximum number of forks in one request.")
    wait: float = setting(45.0, "How long a call waits for its cell before it answers `running`.")
    timeout_grace: float = setting(1.0, "Time between SIGINT at a cell's timeout and SIGKILL.")
    exit_grace: float = setting(2.0, "Time for exit handlers and threads when a session ends.")
    start_patience: float = setting(60.0, "Maximum time for the start of a worker.")
    idle_timeout: float = setting(300.0, "Time without use after which a session counts as idle.")
    idle_policy: str = setting(
        "keep",
        "What happens to an idle session: saved and its process kept if there is capacity, saved and freed, or ended.",
        ("keep", "free", "end"),
    )
    memory_floor: float = setting(
        0.05, "Free the processes of idle sessions when less than this share of memory is available; 0: never."
    )
    durable_size: int = setting(
        256 * 1024 * 1024, "Maximum size of a session that is saved automatically; 0 disables automatic saves."
    )
    durable_age: float = setting(30 * 86400.0, "Time without use after which a durable session is removed.")
    max_code: int = setting(16 * 1024 * 1024, "Maximum size of a cell's source.")
    result_chars: int = setting(200_000, "Characters of each stream in a result; read the rest by cell number.")
    timeline_memory: int = setting(4 * 1024 * 1024, "Memory for a session's events; older events go to disk.")
    max_file: int = setting(1024 * 1024 * 1024, "Maximum size of a file uploaded to a session's folder.")
    max_snapshot: int = setting(64 * 1024 * 1024 * 1024, "Maximum size of a snapshot.")
    timeline_disk: int = setting(4 * 1024 * 1024 * 1024, "Disk for a session's events; output beyond it is dropped.")
    figures_disk: int = setting(256 * 1024 * 1024, "Disk for a session's full-size images; the oldest go first.")
    shell: str = setting("bash", "Program that runs shell commands; a persistent shell needs it to be bash.")
    shell_folder: str = setting("", "Folder of shell commands without a session; empty: a folder in the data folder.")
    shell_wait: float = setting(5.0, "How long a call waits for its shell command before it answers `running`.")
    task_grace: float = setting(2.0, "Time between SIGTERM at a task's timeout or cancellation and SIGKILL.")
    task_memory: int = setting(256 * 1024, "Memory for a task's output; older output goes to disk.")
    max_tasks: int = setting(1000, "Maximum number of running shell tasks.")
    tasks_kept: int = setting(1000, "Maximum number of ended tasks that stay readable.")
    task_age: float = setting(86400.0, "Time after which an ended task is removed.")
    auth: str = setting("token", "Whether requests need a token; none is for loopback only.", ("token", "none"))
    max_connections: int = setting(1024, "Maximum number of connections; those without a token are closed first.")
    stop_grace: float = setting(0.0, "How long running cells may continue after a stop signal.")
    audit: str = setting(
        "off", "Whether to record who did what in audit.log in the data folder, without code or output.", ("off", "on")
    )
    log_level: str = setting("warning", "Least severe messages to log.", ("debug", "info", "warning", "error"))
    log_file: str = setting("", "File to log to; empty: standard error.")
    log_format: str = setting("text", "Log format: lines of text, or JSON objects.", ("text", "json"))

    def __post_init__(self) -> None:
        for each in fields(self):
            choices = each.metadata["choices"]
            value = getattr(self, each.name)
            if not _is_of(each.type, value):
                raise InvalidRequest(f"{each.name} is {value!r}; it must be {KINDS[each.type]}")
            if choices and value not in choices:
                raise InvalidRequest(f"{each.name} is {value!r}; it must be one of {', '.join(choices)}")
        if self.port > 65535:
            raise InvalidRequest(f"port is {self.port}; it must be from 0 to 65535")


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings in force."""
    return Settings(**{name: value for name, (value, _) in _gather(overrides or {}).items()})


def explain() -> dict[str, tuple[Any, str]]:
    """Return each setting in force with the name of its source."""
    given = _gather({})
    settings = Settings(**{name: value for name, (value, _) in given.items()})
    return {each.name: given.get(each.name, (getattr(settings, each.name), "default")) for each in fields(Settings)}


def _gather(overrides: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return the given settings with their sources, without defaults."""
    found: dict[str, tuple[Any, str]] = {}
    file = data_folder() / "config.toml"
    from_file: dict[str, Any] = {}
    if file.is_file():
        try:
            from_file = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{file} cannot be read: {error}; correct the file") from None
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
    """Return the value in the text of an environment variable."""
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
