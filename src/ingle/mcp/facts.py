"""The facts of this server for a model: files, network, packages, durability, tools; and the texts made from them.

`facts_of` is the only place that asks for them, so the instructions and descriptions cannot say what is not so.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ingle import errors
from ingle.callers import DEFAULT_TENANT
from ingle.grants import OPEN_LEVELS, GrantInfo, Reach
from ingle.isolation.policy import INDEX
from ingle.render.phrases import duration, some
from ingle.service import Service

MAX_WAIT_SECONDS = 10.0
"""Time for the test of the isolation level. If it takes longer, the texts say nothing of what can be reached."""

INSTRUCTIONS_CHARS = 2000
"""Hosts cut longer instructions."""


class Described(Protocol):
    """A tool with a description to fill in."""

    @property
    def description(self) -> str: ...


@dataclass(frozen=True)
class Facts:
    folder: str | None = None
    """Folder that sessions start in; None is an empty folder of their own."""
    durable: bool = False
    """Whether `main` is restored when the server restarts."""
    can_be_durable: bool = True
    ends_idle_after: float | None = None
    """Seconds after which idle sessions end, if they do."""
    shell_starts_there: bool = False
    """Whether commands without a session start in that folder too."""
    reach: Reach | None = None
    """What a new session can reach; None if that is not known."""
    environments: tuple[str, ...] = ()
    """Names of environments that sessions can be created with."""
    owns: bool = True
    """Whether the caller is the owner of the server, who can change what is granted."""
    tools: frozenset[str] | None = None
    """Names of the tools that are answered; None: all of them."""
    servers: tuple[str, ...] = ()
    """Names of other MCP servers whose tools code may call."""

    def answers(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


async def facts_of(service: Service, folder: str | None, *, durable: bool, tools: Iterable[str]) -> Facts:
    """Return the facts for the caller of this service.

    `folder` is where the sessions and commands of this API start. None: where the service lets them start.
    """
    settings = service.settings
    reach = None
    environments: tuple[str, ...] = ()
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            environments = tuple(each.name for each in await service.list_environments() if each.usable)
            reach = await service.reach()
    except (errors.IngleError, TimeoutError):
        pass  # creating a session reports the error
    return Facts(
        folder or (reach.start if reach is not None else None),
        durable,
        settings.durable_size > 0,
        settings.idle_timeout if settings.idle_policy == "end" else None,
        folder is not None,
        reach,
        environments,
        service.caller.tenant == DEFAULT_TENANT,
        frozenset(tools),
        tuple(service.tool_servers),
    )


def instructions(facts: Facts) -> str:
    """Return the text that a host shows a model before any tool is called."""
    parts = [
        "ingle runs live Python sessions. Use python_session(code) for Python: state stays from call to call in "
        "session `main`.",
        *(_about_reach(facts, facts.reach) if facts.reach is not None else ()),
        *_about_environments(facts),
        *_about_servers(facts),
        _about_life(facts),
        *_about_answers(facts),
    ]
    return " ".join(parts)[:INSTRUCTIONS_CHARS]


def description(tool: Described, facts: Facts) -> str:
    """Return the description of a tool on this server."""
    place = (
        "It runs where `main` starts, or in a session's folder."
        if facts.shell_starts_there
        else "It runs in a folder of its own, or in a session's folder."
    )
    filled = {"{life}": _life_of_main(facts), "{session_life}": _life_of_others(facts), "{shell_place}": place}
    text = tool.description
    for word, meaning in filled.items():
        text = text.replace(word, meaning)
    return text


def _about_reach(facts: Facts, reach: Reach) -> list[str]:
    return [_about_files(facts, reach), _about_network(reach), _about_packages(reach)]


def _about_files(facts: Facts, reach: Reach) -> str:
    start = f"Sessions start in {facts.folder}." if facts.folder else "Sessions start in an empty folder of their own."
    if reach.level in OPEN_LEVELS:
        return f"{start} Code may use every file that the user who started this server may use."
    own = next((each for each in reach.folders if each.name == facts.folder), None)
    may = "" if own is None else f" Its files can be read{'' if own.read_only else ' and written'}."
    others = [_named(each) for each in reach.folders if each is not own]
    too = f" These folders can be used too: {some(others)}." if others else ""
    who = (
        "the user can grant a folder with `ingle grant DIR` in a terminal" if facts.owns else "its operator grants them"
    )
    other = "Other files of the user" if facts.owns else "Other files of the server's machine"
    return f"{start}{may}{too} {other} are out of reach, also for shell commands; {who}."


def _named(folder: GrantInfo) -> str:
    return f"{folder.name} (read only)" if folder.read_only else folder.name


def _about_network(reach: Reach) -> str:
    if reach.network == "full":
        return "Code can use the network."
    if reach.network == "none" or not reach.hosts:
        return "Code has no network."
    hosts = ["the package index" if each == INDEX else each for each in reach.hosts]
    return f"Of the network, code reaches {some(hosts)} only."


def _about_packages(reach: Reach) -> str:
    if reach.network == "full" or (reach.network == "allowlist" and INDEX in reach.hosts):
        return "A missing package is installed for a session by `%pip install NAME` in a cell."
    return "Packages cannot be downloaded; use those that are installed."


def _about_environments(facts: Facts) -> list[str]:
    if not facts.environments or not facts.answers("create_repl_session"):
        return []
    return [
        f"Environments with other packages, for create_repl_session(environment=…): {some(list(facts.environments))}."
    ]


def _about_servers(facts: Facts) -> list[str]:
    if not facts.servers:
        return []
    find = "search_tools finds them" if facts.answers("search_tools") else "tools.search(words) finds them"
    return [
        f"Code can call the tools of {some(list(facts.servers))}: `import tools; tools.SERVER.NAME(…)`; {find}. "
        "Use a loop in one cell for many calls."
    ]


def _about_answers(facts: Facts) -> list[str]:
    """Return what the answers mean and which tool to call then."""

    def step(begin: str, *steps: tuple[str, str]) -> str:
        texts = [text for tool, text in steps if facts.answers(tool)]
        return begin + ", or ".join(texts) if texts else ""

    runs = step(": call ", ("wait", "wait"), ("interrupt", "interrupt"))
    asks = step(": call ", ("send_input", "send_input"))
    rest = step(", and ", ("read_output", "read_output reads the rest"))
    apart = step(
        "To keep work apart from the variables of `main`, use ",
        ("create_repl_session", "another session (create_repl_session)"),
        ("python", "python for a single run"),
    )
    return [
        "If there is more to say than the output, an answer ends with a line in brackets.",
        f"`running` there means that the code continues{runs}.",
        f"`waiting for input` means that it asks for something{asks}.",
        f"Long output is shortened{rest}.",
        *([f"{apart}."] if apart else []),
    ]


def _about_life(facts: Facts) -> str:
    idle = (
        "" if facts.ends_idle_after is None else f" A session that is idle for {duration(facts.ends_idle_after)} ends."
    )
    if facts.durable:
        others = (
            "; other sessions come back if they are created with durable=true"
            if facts.answers("create_repl_session")
            else ""
        )
        return (
            "`main` is saved after each cell and comes back when the server restarts, and the next answer says so"
            f"{others}.{idle}"
        )
    if facts.can_be_durable and facts.answers("create_repl_session"):
        return f"Sessions end with the server, unless they are created with durable=true.{idle}"
    return f"Sessions end with the server.{idle}"


def _life_of_others(facts: Facts) -> str:
    idle = "" if facts.ends_idle_after is None else f"until it is idle for {duration(facts.ends_idle_after)}, "
    unless = " unless `durable`" if facts.can_be_durable else ""
    return f"It lives until destroy_repl_session, {idle}or until the server ends{unless}."


def _life_of_main(facts: Facts) -> str:
    return "`main` comes back when the server restarts." if facts.durable else "Sessions end with the server."
