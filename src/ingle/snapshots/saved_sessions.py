"""Durable sessions on disk that no running server has. Reads only, and needs no server."""

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path

import msgspec
from msgspec import Struct

BUSY_SECONDS = 2.0
"""Time to wait for a server that writes the registry."""


class SavedSession(Struct, kw_only=True):
    """A durable session whose server has ended. The next server of its kind brings it back."""

    session_id: str
    tenant: str
    kind: str
    """The kind of server that it belongs to: `serve`, `mcp` or `client`."""
    folder: str
    """The folder that it starts in, or that its server was started in."""
    execution_count: int
    created_at: float
    saved_at: float | None
    durable: bool = True
    state: str = "hibernated"


class _Made(Struct):
    """The part of a stored request that a listing shows."""

    tenant: str = ""
    cwd: str | None = None


class _Save(Struct):
    time: float
    cell: int = 0


def list_saved(home: Path) -> list[SavedSession]:
    """Return the durable sessions of servers that have ended. An unreadable registry counts as an empty one."""
    path = home / "registry.db"
    if not path.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            rows = db.execute("SELECT owner, place, name, made, created_at, cells, save FROM sessions").fetchall()
    except sqlite3.Error:
        return []
    alive: dict[str, bool] = {"": False}
    found = []
    for owner, *columns in rows:
        if owner not in alive:
            alive[owner] = _is_alive(home, owner)
        if not alive[owner]:
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(_read(*columns))
    return sorted(found, key=lambda each: (each.kind, each.tenant, each.session_id, each.folder))


def _read(place: str, name: str, made: bytes, created_at: float, cells: int, save: bytes | None) -> SavedSession:
    kind, _, folder = place.partition(":")
    wanted = msgspec.json.decode(made, type=_Made)
    saved = None if save is None else msgspec.json.decode(save, type=_Save)
    return SavedSession(
        session_id=name,
        tenant=wanted.tenant,
        kind=kind,
        folder=wanted.cwd or folder or "-",
        execution_count=max(cells, saved.cell if saved is not None else 0),
        created_at=created_at,
        saved_at=None if saved is None else saved.time,
    )


def _is_alive(home: Path, server: str) -> bool:
    """Return whether a server holds its lock."""
    try:
        fd = os.open(home / "run" / f"{server}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)
