"""The console's own routes: one-time codes, read-only links, the list of sessions, its files, and tokens."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ingle.callers import OWNER
from ingle.http.auth import codes
from ingle.http.auth.codes import Codes
from ingle.http.auth.principals import Principal
from ingle.service import Service
from support.server import PATIENCE, Server, problem
from support.service import make_settings
from support.waiting import wait_until

HTML = {"accept": "text/html"}


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A client without a token, which asks for pages and keeps cookies."""
    with httpx.Client(base_url=server.url, headers=HTML, timeout=PATIENCE) as client:
        yield client


def new_code(server: Server) -> str:
    made = server.client.post("/v1/signin/codes", json={})
    assert (made.status_code, made.json()["expires_in"]) == (201, codes.LIFETIME_SECONDS)
    path: str = made.json()["path"]
    return path


def share(server: Server, session_id: str = "main", **options: Any) -> tuple[str, str]:
    """The path and the id of a new link."""
    made = server.client.post("/v1/shares", json={"session_id": session_id, **options})
    assert made.status_code == 201, made.text
    return made.json()["path"], made.json()["share"]["share_id"]


@asynccontextmanager
async def socket(server: Server, path: str, **headers: str) -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http", "ws") + path
    async with connect(url, additional_headers=headers, proxy=None, max_size=None) as opened:
        yield opened


async def closing(opened: ClientConnection) -> str:
    """Read until the server closes. Its reason."""
    try:
        while True:
            await asyncio.wait_for(opened.recv(), PATIENCE)
    except ConnectionClosed as closed:
        return str(closed)


def bearer(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {server.token}"}


# One-time codes


@pytest.mark.req("web.signin")
def test_a_one_time_link_signs_a_browser_in_once(server: Server, browser: httpx.Client) -> None:
    server.make_session()
    path = new_code(server)
    page = browser.get(path + "&session=main")
    assert (page.status_code, 'content="0;url=/sessions/main"' in page.text) == (200, True)
    cookie = page.headers["set-cookie"]
    assert re.search(r"; Path=/; HttpOnly; SameSite=Strict; Max-Age=\d+$", cookie)
    assert path.partition("=")[2] not in cookie
    assert [each["session_id"] for each in browser.get("/v1/sessions").json()["sessions"]] == ["main"]
    with httpx.Client(base_url=server.url, headers=HTML) as other:
        again = other.get(path)
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)
        assert "was used already or has expired" in again.text
        assert other.get("/v1/sessions").status_code == 401


@pytest.mark.req("web.signin")
def test_another_site_cannot_sign_a_browser_in_with_a_code(server: Server, browser: httpx.Client) -> None:
    path = new_code(server)
    for site in ("cross-site", "same-site"):
        refused = browser.get(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"})
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    assert "set-cookie" in browser.get(path, headers={"sec-fetch-site": "none"}).headers


def test_a_code_cannot_lead_to_another_site(server: Server, browser: httpx.Client) -> None:
    page = browser.get(new_code(server) + '&session=//elsewhere.test/"><script>')
    assert 'content="0;url=/sessions/%2F%2Felsewhere.test%2F%22%3E%3Cscript%3E"' in page.text


def test_codes_expire_are_bounded_and_end_with_their_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "MAX_CODES", 2)
    now = [0.0]
    principal = Principal(Service(make_settings(), None), OWNER, b"")  # type: ignore[arg-type]
    table = Codes(lambda: now[0])
    first, second, third = (table.make(principal) for _ in range(3))
    assert [table.take(code) for code in (first, second, second)] == [None, principal, None]
    now[0] = codes.LIFETIME_SECONDS
    assert table.take(third) is None
    revoked = table.make(principal)
    monkeypatch.setattr(OWNER, "revoked", True)
    assert table.take(revoked) is None


def test_a_code_is_made_for_callers_only(server: Server, browser: httpx.Client) -> None:
    problem(browser.post("/v1/signin/codes", json={}), 401, "unauthorized")


# Read-only links


