"""The socket under `run/`, by which a user's own commands find and reach the servers on a data folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import unix_connect

from ingle import __version__
from ingle.http import server as door
from ingle.service import Service
from ingle.support.running_servers import Announcement, connect, find_servers, reachable
from support.server import PATIENCE, Server
from support.waiting import until


def local_client(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE)


@pytest.mark.fresh_service
def test_a_server_is_found_and_reached_by_its_owner_without_a_token(server: Server) -> None:
    [(path, info)] = find_servers(server.home)
    assert (info.pid, info.url, info.kind, info.version) == (server.process.pid, server.url, "serve", __version__)
    assert info.folder == os.getcwd()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    server.make_session()
    with reachable(path) as name, local_client(Path(name)) as client:
        result = client.post("/v1/sessions/main/execute", json={"code": "6 * 7"}).json()
        assert result["result"] == {"text/plain": "42"}
        with unix_connect(name, "ws://localhost/v1/sessions/main/events", compression=None) as watching:
            assert json.loads(watching.recv(PATIENCE))["seq"] == 1
    server.stop()
    assert find_servers(server.home) == []
    assert list((server.home / "run").iterdir()) == []


async def test_a_server_that_ends_while_its_socket_is_being_made_leaves_none(
    service: Service, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Announcement):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            begun.set()
            assert go_on.wait(PATIENCE)

    monkeypatch.setattr(door, "Announcement", Slow)
    opening = asyncio.create_task(door.local_listener(service, home, "mcp").__aenter__())
    assert await until(begun.is_set)
    assert len(list((home / "run").glob("*.sock"))) == 1
    opening.cancel()
    go_on.set()
    await asyncio.wait({opening})
    assert opening.cancelled()
    assert list((home / "run").glob("*.sock")) == []


def test_several_servers_on_one_folder_are_listed_oldest_first_and_the_dead_are_swept(
    start: Callable[..., Server],
) -> None:
    first, second = start(), start()
    assert [info.pid for _, info in find_servers(first.home)] == [first.process.pid, second.process.pid]
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(PATIENCE)
    assert [info.pid for _, info in find_servers(first.home)] == [second.process.pid]
    left = {path.name.partition("-")[0] for path in (first.home / "run").glob("*.[sj]*")}
    assert left == {str(second.process.pid)}
    # Its lock is for the next server to remove.
    start()
    assert len(list((first.home / "run").glob("*.lock"))) == 2


def test_a_socket_below_a_very_long_path_is_reached_all_the_same(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 40)
    announcement = Announcement(home, "serve")
    try:
        announcement.announce("http://127.0.0.1:1")
        [(path, info)] = find_servers(home)
        assert (path, info.url) == (announcement.path, "http://127.0.0.1:1")
        connect(path).close()
    finally:
        announcement.close()
    assert list((home / "run").iterdir()) == []


def test_what_is_no_announcement_is_passed_over(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path, "run")
    try:
        announcement.path.with_suffix(".json").write_text("{")
        assert find_servers(tmp_path) == []
        assert announcement.path.exists()
    finally:
        announcement.close()


@pytest.mark.fresh_service
def test_another_user_is_turned_away(server: Server) -> None:
    [(path, _)] = find_servers(server.home)
    if os.geteuid() == 0:
        for folder in (path, path.parent, *path.parent.parents):
            os.chmod(folder, 0o777 if folder in (path, path.parent, server.home) else folder.stat().st_mode | 0o055)
        refused = ask_as(65534, path)
    else:
        pytest.skip("only root can be somebody else")
    assert refused == b""
    with reachable(path) as name, local_client(Path(name)) as client:
        assert client.get("/v1/sessions").status_code == 200


def ask_as(uid: int, path: Path) -> bytes:
    """What a process of that user gets for a request."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer: Any = b"could not connect"
        try:
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                answer = b""
                connection.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                while chunk := connection.recv(65536):
                    answer += chunk
        except ConnectionError:
            answer = b""
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        return file.read()


def test_a_server_that_ended_before_it_was_told_of_leaves_nothing(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path, "serve")
    announcement.close()
    announcement.announce(None)
    assert list((tmp_path / "run").iterdir()) == []
