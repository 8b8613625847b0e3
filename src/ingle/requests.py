"""Requests as values: a new session, a new cell, a new shell task, and the limits of each.

Every value is plain data, so that it can be sent to another machine. Answers are in `events`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field


class SessionLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that a session may use; null is no limit. Sizes are in bytes."""

    memory: int | None = None
    """Of all its processes together."""
    processes: int | None = None
    """At the same time, threads included."""
    files: int | None = None
    """Open at the same time, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    tmp: int | None = None
    """Of its folder for temporary files."""
    disk: int | None = None
    """Of its own folder."""


class Bounds(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token allows within the server's settings; null adds no restriction."""

    isolation: str | None = None
    """Weakest level of its sessions."""
    network: str | None = None
    """Most access that its sessions get."""
    gpus: str | None = None
    """GPUs that its sessions get at most: `all`, `none`, or numbers such as `0,1`."""
    limits: SessionLimits = SessionLimits()
    """Upper limits of each of its sessions."""


class NewSession(Struct, frozen=True, kw_only=True):
    """Request for a session. Null means the server's setting."""

    session_id: str | None = None
    """Its name. Default: a random name."""
    tenant: str = ""
    """Set by the service, as `bounds` is; a caller cannot choose it."""
    python: str | None = None
    environment: str | None = None
    """Name of the environment whose interpreter and packages it has. Not together with `python`."""
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    idle_timeout: float | None = None
    own_folder: bool = False
    """Without `cwd`, start in a folder of its own also where the owner's sessions start in a granted one."""
    one_off: bool = False
    """End the session once its one result was read."""
    include_stdlib: bool = True
    """Load the user's library into the session."""
    durable: bool = False
    """Save it after each cell, and bring it back after a restart of the server."""
    isolation: str | None = None
    """Lowest level of isolation. The server's own level is never lowered."""
    network: str | None = None
    """Widest network access. The server's own grant is never widened."""
    gpus: str | None = None
    """GPUs: `all` that are granted, `none`, or numbers such as `0,1`. The server's own grant is never widened."""
    limits: SessionLimits = SessionLimits()
    """Highest limits. The server's own limits are never raised."""
    checkpoints: str | None = None
    """`auto`: one before each cell; `manual`: on request."""
    keep_failures: int | None = None
    """Failed cells whose moment is kept, with the frames of the exception. Default: the server's."""
    shares: str | None = None
    """Name of another session of the tenant whose folder and user id it has."""
    home: str | None = None
    """Path at which a sandbox shows its own folder, such as `/home/user`. Elsewhere it has the real path."""
    bounds: Bounds = Bounds()
    """What the caller's token allows."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that its machine must have, in a cluster."""


class Author(Struct, frozen=True, gc=False, omit_defaults=True):
    """Who asked for a cell. The server sets it; a client chooses only what it calls itself."""

    name: str
    """Name of the token; `owner` for the owner of the server."""
    via: str
    """Interface that was used: `console`, `http`, `mcp`, or `local` for the process of the server itself."""
    client: str = ""
    """What the client calls itself. It is not checked."""


class Script(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a cell runs as a program. `sys.exit` then ends the program and not the session."""

    argv: list[str]
    """`sys.argv` while it runs."""
    file: str | None = None
    """Path of its source: its `__file__`, its name in tracebacks; its folder is first on `sys.path`. Null: no file."""


class CommitPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by which a trial is committed by itself. All of them must hold.

    The cell must have succeeded, and the commit must end nothing of the session, whatever is chosen here.
    """

    network: Literal["none", "any"] = "none"
    """Hosts that the cell may have asked for."""
    files: Literal["none", "own", "any"] = "own"
    """Files that may differ: none, those of the own folder, or those of granted folders too."""
    deletes: bool = True
    """Whether files may be deleted."""
    bytes: Annotated[int, Meta(ge=0)] = 10_000_000
    """Maximum size of all files together that were created or changed."""
    variables: Literal["none", "created", "any"] = "any"
    """Variables that may differ: none, new ones, or all."""


class NewCell(Struct, frozen=True):
    """Request to run one cell."""

    code: str
    timeout: float | None = None
    """Seconds after which the cell is interrupted."""
    envs: dict[str, str] = field(default_factory=dict)
    """Environment variables for the time of this cell."""
    queue: bool = False
    """Wait for the turn of this cell while another one runs. Default: the request fails with `busy`."""
    key: str | None = None
    """Idempotency key. A repeated request with the same key gets the number of the cell that the first one began."""
    script: Script | None = None
    """Run the cell as a program with arguments."""
    item: str | None = None
    """JSON of the variable `item`, which the cell finds."""
    author: Author | None = None
    """Set by the service; a caller cannot choose it."""
    trial: Literal["held", "allowed"] | None = None
    """Run the cell as a trial, with its connections held or allowed."""
    policy: CommitPolicy | None = None
    """Rules by which that trial is committed by itself."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that a shell task may use; null is no limit. Sizes are in bytes."""

    memory: int | None = None
    """Of all its processes together, without memory shared with files."""
    cpu_seconds: float | None = None
    """Of all its processes together."""
    processes: int | None = None
    files: int | None = None
    """Open at the same time, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    output: int | None = None
    """On stdout and stderr together."""


class NewTask(Struct, frozen=True):
    """Request to run one shell command."""

    command: str
    cwd: str = ""
    """Folder to run in. A relative one starts at the session's folder; without a session, at the tenant's."""
    env: dict[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds after which the command is ended."""
    stdin: str | None = None
    """The whole input; with `interactive` or `pty` its first part."""
    interactive: bool = False
    """Keep the input open."""
    pty: bool = False
    """Run the command on a terminal of `rows` and `columns`."""
    rows: int = 24
    columns: int = 80
    limits: Limits = Limits()
    session_id: str | None = None
    """Name of the session whose folder, environment and sandbox the command gets."""
    shell_session: str | None = None
    """Name of the persistent shell that runs the command."""
    key: str | None = None
    """Idempotency key. A repeated request with the same key gets the task that the first one began."""
    tenant: str = ""
    """Set by the service, as `bounds` is; a caller cannot choose it."""
    bounds: Bounds = Bounds()
    """What the caller's token allows."""

    @property
    def session_key(self) -> str | None:
        """Key of its session; None without a session."""
        return None if self.session_id is None else session_key(self.tenant, self.session_id)


def shell_key(session: str | None, name: str) -> str:
    """Return the key of a tenant's persistent shell, which may belong to a session."""
    return f"{session or ''}:{name}"


def session_key(tenant: str, name: str) -> str:
    """Return the key by which a node knows a session: its name, or `tenant/name` outside the default tenant."""
    return f"{tenant}/{name}" if tenant else name