@pytest.mark.req("web.signin")
def test_a_link_reads_one_session_and_cannot_act(server: Server, browser: httpx.Client) -> None:
    server.make_session()
    server.make_session("other")
    server.execute("x = 1; print('seen')")
    link, _ = share(server)
    assert browser.get(link).status_code == 200
    assert f'data-base="{link}"' in browser.get(link).text
    me = browser.get(link + "/v1/me").json()
    assert (me["read_only"], me["session_id"], me["scopes"]) == (True, "main", ["read"])
    assert browser.get(link + "/v1/sessions/main/cells/1").json()["stdout"] == "seen\n"
    assert browser.get(link + "/v1/sessions/main/variables").json()["variables"][0]["name"] == "x"
    main = link + "/v1/sessions/main"
    refused = [
        ("POST", main + "/execute", {"code": "1"}),
        ("POST", main + "/input", {}),
        ("POST", main + "/interrupt", {}),
        ("POST", main + "/fork", {}),
        ("POST", main + "/rollback", {}),
        ("POST", main + "/save", {"name": "s"}),
        ("POST", main + "/clear", {}),
        ("DELETE", main, None),
        ("PUT", main + "/files/a", None),
        ("GET", main + "/files", None),
        ("GET", main + "/archive", None),
        ("GET", main + "/variables/x", None),
        ("PUT", main + "/variables/x/value", None),
        ("GET", link + "/v1/sessions", None),
        ("GET", link + "/v1/sessions/other", None),
        ("GET", link + "/v1/sessions/main%2F..%2Fother", None),
        ("GET", link + "/v1/snapshots", None),
        ("GET", link + "/v1/shell", None),
        ("POST", link + "/v1/shell", {"command": "true"}),
        ("POST", link + "/v1/shares", {"session_id": "main"}),
        ("POST", link + "/v1/signin/codes", {}),
        ("POST", link + "/mcp", {}),
        ("GET", link + "/metrics", None),
        ("GET", link + "/v1/grants", None),
        ("GET", link + link + "/v1/me", None),
    ]
    for method, path, body in refused:
        answer = browser.request(method, path, json=body, headers={"accept": "*/*"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert server.client.get("/v1/sessions/main").json()["execution_count"] == 1


@pytest.mark.req("web.signin")
async def test_a_link_follows_events_and_its_messages_are_refused(server: Server) -> None:
    server.make_session()
    server.execute("1 + 1")
    link, _ = share(server)
    async with socket(server, link + "/v1/sessions/main/events?from=1") as opened:
        seen = json.loads(await opened.recv())
        assert (seen["session_id"], seen["seq"]) == ("main", 1)
        for message in ({"op": "execute", "code": "1"}, {"op": "input"}, {"op": "interrupt"}):
            await opened.send(json.dumps({"id": "a", **message}))
            while (reply := json.loads(await opened.recv()))["type"] != "reply":
                pass
            assert reply["problem"]["code"] == "forbidden"
    for path in ("/v1/overview", "/v1/sessions/other/events"):
        with pytest.raises(InvalidStatus):
            async with socket(server, link + path):
                pass
    assert server.client.get("/v1/sessions/main").json()["execution_count"] == 1


@pytest.mark.req("web.signin")
async def test_a_revoked_link_ends_at_once(server: Server, browser: httpx.Client) -> None:
    server.make_session()
    link, share_id = share(server)
    listed = server.client.get("/v1/shares").json()["shares"]
    assert [(each["share_id"], each["session_id"], each["made_by"]) for each in listed] == [(share_id, "main", "owner")]
    assert link.rpartition("/")[2] not in json.dumps(listed)
    async with socket(server, link + "/v1/sessions/main/events") as opened:
        assert server.client.delete(f"/v1/shares/{share_id}").status_code == 204
        assert "revoked" in await closing(opened)
    assert "This link has ended" in browser.get(link).text
    problem(browser.get(link + "/v1/me", headers={"accept": "*/*"}), 404, "not_found")
    assert server.client.get("/v1/shares").json() == {"shares": []}
    problem(server.client.delete(f"/v1/shares/{share_id}"), 404, "not_found")


def test_a_link_ends_at_its_time_and_with_its_session(server: Server, browser: httpx.Client) -> None:
    server.make_session()
    short, _ = share(server, expires_in=0.2)
    link, _ = share(server)
    assert wait_until(lambda: browser.get(short).status_code == 404, 10)
    assert browser.get(link).status_code == 200
    server.client.delete("/v1/sessions/main")
    server.make_session()
    assert "This link has ended" in browser.get(link).text


def test_a_link_needs_the_right_to_use_the_session(server: Server) -> None:
    server.make_session()
    made = server.client.post("/v1/tokens", json={"name": "reader", "tenant": "t", "scope": "read"})
    assert made.status_code == 201
    token = made.json()["token"]
    reader = httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE)
    with reader:
        problem(reader.post("/v1/shares", json={"session_id": "main"}), 403, "forbidden")
    assert server.client.delete("/v1/tokens/reader").status_code == 204
    problem(server.client.post("/v1/shares", json={"session_id": "nobody"}), 404, "session_not_found")
    problem(server.client.post("/v1/shares", json={"session_id": "main", "expires_in": 1e9}), 422, "invalid_request")


def test_links_end_with_the_token_that_made_them(server: Server, browser: httpx.Client) -> None:
    token = server.client.post("/v1/tokens", json={"name": "agent"}).json()["token"]
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE) as agent:
        assert agent.post("/v1/sessions", json={"session_id": "mine"}).status_code == 201
        link = agent.post("/v1/shares", json={"session_id": "mine"}).json()["path"]
        assert browser.get(link).status_code == 200
        assert server.client.get("/v1/shares").json() == {"shares": []}
        assert agent.delete("/v1/sessions/mine").status_code == 200
        assert agent.post("/v1/sessions", json={"session_id": "mine"}).status_code == 201
        second = agent.post("/v1/shares", json={"session_id": "mine"}).json()["path"]
        agent.delete("/v1/sessions/mine")
    assert server.client.delete("/v1/tokens/agent").status_code == 204
    assert wait_until(lambda: browser.get(second).status_code == 404, 10)


