"""Public shapes of tools: servers, functions of a client, calls of them, approvals."""

from typing import Any

from msgspec import Raw, Struct, field

ALLOW, ASK, DENY = "allow", "ask", "deny"

CLIENT = "client"
"""Name of the server that has the functions of clients, where a client names no other."""


class ToolSpec(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool as its server describes it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments."""
    output_schema: dict[str, Any] | None = None
    read_only: bool = False
    """The server says that the tool changes nothing."""
    destructive: bool = False
    """The server says that the tool may destroy something."""


class ToolInfo(Struct, frozen=True, omit_defaults=True):
    """A tool in a listing."""

    name: str
    signature: str
    """The function as Python shows it."""
    description: str
    policy: str
    """`allow`, `ask` or `deny`."""
    read_only: bool = False
    destructive: bool = False


class ServerInfo(Struct, frozen=True, omit_defaults=True):
    """A server of tools that the session may use. `problem` says why its tools are not known."""

    name: str
    kind: str
    """`stdio`, `http` or `client`."""
    tools: list[ToolInfo] = field(default_factory=list)
    problem: str | None = None


class NewServer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An MCP server to connect to: a command with its arguments, or a URL. `${NAME}` stands for a variable."""

    command: str | None = None
    """Program that is the server, on the machine of the service."""
    args: list[str] = field(default_factory=list)
    """Its arguments."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of its environment, such as its secrets. No session sees them."""
    cwd: str | None = None
    """Folder that it starts in."""
    url: str | None = None
    """Address of a server over HTTP, in the place of a command."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each request to that address."""
    share: str = "tenant"
    """`tenant`: one process for all sessions of a tenant; `session`: one for each session."""
    policy: str | None = None
    """What holds for tools without a rule. Default: the setting `tool_policy`."""
    rules: dict[str, str] = field(default_factory=dict)
    """Policy by the name of a tool, a pattern such as `get_*`, or `@read_only` and `@destructive`."""
    tenants: list[str] = field(default_factory=list)
    """Tenants that may use it beside the owner; `*` is all."""
    description: str = ""
    """What it is for, in words for people and models."""


class FunctionCall(Struct, frozen=True, tag_field="type", tag="call"):
    """A call that a client has to answer. `arguments` is an object."""

    id: int
    tool: str
    arguments: Raw


class FunctionCancelled(Struct, frozen=True, tag_field="type", tag="cancel"):
    """This call was cancelled; its answer would be dropped."""

    id: int


class ToolFailed(Exception):
    """A call that failed. `kind` and the text go to the code that called."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
