"""APIs of other servers: which are offered, who may use them, and the form of their errors."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from ingle import errors
from ingle.compat import TABLE, chosen
from ingle.compat import protocols as make_protocols
from ingle.http.app import operations
from ingle.http.translations import Translations
from ingle.service import Service
from support.server import Server, problem
from support.tokens import ingle_token


def e2b(server: Server, key: str | None = None) -> httpx.Client:
    """Return a client with the key of E2B's SDK."""
    return httpx.Client(base_url=server.url, headers={"X-API-Key": server.token if key is None else key}, timeout=30)


def test_the_setting_names_the_apis_to_offer() -> None:
    assert chosen(["all"]) == list(TABLE)
    assert chosen(["none"]) == []
    assert chosen(["e2b"]) == ["e2b"]
    with pytest.raises(errors.InvalidRequest, match="must be one of e2b"):
        chosen(["e3b"])


def test_no_route_of_ingle_belongs_to_another_api(service: Service) -> None:
    found = Translations(make_protocols(service).translations)
    for operation in operations(service):
        assert found.find({"type": "http", "path": operation.path}) is None, operation.path


@pytest.mark.req("compat.errors")
def test_errors_have_the_form_of_the_other_api_and_of_ingle_elsewhere(shared_server: Server) -> None:
    with e2b(shared_server) as client, e2b(shared_server, "wrong") as stranger:
        answer = stranger.get("/sandboxes/x")
        assert (answer.status_code, answer.json()["code"], list(answer.json())) == (401, 401, ["code", "message"])
        answer = client.get("/sandboxes/x")
        assert (answer.status_code, answer.json()) == (404, {"code": 404, "message": "sandbox 'x' was not found"})
        problem(stranger.get("/v1/sessions"), 401, "unauthorized")


def test_a_probe_that_names_no_sandbox_is_sent_to_healthz(shared_server: Server) -> None:
    for told in (shared_server.client.get("/health"), httpx.get(shared_server.url + "/health")):
        assert "GET /healthz tells whether this server works" in problem(told, 404, "not_found")["detail"]
    gone = shared_server.client.get("/health", headers={"E2b-Sandbox-Id": "gone"})
    assert (gone.status_code, gone.json()["sandboxId"]) == (502, "gone")


def test_an_unknown_name_is_told_at_the_start(home: Path) -> None:
    with pytest.raises(AssertionError, match="compat names 'e3b'; it must be one of"):
        Server(home, "--compat", "e3b")


@pytest.mark.req("compat.errors")
def test_an_api_that_is_not_offered_is_no_route(home: Path) -> None:
    server = Server(home, "--compat", "none")
    try:
        problem(server.client.get("/sandboxes"), 404, "not_found")
    finally:
        server.stop()


@pytest.mark.req("compat.errors")
def test_a_tenant_never_sees_anothers_sandboxes(home: Path) -> None:
    home.mkdir(mode=0o700)
    key = ingle_token(home, "new", "a")
    server = Server(home)
    try:
        with e2b(server) as owner, e2b(server, key) as other:
            made = owner.post("/v2/sandboxes", json={"templateID": "base"}).json()
            one = f"/sandboxes/{made['sandboxID']}"
            assert other.get("/v2/sandboxes").json() == []
            for method, path, body in (
                ("GET", one, None),
                ("DELETE", one, None),
                ("POST", f"{one}/timeout", {"timeout": 9}),
                ("POST", f"{one}/pause", {}),
                ("POST", f"{one}/fork", {}),
                ("POST", f"{one}/snapshots", {}),
                ("GET", f"{one}/metrics", None),
                ("POST", f"/v2{one}/connect", {}),
            ):
                answer = other.request(method, path, json=body)
                assert (answer.status_code, answer.json()["code"]) == (404, 404), path
            inside = {"E2b-Sandbox-Id": made["sandboxID"]}
            answer = other.post("/execute", json={"code": "1"}, headers=inside)
            assert answer.status_code == 502
            with httpx.Client(base_url=server.url, headers=inside) as nobody:
                assert nobody.post("/execute", json={"code": "1"}).status_code == 401
                wrong = {"E2B-Traffic-Access-Token": "x"}
                assert nobody.post("/execute", json={"code": "1"}, headers=wrong).status_code == 401
                right = {"E2B-Traffic-Access-Token": made["trafficAccessToken"]}
                assert '"text":"1"' in nobody.post("/execute", json={"code": "1"}, headers=right).text
                assert nobody.get("/sandboxes", headers=right).status_code == 401
    finally:
        server.stop()