# The list of sessions


@pytest.mark.req("web.live")
async def test_the_overview_tells_all_sessions_and_then_what_changes(server: Server) -> None:
    server.make_session("a")
    async with socket(server, "/v1/overview", **bearer(server)) as opened:
        rows: dict[str, Any] = {}

        async def until(name: str, **wanted: object) -> None:
            while any(rows.get(name, {}).get(key) != value for key, value in wanted.items()):
                message = json.loads(await asyncio.wait_for(opened.recv(), 20))
                for row in message["sessions"]:
                    rows[row["session_id"]] = row
                for gone in message.get("gone", []):
                    rows[gone] = {"state": "gone"}

        first = json.loads(await opened.recv())
        assert (first["type"], [each["session_id"] for each in first["sessions"]]) == ("all", ["a"])
        assert first["machine"]["memory"] > first["machine"]["memory_used"] > 0
        server.make_session("b")
        await until("b", state="idle", cells=0)
        server.execute("import os\nname = input('Who? ')", "b", wait=0.2)
        await until("b", state="waiting_for_input", prompt="Who? ", code="name = input('Who? ')", cells=1)
        server.client.post("/v1/sessions/b/input", json={"text": "me"})
        await until("b", state="idle", status="ok")
        tried = server.execute("1", "b", trial=True, network="allowed")["trial"]["name"]
        await until("b", state="idle", trial=tried)
        server.client.post(f"/v1/sessions/b/trials/{tried}/discard", json={})
        await until("b", state="idle", trial=None)
        server.client.delete("/v1/sessions/b")
        await until("b", state="gone")


async def test_the_overview_shows_the_sessions_of_its_tenant_only(server: Server) -> None:
    server.make_session("secret")
    token = server.client.post("/v1/tokens", json={"name": "guest"}).json()["token"]
    async with socket(server, "/v1/overview", authorization=f"Bearer {token}") as opened:
        first = json.loads(await opened.recv())
        assert (first["sessions"], first["machine"]) == ([], None)
        assert server.client.delete("/v1/tokens/guest").status_code == 204
        assert "revoked" in await closing(opened)


# Pages and files


def test_the_page_has_a_strict_policy_and_cannot_be_framed(server: Server) -> None:
    for path in ("/", "/machine", "/sessions/main", "/sessions/main/files"):
        page = server.client.get(path)
        policy = page.headers["content-security-policy"]
        assert re.fullmatch(
            r"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-[\w-]{22}'; img-src 'self' data: blob:; "
            r"connect-src 'self'; frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
            r"require-trusted-types-for 'script'; trusted-types 'none'",
            policy,
        )
        assert page.headers["x-frame-options"] == "DENY"
        assert not re.search(r"https?://|<style|style=|\bon\w+=", page.text)


def test_files_of_the_console_can_be_kept_by_browsers(server: Server) -> None:
    page = server.client.get("/").text
    found = re.findall(r'(?:href|src)="(/console/[^"]+)"', page)
    assert len(found) > 20
    for path in found:
        answer = server.client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
    version = found[0].split("/")[2]
    frame = server.client.get(f"/console/{version}/frame.html")
    assert frame.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none';")
    for path in (f"/console/{version}/../pages.py", f"/console/{version}/%2e%2e/pages.py", "/console/old/style.css"):
        problem(server.client.get(path), 404, "not_found")


def test_the_caller_learns_who_it_is(server: Server) -> None:
    me = server.client.get("/v1/me").json()
    assert (me["name"], me["tenant"], me["scopes"]) == ("owner", "", ["admin", "approve", "execute", "read"])
    assert (me["read_only"], me["session_id"], me["signs_out"]) == (False, None, False)


# Tokens


def test_the_owner_makes_and_revokes_tokens(server: Server) -> None:
    made = server.client.post("/v1/tokens", json={"name": "ci", "scope": "execute"}).json()
    assert (made["about"]["tenant"], made["about"]["scope"]) == ("ci", "execute")
    assert time.time() - made["about"]["created_at"] < PATIENCE
    listed = server.client.get("/v1/tokens")
    assert [each["name"] for each in listed.json()["tokens"]] == ["ci"]
    assert made["token"] not in listed.text
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {made['token']}"}) as other:
        assert other.get("/v1/sessions").json() == {"sessions": []}
        for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/ci")):
            body = {"name": "more"} if method == "POST" else None
            problem(other.request(method, path, json=body), 403, "forbidden")
        problem(other.post("/v1/doctor", json={}), 403, "forbidden")
    problem(server.client.post("/v1/tokens", json={"name": "ci"}), 409, "conflict")
    assert server.client.delete("/v1/tokens/ci").status_code == 204
    problem(server.client.delete("/v1/tokens/ci"), 404, "not_found")
