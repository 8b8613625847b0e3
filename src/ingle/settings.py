"""The table of settings: name, flag, environment variable, TOML key, type, default and help.

The first source that has a value wins: command line, `INGLE_<NAME>`, `config.toml` in the data folder, default.
docs/reference/settings.md is generated from this table, and a test compares the two.
"""

import math
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from ingle import quantities
from ingle.errors import InvalidRequest
from ingle.private_files import check_file, check_folder
from ingle.quantities import BYTES, SECONDS


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


def setting(default: Any, help: str, choices: tuple[str, ...] = (), unit: str = "", word: str = "") -> Any:
    """Describe a setting. A list with a `word` takes one value at each use of its flag, commas included."""
    metadata = {"help": help, "choices": choices, "unit": unit, "word": word}
    if isinstance(default, list):
        return dataclass_field(default_factory=default.copy, metadata=metadata)
    return dataclass_field(default=default, metadata=metadata)


def size(default: int, help: str) -> Any:
    """Return a setting in bytes, which people write as `4G`."""
    return setting(default, help, unit=BYTES)


def seconds(default: float, help: str) -> Any:
    """Return a setting in seconds, which people write as `5m`."""
    return setting(default, help, unit=SECONDS)


GROUPS = {
    "host": "Server",
    "python": "Interpreters",
    "isolation": "Isolation and grants",
    "limit_memory": "Limits of a session",
    "max_sessions": "Life of a session",
    "checkpoints": "State",
    "max_code": "Code, output and files",
    "servers": "Tools inside code",
    "shell": "Shell tasks",
    "audit": "Logs",
}
"""Titles of groups, each by its first setting. A group ends where the next one begins."""

TABLES = ("mcp_servers",)
"""Tables of `config.toml` that are no settings. `tools.config` reads this one."""

NOT_SETTINGS = ("INGLE_HOME", "INGLE_TOKEN", "INGLE_URL", "INGLE_CLUSTER_TOKEN_FILE", "INGLE_AGENT_PORT")
"""Environment variables that are used and are no settings."""


