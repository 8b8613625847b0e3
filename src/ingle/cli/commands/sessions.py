"""`ingle ps`, `ingle vars` and `ingle config`: list sessions, variables and settings."""

import contextlib
import os
import re
import time
from dataclasses import fields
from typing import Any

import click

from ingle import quantities
from ingle.cli.completion import session_argument
from ingle.cli.echo import echo, echo_json
from ingle.cli.options import json_option
from ingle.cli.services import (
    Choice,
    Target,
    find_session,
    find_targets,
    list_saved_sessions,
    list_sessions,
    service_options,
)
from ingle.errors import Unreachable
from ingle.render.terminal_text import clean_line
from ingle.settings import Settings, data_folder

UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


@click.command(epilog="Example: ingle ps --json")
@service_options
@json_option
def ps(choice: Choice, as_json: bool) -> None:
    """List the sessions of all your servers on this machine.

    Servers are those of `ingle serve`, of assistants and of client programs. A server that does not answer is listed
    too. Durable sessions of servers that have ended are listed without a process id. They come back with the next
    `ingle serve`, or `ingle mcp` in the same folder. A session in its own private folder shows `(own)`; --json has the
    path. `ingle ls` is the same.
    """
    seen = [look(target) for target in find_targets(choice)]
    saved = _saved() if choice.url is None and choice.pid is None else []
    if as_json:
        echo_json({"servers": seen, "saved": saved})
        return
    for line in _table(seen, saved):
        echo(line)


def look(target: Target) -> dict[str, Any]:
    """Return a server's description with its sessions, or with the reason why they are unknown."""
    told: dict[str, Any] = {"url": str(target.address)}
    if target.info is not None:
        import msgspec

        told = msgspec.to_builtins(target.info)
    try:
        told["sessions"] = list_sessions(target)
    except Unreachable as failure:
        if target.info is None:
            raise
        told["sessions"], told["failure"] = [], failure.message
    return told


def _saved() -> list[dict[str, Any]]:
    """Return the durable sessions that no running server has."""
    saved = list_saved_sessions()
    if not saved:
        return []
    import msgspec

    found: list[dict[str, Any]] = msgspec.to_builtins(saved)
    return found


def _table(servers: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[str]:
    now = time.time()
    rows: list[tuple[str, ...]] = [("SERVER", "PID", "SESSION", "STATE", "CELLS", "AGE", "MEMORY", "FOLDER")]
    for server in servers:
        who = (str(server.get("kind", server["url"])), str(server.get("pid", "-")))
        folder = str(server.get("folder", "-"))
        state = "does not answer" if "failure" in server else "no session"
        if not server["sessions"]:
            since = server.get("started_at")
            rows.append((*who, "-", state, "-", age(now - since) if since else "-", "-", short_folder(folder)))
        rows += [
            (
                *who,
                session["session_id"],
                _state(session, now),
                str(session["execution_count"]),
                age(now - session["created_at"]),
                _memory(session),
                f"{node}:{session['cwd']}" if (node := session.get("node")) else short_folder(session["cwd"]),
            )
            for session in server["sessions"]
        ]
    rows += [
        (
            session["kind"],
            "-",
            f"{session['tenant']}/{session['session_id']}" if session["tenant"] else session["session_id"],
            _state(session, now),
            str(session["execution_count"]),
            age(now - session["created_at"]),
            "-",
            short_folder(session["folder"]),
        )
        for session in saved
    ]
    if len(rows) == 1:
        return ["no server is running; start one with `ingle serve`"]
    return laid_out(rows)


def _state(session: dict[str, Any], now: float) -> str:
    state, saved = with_trial(session["state"], session), session.get("saved_at")
    if session["state"] != "hibernated" and not (saved and session.get("durable")):
        return state
    return f"{state}, saved {age(now - saved)} ago" if saved else f"{state}, not saved"


def with_trial(state: str, session: dict[str, Any]) -> str:
    """Return the words for a session's state, and its open trial."""
    return f"{state}, {session['trial']} open" if session.get("trial") else state


def laid_out(rows: "list[tuple[str, ...]]") -> list[str]:
    # A session chooses names of folders and types: they must not look like rows of their own.
    rows = [tuple(clean_line(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def short_folder(path: str) -> str:
    """Return a folder as people write it: `~` for the home folder, and `(own)` for the private one of a session."""
    own = re.match(re.escape(f"{data_folder()}/sessions/") + "[^/]+/workspace(?=/|$)", path)
    if own is not None:
        return "(own)" + path[own.end() :]
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path


def age(seconds: float) -> str:
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _memory(session: dict[str, Any]) -> str:
    on_gpu = session.get("gpu_memory")
    return memory_size(session["memory"]) + (f" + {memory_size(on_gpu)} GPU" if on_gpu else "")


def memory_size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1024**2:.0f} MiB"


@click.command(name="vars", epilog="Example: ingle vars main; ingle vars main df")
@session_argument
@click.argument("name", required=False)
@service_options
@json_option
def variables(session: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """List the variables of a session, or show one in full.

    Listing runs no code of the session. A named variable is converted to text by its own code, within limits.
    """
    path = f"/v1/sessions/{session}/variables"
    if name is not None:
        from urllib.parse import quote

        path += f"/{quote(name, safe='')}"
    said = find_session(choice, session).ask("GET", path)
    if as_json:
        echo_json(said)
    elif name is not None:
        echo(said["variable"]["value"])
    else:
        for line in _variables_table(said["variables"]):
            echo(line)
    if not as_json:
        for notice in said["notices"]:
            echo(f"ingle: {notice}", err=True)


def _variables_table(found: list[dict[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [("NAME", "TYPE", "SHAPE", "SIZE", "VALUE")]
    for each in found:
        shape = " x ".join(map(str, each["shape"])) if "shape" in each else str(each.get("length", "-"))
        size = _bytes(each["size"]) if "size" in each else "-"
        rows.append((each["name"], each.get("type") or "-", shape, size, each.get("preview") or ""))
    return laid_out(rows) if found else ["no variables"]


def _bytes(count: int) -> str:
    for size, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if count >= size:
            number = count / size
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{count} bytes"


@click.command(epilog="Example: ingle config --json")
@json_option
def config(as_json: bool) -> None:
    """List the settings in force, each with its source.

    These are the settings of `ingle serve` without flags: from the environment, else from config.toml in the data
    folder, else the defaults. Sizes and times are shown as config.toml takes them, such as "2G" and "5m"; with --json
    they are numbers, in bytes and seconds.
    """
    from ingle.settings import explain

    told = explain()
    folder = data_folder()
    if as_json:
        rows = [{"name": name, "value": value, "from": source} for name, (value, source) in told.items()]
        echo_json({"data_folder": str(folder), "settings": rows})
        return
    echo(f"# data folder: {folder}")
    units = {each.name: each.metadata["unit"] for each in fields(Settings)}
    shown = {name: _value(value, units[name]) for name, (value, _) in told.items()}
    width = max(len(f"{name} = {value}") for name, value in shown.items() if len(value) < 40)
    for name, (_, source) in told.items():
        echo(f"{f'{name} = {shown[name]}'.ljust(width)}  # {source}")


def _value(value: Any, unit: str) -> str:
    """Return a setting as people write it: a size or a time with its unit, if that is exact."""
    import msgspec

    if unit and value:
        text = quantities.text_of(unit, value)
        with contextlib.suppress(ValueError):
            if not text.isdecimal() and quantities.parse(unit, text) == value:
                value = text
    return msgspec.json.encode(value).decode()
