"""The minimal client, which the commands for running services use."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingle import errors
from ingle.client.address import LOCAL_URL, Address, parse_address
from ingle.client.minimal import MinimalClient
from ingle.support.running_servers import find_servers
from support.server import Server

SECONDS = 20.0


@contextmanager
def answering(said: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Listen for one connection, answer it with these bytes, or with none at all, and keep what it asked."""
    asked: list[bytes] = []
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            if said is None:
                done.wait(SECONDS)
            else:
                connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            done.set()
            thread.join()


def test_a_service_is_reached_over_tcp_with_a_token_and_over_its_socket_without(server: Server, home: Path) -> None:
    [(path, _)] = find_servers(home)
    over_tcp = MinimalClient(parse_address(server.url + "/", server.token))
    over_socket = MinimalClient(Address(LOCAL_URL, path=path))
    made = over_tcp.request("POST", "/v1/sessions", {"session_id": "main"}, timeout=SECONDS)
    assert made["session_id"] == "main"
    for client in (over_tcp, over_socket):
        listed = client.request("GET", "/v1/sessions", timeout=SECONDS)["sessions"]
        assert [each["session_id"] for each in listed] == ["main"]
        with pytest.raises(errors.SessionNotFound, match="there is no session 'absent'"):
            client.request("POST", "/v1/sessions/absent/interrupt", {}, timeout=SECONDS)
    with pytest.raises(errors.Unauthorized):
        MinimalClient(parse_address(server.url, "wrong")).request("GET", "/v1/sessions", timeout=SECONDS)


def test_content_is_sent_and_read_in_parts(server: Server) -> None:
    server.make_session("main")
    client = MinimalClient(parse_address(server.url, server.token))
    path = "/v1/sessions/main/files/a.bin"
    with client.open("PUT", path, io.BytesIO(b"0123456789"), timeout=SECONDS) as answer:
        answer.read()
    with client.open("GET", path, timeout=SECONDS) as answer:
        assert [answer.read(4), answer.read(4), answer.read(4), answer.read(4)] == [b"0123", b"4567", b"89", b""]


def test_the_path_of_the_url_comes_before_that_of_the_request() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (url, asked):
        assert MinimalClient(parse_address(url + "/ingle/", "t0ken")).request("GET", "/v1", timeout=SECONDS) == {}
    head = asked[0].decode()
    assert head.startswith("GET /ingle/v1 HTTP/1.1\r\n")
    assert "Authorization: Bearer t0ken\r\n" in head


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "NAME is not an ingle server; check the URL",
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}",
            "or a proxy that cannot reach one",
        ),
        (b"SSH-2.0-OpenSSH_9\r\n", "the server (NAME) does not answer: SSH-2.0"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{", "the server (NAME) does not answer: IncompleteRead"),
        (b"", "the server (NAME) does not answer: "),
    ],
    ids=["no-json", "no-problem", "no-http", "cut-short", "nothing"],
)
def test_what_is_no_answer_of_a_service_is_unreachable(said: bytes, message: str) -> None:
    with answering(said) as (url, _), pytest.raises(errors.Unreachable) as raised:
        MinimalClient(parse_address(url, None), "NAME").request("GET", "/v1/sessions", timeout=SECONDS)
    assert message in raised.value.message


def test_a_server_that_does_not_answer_in_time_or_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with answering(None) as (url, _), pytest.raises(errors.Unreachable, match=r"does not answer: it took too long"):
        MinimalClient(parse_address(url, None)).request("GET", "/v1/sessions", timeout=0.05)
    gone = Address(LOCAL_URL, path=tmp_path / "gone.sock")
    with pytest.raises(
        errors.Unreachable, match=rf"the server \(unix:{tmp_path}/gone\.sock\) does not answer: .*; check that"
    ):
        MinimalClient(gone).request("GET", "/v1/sessions", timeout=SECONDS)