@dataclass(frozen=True)
class Settings:
    """All settings of an operator. Sizes are in bytes, times in seconds."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8377, "Port to listen on; 0 uses any free port.")
    allowed_hosts: list[str] = setting(  # noqa: RUF009
        [], "Host names that this server answers to, in addition to those of the loopback interface."
    )
    auth: str = setting("token", "Whether requests need a token; none is for loopback only.", ("token", "none"))
    max_connections: int = setting(
        4096,
        "Maximum number of connections, at most a quarter of the open files; those without a token are closed first.",
    )
    tools: list[str] = setting(  # noqa: RUF009
        ["default"], "MCP tools to list: `default`, `core` (the eight most used), `all`, or their names."
    )
    compat: list[str] = setting(  # noqa: RUF009
        ["all"], "APIs of other servers to offer beside ingle's own: `all`, `none`, or their names."
    )
    e2b_debug: str = setting(
        "off",
        "Whether to serve the debug mode of the E2B SDK, which sends no token, on ports 49999 and 49983 of loopback.",
        ("off", "on"),
    )
    stop_grace: float = seconds(0.0, "How long running cells may continue after a stop signal.")
    cluster: str = setting(
        "",
        "Cluster to run sessions on: ray://head:6379, auto for the Ray cluster of this machine, or "
        "static:10.0.0.1:8400,10.0.0.2:8400; empty: on this machine.",
    )
    node: str = setting("", "Name of this machine in a cluster, as `ingle ps` shows it; an agent sets it.")
    python: str = setting(sys.executable, "Default interpreter of sessions.")
    preload: list[str] = setting(  # noqa: RUF009
        ["numpy", "pandas", "matplotlib"], "Modules to import once and share between all sessions, if installed."
    )
    pythons: list[str] = setting(  # noqa: RUF009
        [],
        "Interpreters that requests may name, in addition to the default and virtual environments in mounts.",
    )
    start_method: str = setting(
        "auto",
        "How to start workers: fork from a loaded interpreter, or spawn a fresh one.",
        ("auto", "fork", "spawn"),
    )
    pool: int = setting(2, "Pre-started workers for each interpreter.")
    start_patience: float = seconds(60.0, "Maximum time for the start of a worker.")
    isolation: str = setting(
        "auto", "Isolation level of sessions; auto uses the strongest that this machine supports.", ("auto", *LEVELS)
    )
    network: str = setting(
        "allowlist", "Network of a sandbox: everything, allowed hosts through a proxy, or nothing.", NETWORKS
    )
    gpu: str = setting(
        "auto",
        "GPUs of sessions: all, none, or numbers such as 0,1; auto gives none to confined code, and hides none from "
        "other code.",
    )
    gpu_memory: int = size(
        0, "Memory that torch may take on each GPU in a session, unless its code asks for more; 0: all."
    )
    allow_host: list[str] = setting(  # noqa: RUF009
        ["index"],
        "Hosts that sandboxes may reach in addition to pip's package index, each HOST or HOST:PORT; "
        "`none` takes the index away.",
    )
    folder: list[str] = setting(  # noqa: RUF009
        [],
        "Folder of yours that sessions may use, DIR, or DIR:ro for reading only; yours start in the first. "
        "DIR:tracked: rollbacks bring its files back, as for each DIR of `ingle mcp`; DIR:shared: they do not.",
        word="DIR",
    )
    mount: list[str] = setting(  # noqa: RUF009
        [],
        "Folders of the host that sessions may use, each DIR, DIR:ro for reading only, or DIR:tracked: "
        "rollbacks bring its files back.",
    )
    keep_env: list[str] = setting(  # noqa: RUF009
        [], "Environment variables of the server that confined sessions see, in addition to PATH and the locale."
    )
    limit_memory: int = size(2 * 1024**3, "Memory of all processes of a session together; 0 is no limit.")
    soft_memory: float = setting(
        0.0, "Share of a session's memory limit at which a running cell gets MemoryError, such as 0.9; 0: none."
    )
    limit_processes: int = setting(256, "Processes and threads of a session at the same time; 0 is no limit.")
    limit_files: int = setting(1024, "Open files of each process in a session; 0 is no limit.")
    limit_file_size: int = size(1024**3, "Size of any file that a session writes; 0 is no limit.")
    limit_tmp: int = size(512 * 1024**2, "Size of a session's folder for temporary files; 0 is no limit.")
    limit_disk: int = size(10 * 1024**3, "Size of a session's own folder; 0 is no limit.")
    nice: int = setting(5, "Nice value of a session's processes; 19 is the lowest priority.")
    max_sessions: int = setting(0, "Maximum number of sessions; 0: as many as this machine holds.")
    wait: float = seconds(45.0, "How long a call waits for its cell before it answers `running`.")
    timeout_grace: float = seconds(1.0, "Time between SIGINT at a cell's timeout and SIGKILL.")
    exit_grace: float = seconds(2.0, "Time for exit handlers and threads when a session ends.")
    idle_timeout: float = seconds(300.0, "Time without use after which a session counts as idle.")
    idle_policy: str = setting(
        "keep",
        "What happens to an idle session: saved and its process kept if there is capacity, saved and freed, or ended.",
        ("keep", "free", "end"),
    )
    memory_floor: float = setting(
        0.05, "Free the processes of idle sessions when less than this share of memory is available; 0: never."
    )
    checkpoints: str = setting(
        "manual",
        "When to make checkpoints: on request, or also before each cell.",
        ("manual", "auto"),
    )
    max_checkpoints: int = setting(8, "Maximum number of checkpoints of a session; the oldest is removed first.")
    keep_failures: int = setting(
        0, "Failed cells of a session whose moment is kept, with the frames of the exception; 0: none."
    )
    failures_memory: int = size(1024**3, "Memory of a session's kept failures; the oldest is dropped first.")
    keep_files: int = setting(50_000, "Entries of a folder that checkpoints and saves keep; above it, no file.")
    keep_bytes: int = size(2 * 1024**3, "Size of a folder that checkpoints and saves keep; above it, no file.")
    keep_disk: int = size(16 * 1024**3, "Disk for the files of a tenant's checkpoints, and as much for its snapshots'.")
    trial_seconds: float = seconds(600.0, "Time after which a trial that was not committed is discarded.")
    max_forks: int = setting(200, "Maximum number of forks in one request.")
    durable_size: int = size(
        256 * 1024 * 1024, "Maximum size of a session that is saved automatically; 0 disables automatic saves."
    )
    durable_age: float = seconds(30 * 86400.0, "Time without use after which a durable session is removed.")
    max_snapshot: int = size(64 * 1024 * 1024 * 1024, "Maximum size of a snapshot.")
    store: str = setting(
        "", "Object store for durable sessions and snapshots, s3://BUCKET/PREFIX or an absolute folder; empty: none."
    )
    store_takeover: float = seconds(
        15.0,
        "Silence after which the sessions of another server with the same store are taken over; 0: never.",
    )
    max_code: int = size(16 * 1024 * 1024, "Maximum size of a cell's source.")
    max_batch: int = size(64 * 1024 * 1024, "Maximum size of the request of a batch.")
    result_chars: int = setting(200_000, "Characters of each stream in a result; read the rest by cell number.")
    timeline_memory: int = size(4 * 1024 * 1024, "Memory for a session's events; older events go to disk.")
    timeline_disk: int = size(4 * 1024 * 1024 * 1024, "Disk for a session's events; output beyond it is dropped.")
    figures_disk: int = size(256 * 1024 * 1024, "Disk for a session's full-size images; the oldest go first.")
    max_file: int = size(1024 * 1024 * 1024, "Maximum size of a file uploaded to a session's folder.")
    max_archive: int = size(16 * 1024 * 1024 * 1024, "Maximum size of a tar archive uploaded to a session's folder.")
    servers: list[str] = setting(  # noqa: RUF009
        [],
        "File with the `mcpServers` of a host, whose tools the code of sessions may call; may be repeated.",
        word="FILE",
    )
    tool_policy: str = setting(
        "hints",
        "What holds for tools without a rule: hints asks before one that says it may destroy something.",
        ("hints", "allow", "ask", "deny"),
    )
    tool_timeout: float = seconds(600.0, "Time for one call of a tool; 0 is no limit.")
    approval_timeout: float = seconds(600.0, "How long a call waits for the answer of a person; 0 is no limit.")
    tool_result: int = size(16 * 1024 * 1024, "Maximum size of the result of a tool.")
    tool_calls_cell: int = setting(100_000, "Calls of tools by one cell; 0 is no limit.")
    tool_seconds_cell: float = seconds(0.0, "Time of all calls of tools by one cell; 0 is no limit.")
    tool_bytes_cell: int = size(1024**3, "Size of all arguments and results of one cell's calls; 0 is no limit.")
    tool_calls_session: int = setting(0, "Calls of tools by one session; 0 is no limit.")
    tool_seconds_session: float = seconds(0.0, "Time of all calls of tools by one session; 0 is no limit.")
    tool_bytes_session: int = size(0, "Size of all arguments and results of a session's calls; 0 is no limit.")
    shell: str = setting("bash", "Program that runs shell commands; a persistent shell needs it to be bash.")
    shell_folder: str = setting("", "Folder of shell commands without a session; empty: a folder in the data folder.")
    shell_wait: float = seconds(5.0, "How long a call waits for its shell command before it answers `running`.")
    task_grace: float = seconds(2.0, "Time between SIGTERM at a task's timeout or cancellation and SIGKILL.")
    task_memory: int = size(256 * 1024, "Memory for a task's output; older output goes to disk.")
    max_tasks: int = setting(1000, "Maximum number of running shell tasks of each tenant.")
    tasks_kept: int = setting(1000, "Maximum number of ended tasks of each tenant that stay readable.")
    task_age: float = seconds(86400.0, "Time after which an ended task is removed.")
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
    check_folder(file.parent)
    if file.is_file():
        try:
            with file.open("rb") as opened:
                check_file(opened.fileno(), file)
                from_file = tomllib.load(opened)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{file} cannot be read: {error}; correct the file") from None
    known = {each.name for each in fields(Settings)}
    for name in from_file:
        if name not in (*known, *TABLES):
            raise InvalidRequest(f"{file} has an unknown setting {name!r}; see `ingle serve --help`")
    for each in fields(Settings):
        given = overrides.get(each.name)
        variable = "INGLE_" + each.name.upper()
        if given is not None:
            found[each.name] = (given, "flag")
        elif (text := os.environ.get(variable)) is not None:
            found[each.name] = (_parse(each, text, variable), variable)
        elif each.name in from_file:
            value = from_file[each.name]
            if isinstance(value, str) and each.metadata["unit"]:
                value = _parse(each, value, f"{each.name} in {file}")
            found[each.name] = (value, str(file))
    return found


def _parse(setting: "Field[Any]", text: str, source: str) -> Any:
    """Return the value in a text that comes from `source`."""
    unit = setting.metadata["unit"]
    try:
        if unit:
            return quantities.parse(unit, text)
        if setting.type in (int, float):
            return setting.type(text)
    except ValueError:
        wanted = quantities.KINDS[unit] if unit else "a number"
        raise InvalidRequest(f"{source} is {text!r}, which is not {wanted}") from None
    if setting.type is str:
        return text
    return [part.strip() for part in text.split(",") if part.strip()]


def unknown_variables() -> list[str]:
    """Return a sentence about each variable `INGLE_…` of the environment that nothing reads."""
    import difflib

    known = [*NOT_SETTINGS, *("INGLE_" + each.name.upper() for each in fields(Settings))]
    found = []
    for name in sorted(os.environ):
        if name.startswith("INGLE_") and name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else "`ingle config` lists the settings"
            found.append(f"the environment variable {name} is not known and has no effect; {hint}")
    return found
