"""Bad input on every route of other servers' APIs: their own form of an error, and never an internal one.

Routes and names of fields are read from the translations, so that a new one is tried too.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Route, Router
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import ingle.compat
from ingle.settings import Settings
from support.server import PATIENCE, Server
from support.tokens import client_with, ingle_token

pytestmark = pytest.mark.req("compat.errors")

JSON, CONNECT = "application/json", "application/connect+json"


def field_names() -> list[str]:
    """Names of all fields of all requests."""
    found = set()
    for module in pkgutil.walk_packages(ingle.compat.__path__, "ingle.compat."):
        if ".in_session." in module.name:
            continue
        for each in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(each) and issubclass(each, msgspec.Struct) and each.__module__ == module.name:
                found |= {field.encode_name for field in msgspec.structs.fields(each)}
    return sorted(found)


FIELDS = field_names()
VALUES: list[Any] = ["", "x\0", "a" * 5000, -1, 2**70, 1.5, True, None, [], [None], {}, dict.fromkeys(FIELDS, "x")]
"""Each is given to all fields at once."""

BODIES = [
    (JSON, b""),
    (JSON, b"["),
    (JSON, b"3"),
    (JSON, b"\xff\xfe"),
    (JSON, b'{"a":' * 2000),
    (CONNECT, b"\0\0"),
    (CONNECT, struct.pack(">BI", 1, 2**31)),
    (CONNECT, struct.pack(">BI", 0, 2) + b"[]"),
    ("multipart/form-data", b"x"),
    ("multipart/form-data; boundary=x", b"--x\r\nno end"),
    *((JSON, json.dumps(dict.fromkeys(FIELDS, value)).encode()) for value in VALUES),
]
"""Types and bodies that no route can make sense of."""

QUERY_NAMES = ("path", "source", "destination", "limit", "cursor", "nextToken", "metadata", "state", "labels", "token")
QUERIES = ["", *("&".join(f"{name}={value}" for name in QUERY_NAMES) for value in ("%00", "../../etc/passwd", "-1x"))]
NAMES = ["x", "%00", "a" * 3000, "%C3%A9", "..%2f.."]
"""Ids that nothing has."""


@dataclass
class Protocol:
    """One translation, and how its clients meet it."""

    name: str
    new: Callable[[httpx.Client], str]
    """Makes a sandbox or kernel, and returns its id."""
    owner: str | None
    """Parameter of routes that names it."""
    is_error: Callable[[httpx.Response], bool]
    """Whether an answer is an error in the form of this protocol."""
    headers: Callable[[str], dict[str, str]] = lambda made: {}
    statuses: tuple[int, ...] = ()
    """Statuses of 500 and above that belong to the protocol."""
    rest: str = ""
    """A path of the route that refuses all others."""

    @property
    def routes(self) -> list[tuple[str, str]]:
        made = ingle.compat.TABLE[self.name](SimpleNamespace(settings=Settings()))  # type: ignore[arg-type]
        routers = [each for each in vars(made).values() if isinstance(each, Router)]
        found = [route for router in routers for route in router.routes if isinstance(route, Route)]
        return [
            (method, self.rest if "{what:path}" in route.path else route.path)
            for route in found
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]

    def ends(self, method: str, template: str) -> bool:
        """Return whether the route ends what was made."""
        return method == "DELETE" and template.endswith(f"{{{self.owner}}}")


def is_error_of_e2b(answer: httpx.Response) -> bool:
    if answer.url.path.startswith(("/execute", "/contexts")) and answer.status_code != 502:
        return answer.headers["content-type"].startswith("text/plain") and bool(answer.text)
    return {"code", "message"} <= answer.json().keys()


def new_sandbox_of_e2b(client: httpx.Client) -> str:
    return client.post("/v2/sandboxes", json={"templateID": "base"}).json()["sandboxID"]


PROTOCOLS = [
    Protocol(
        "e2b",
        new_sandbox_of_e2b,
        "sandbox_id",
        is_error_of_e2b,
        lambda made: {"E2b-Sandbox-Id": made},
        (502,),
        "/v2/templates/x",
    ),
    Protocol(
        "daytona",
        lambda client: client.post("/api/sandbox", json={}).json()["id"],
        "sandbox_id",
        lambda answer: answer.json()["statusCode"] == answer.status_code and "message" in answer.json(),
        rest="/api/sandbox/x/nothing",
    ),
    Protocol(
        "jupyter",
        lambda client: client.post("/api/kernels").json()["id"],
        "kernel_id",
        lambda answer: {"message", "reason"} == answer.json().keys(),
    ),
    Protocol("sandboxfusion", lambda client: "", None, lambda answer: answer.json().keys() == {"detail"}),
]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=[each.name for each in PROTOCOLS])


def fill(protocol: Protocol, template: str, made: str, name: str) -> str:
    """Return a path with the id that was made, where that is about its inside, and `name` for all others."""
    if template.startswith(("/toolbox/", "/api/kernels/")):
        template = template.replace(f"{{{protocol.owner}}}", made)
    return re.sub(r"\{[^}]*\}", name, template)


@pytest.fixture
def client(shared_server: Server) -> Iterator[httpx.Client]:
    with client_with(shared_server, shared_server.token) as made:
        yield made


@protocols
def test_bad_input_is_refused_in_the_form_of_the_protocol(protocol: Protocol, client: httpx.Client) -> None:
    made = protocol.new(client)
    assert protocol.routes
    for method, template in protocol.routes:
        if protocol.ends(method, template):
            continue
        for number, (kind, body) in enumerate(BODIES):
            path = fill(protocol, template, made, NAMES[number % len(NAMES)])
            answer = client.request(
                method,
                f"{path}?{QUERIES[number % len(QUERIES)]}",
                content=body,
                headers={"Content-Type": kind, **protocol.headers(made)},
            )
            told = (method, path[:80], kind, body[:80], answer.status_code, answer.text[:300])
            assert answer.status_code < 500 or answer.status_code in protocol.statuses, told
            if answer.status_code >= 400:
                assert protocol.is_error(answer), told


@protocols
def test_methods_and_paths_that_are_not_there_are_refused(protocol: Protocol, client: httpx.Client) -> None:
    for method, path in {(method, fill(protocol, path, "x", "x")) for _, path in protocol.routes for method in METHODS}:
        if (method, path) in {(each, fill(protocol, other, "x", "x")) for each, other in protocol.routes}:
            continue
        answer = client.request(method, path)
        assert answer.status_code in (404, 405, 502), (method, path, answer.text)
        assert protocol.is_error(answer), (method, path, answer.text)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@protocols
def test_without_a_token_every_route_is_refused(protocol: Protocol, client: httpx.Client) -> None:
    made = protocol.new(client)
    with httpx.Client(base_url=client.base_url, headers=protocol.headers(made), timeout=PATIENCE) as stranger:
        for method, template in protocol.routes:
            path = fill(protocol, template, made, "x")
            for given in ({}, {"Authorization": "Bearer wrong"}):
                answer = stranger.request(method, path, headers=given)
                assert answer.status_code == 401, (method, path, answer.text)
                assert protocol.is_error(answer), (method, path, answer.text)


@protocols
def test_another_tenant_sees_nothing_on_any_route(protocol: Protocol, shared_server: Server) -> None:
    if protocol.owner is None:
        pytest.skip("nothing of it stays after a request")
    client = shared_server.client
    before = client.get("/v1/sessions").json()["sessions"]
    made = protocol.new(client)
    (session,) = {each["session_id"] for each in client.get("/v1/sessions").json()["sessions"]} - {
        each["session_id"] for each in before
    }
    shared_server.execute("secret = 'of the first tenant'", session)
    name = f"tenant-{protocol.name}"
    with client_with(shared_server, ingle_token(shared_server.home, "new", name).split()[0]) as other:
        for method, template in protocol.routes:
            path = re.sub(r"\{[^}]*\}", made, template)
            body = {"code": "secret", "templateID": "base", "command": "pwd", "process": {"cmd": "pwd"}, "path": "."}
            answer = other.request(method, path, json=body, headers=protocol.headers(made))
            told = (method, path, answer.status_code, answer.text)
            assert answer.status_code < 500 or answer.status_code in protocol.statuses, told
            assert "first tenant" not in answer.text, told
            if "{" in template or protocol.headers(made):
                if answer.status_code < 400:
                    assert made not in answer.text, told
            else:
                assert session not in answer.text, told
        for each in other.get("/v1/sessions").json()["sessions"]:
            other.delete(f"/v1/sessions/{each['session_id']}")
    assert shared_server.execute("secret", session)["result"] == {"text/plain": "'of the first tenant'"}
    ingle_token(shared_server.home, "revoke", name)


@contextmanager
def tokens_of_one_tenant(server: Server, tenant: str) -> Iterator[tuple[str, str]]:
    """Provide a token that may execute, and one that may only read."""
    names = {f"{tenant}-{scope}": scope for scope in ("execute", "read")}
    made = [ingle_token(server.home, "new", name, "--tenant", tenant, "--scope", names[name]) for name in names]
    yield made[0].split()[0], made[1].split()[0]
    for name in names:
        ingle_token(server.home, "revoke", name)


def cells_run(client: httpx.Client) -> dict[str, int]:
    """Return the number of cells of each session."""
    return {each["session_id"]: each["execution_count"] for each in client.get("/v1/sessions").json()["sessions"]}


@protocols
def test_a_token_that_may_only_read_changes_nothing_on_any_route(protocol: Protocol, shared_server: Server) -> None:
    with (
        tokens_of_one_tenant(shared_server, f"shared-{protocol.name}") as (full, reading),
        client_with(shared_server, full) as owner,
        client_with(shared_server, reading) as reader,
    ):
        made = protocol.new(owner)
        before = cells_run(owner)
        for method, template in protocol.routes:
            path = re.sub(r"\{[^}]*\}", made, template)
            body = {"code": "1", "language": "python", "templateID": "base", "command": "pwd", "path": "."}
            body |= {"process": {"cmd": "pwd"}, "cells": ["1"]}
            answer = reader.request(method, path, json=body, headers=protocol.headers(made))
            told = (method, path, answer.status_code, answer.text)
            assert method == "GET" or answer.status_code in (400, 403, 404, 422), told
            assert "envdAccessToken" not in answer.text, told
        assert cells_run(owner) == before
        for name in before:
            owner.delete(f"/v1/sessions/{name}")


SOCKETS = (
    "/api/kernels/{kernel}/channels",
    "/toolbox/{sandbox}/process/interpreter/execute",
    "/toolbox/{sandbox}/process/session/x/command/y/logs?follow=true",
    "/toolbox/{sandbox}/process/pty/create-connect?id=a",
    "/toolbox/{sandbox}/process/pty/a/connect",
)


def test_websockets_are_refused_without_a_token_that_may_use_them(shared_server: Server) -> None:
    stranger = ingle_token(shared_server.home, "new", "sockets").split()[0]
    with (
        tokens_of_one_tenant(shared_server, "shared") as (full, reader),
        client_with(shared_server, full) as owner,
    ):
        sandbox, kernel = (each.new(owner) for each in PROTOCOLS[1:3])
        for path in SOCKETS:
            url = shared_server.url.replace("http", "ws") + path.format(kernel=kernel, sandbox=sandbox)
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": f"Bearer {stranger}"}, 404),
                ({"Authorization": f"Bearer {reader}"}, 403),
            ):
                if status == 403 and path.startswith("/api/kernels"):
                    continue  # may watch; what it sends is checked message by message
                with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
                    pass
                assert refused.value.response.status_code == status, path
        for each in owner.get("/v1/sessions").json()["sessions"]:
            owner.delete(f"/v1/sessions/{each['session_id']}")
    ingle_token(shared_server.home, "revoke", "sockets")


def test_a_sandbox_of_daytona_whose_session_was_ended_is_gone(client: httpx.Client) -> None:
    made, other = (PROTOCOLS[1].new(client) for _ in range(2))
    client.delete(f"/v1/sessions/{made}").raise_for_status()
    listed = [each["id"] for each in client.get("/api/sandbox").json()["items"]]
    assert (made in listed, other in listed) == (False, True)
    assert client.delete(f"/api/sandbox/{made}").status_code == 404
    assert client.delete(f"/api/sandbox/{other}").status_code == 200


def test_bad_queries_of_a_terminal_are_refused_before_it_is_made(shared_server: Server) -> None:
    made = PROTOCOLS[1].new(shared_server.client)
    base = shared_server.url.replace("http", "ws") + f"/toolbox/{made}/process/pty/create-connect"
    headers = {"Authorization": f"Bearer {shared_server.token}"}
    for query in ("", "?id=", "?id=a&cols=x", "?id=a&rows=0", "?id=a&cols=99999", "?id=a&cwd=%00"):
        with pytest.raises(InvalidStatus) as refused, connect(base + query, additional_headers=headers):
            pass
        assert refused.value.response.status_code == 400, query
    protocols: Any = ["X-Daytona-Pty-Envs~!!!!"]
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(base + "?id=a", additional_headers=headers, subprotocols=protocols),
    ):
        pass
    assert refused.value.response.status_code == 400
    assert shared_server.client.get(f"/toolbox/{made}/process/pty").json() == {"sessions": []}
