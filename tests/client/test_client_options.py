"""Options of a client's sessions, figures of a result, and errors that say what to do."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingle import Client, errors
from ingle.requests import SessionLimits
from support.server import Server

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

SHOW = f"""
import base64
class Figure:
    def _repr_mimebundle_(self, **_):
        return {{"image/png": base64.b64decode("{PNG}"), "text/plain": "figure"}}
class Drawing:
    def _repr_svg_(self):
        return "<svg></svg>"
display(Figure())
display(Drawing())
Figure()
"""


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


def test_a_session_can_be_one_that_must_be_new_or_must_exist(client: Client) -> None:
    with pytest.raises(errors.SessionNotFound):
        client.session("main", create=False).run("1")
    first = client.session("main", create=True)
    first.run("x = 1")
    with pytest.raises(errors.SessionExists):
        client.session("main", create=True).run("1")
    with client.session("main", create=False) as again:
        assert again.run("x").text == "1"
    assert first.info().execution_count == 2
    assert client.session(create=True).run("1").ok


def test_a_result_is_short_in_a_prompt(client: Client) -> None:
    with client.session("main") as session:
        assert repr(session.run("6 * 7")) == "<Result of cell 1 in 'main', ok: '42'>"
        assert repr(session.run("x = 1")) == "<Result of cell 2 in 'main', ok>"
        assert repr(session.run("'a' * 200")) == f"<Result of cell 3 in 'main', ok: {chr(34)}'{'a' * 79}{chr(34)}…>"


def test_an_existing_session_is_not_used_where_it_is_not_as_asked_for(start) -> None:
    server = start("--isolation", "limits")
    with Client(server.url, server.token) as client, client.session("main") as session:
        session.run("x = 1")
        assert client.session("main", isolation="limits").run("x").text == "1"
        said = (
            "session 'main' exists, and has no environment by name, not 'data'; leave the option out, end the session"
        )
        for create in (None, False):
            with pytest.raises(errors.SessionDiffers, match=said):
                client.session("main", environment="data", create=create).run("x")
        with pytest.raises(errors.SessionDiffers, match="has the isolation level limits, not sandbox"):
            client.session("main", isolation="sandbox").run("x")
        assert session.info().execution_count == 2


def test_a_session_can_ask_for_less_than_the_service_grants(start) -> None:
    server = start("--isolation", "limits")
    with Client(server.url, server.token) as client:
        limits = {"memory": 512 * 1024**2, "files": 200}
        with client.session("small", isolation="limits", network="full", limits=limits) as session:
            info = session.info()
            assert (info.isolation, info.network, info.limits.memory) == ("limits", "full", 512 * 1024**2)
            assert session.run("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]").text == "200"
        with client.session("same", limits=SessionLimits(files=201)) as session:
            assert session.info().limits.files == 201
        with pytest.raises(errors.NotGranted, match="weaker"):
            client.session("weaker", isolation="none").run("1")
        with pytest.raises(errors.InvalidRequest):
            client.session("wrong", limits={"memori": 1}).run("1")


def test_figures_of_a_result_are_bytes_and_files(client: Client, tmp_path: Path) -> None:
    with client.session() as session:
        result = session.run(SHOW)
        png = result.png()
        assert png.startswith(b"\x89PNG")
        assert [kind for kind, _ in result.figures] == ["image/png", "image/svg+xml", "image/png"]
        assert result.png(2) == png
        paths = result.save_figures(tmp_path / "out")
        assert [Path(path).name for path in paths] == ["cell-1-1.png", "cell-1-2.svg", "cell-1-3.png"]
        assert (Path(paths[0]).read_bytes(), Path(paths[1]).read_text()) == (png, "<svg></svg>")
        plain = session.run("1")
        assert plain.save_figures(tmp_path / "none") == []
        with pytest.raises(LookupError, match="cell 2 showed 0 PNG images; there is no number 1"):
            plain.png()


def test_a_wrong_token_is_answered_with_how_to_give_the_right_one(server: Server) -> None:
    with Client(server.url, "wrong") as client, pytest.raises(errors.Unauthorized) as refused:
        client.sessions()
    assert "INGLE_TOKEN" in refused.value.message
    assert "--token-file" in refused.value.message


def test_a_busy_session_raises_busy(client: Client) -> None:
    with client.session("main") as session:
        session.run("import time; time.sleep(60)", wait=0.1)
        with pytest.raises(errors.Busy, match="cell 1") as busy:
            session.run("1")
        assert busy.value.cell == 1
        session.interrupt()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_server_with_a_certificate_of_its_own_making_gets_no_token(tmp_path: Path, scheme: str) -> None:
    key, certificate = str(tmp_path / "key"), str(tmp_path / "certificate")
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *name]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over
            with contextlib.suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as secured:
                heard.append(secured.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        threads.submit(listen)
        try:
            url = f"{scheme}://localhost:{listener.getsockname()[1]}"
            with Client(url, token="secret") as client, pytest.raises(errors.Unreachable, match="certificate"):
                client.sessions()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    assert heard == []
