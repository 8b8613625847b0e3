"""Browsers: the page to sign in, the cookie, and the requests for which it counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from ingle.callers import OWNER
from ingle.http.auth import sign_ins
from ingle.http.auth.principals import Principal
from ingle.http.auth.sign_ins import SignIns
from ingle.service import Service
from support.server import Server
from support.service import make_settings

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}

STRICT = r"default-src 'none'; style-src 'sha256-[^']+'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"


@pytest.fixture
def browser(quiet_server: Server) -> Iterator[httpx.Client]:
    """A client without a token, which asks for pages and keeps cookies."""
    with httpx.Client(base_url=quiet_server.url, headers=HTML) as client:
        yield client


def origin_of(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def sign_in(client: httpx.Client, token: str, **fields: str) -> httpx.Response:
    origin = {"origin": origin_of(client), "sec-fetch-site": "same-origin"}
    return client.post("/v1/signin", data={"token": token, **fields}, headers=origin)


def test_a_browser_gets_a_form_and_a_program_the_problem(browser: httpx.Client) -> None:
    for path in ("/", "/docs", "/v1/sessions"):
        page = browser.get(path)
        assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "<form method=post action=/v1/signin>" in page.text
        assert f'name=next value="{path}"' in page.text
        assert re.fullmatch(STRICT, page.headers["content-security-policy"])
        assert "<script" not in page.text
    for accept in ("application/json", "*/*"):
        refused = browser.get("/", headers={"accept": accept})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    posted = browser.post("/v1/sessions", json={})
    assert (posted.status_code, posted.json()["code"]) == (401, "unauthorized")


def test_a_path_in_the_form_cannot_break_out_of_it(browser: httpx.Client) -> None:
    page = browser.get('/"><script>alert(1)</script>')
    assert (page.status_code, "<script>" in page.text) == (401, False)


def test_a_wrong_token_is_told_and_a_right_one_leads_on(browser: httpx.Client, quiet_server: Server) -> None:
    wrong = sign_in(browser, "nonsense", next="/docs")
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    assert "This token is not valid here" in wrong.text
    assert 'name=next value="/docs"' in wrong.text
    right = sign_in(browser, f" {quiet_server.token}\n", next="/docs")
    assert (right.status_code, right.headers["location"]) == (303, "/docs")
    port = quiet_server.url.rpartition(":")[2]
    cookie = right.headers["set-cookie"]
    assert re.fullmatch(
        rf"ingle-{port}=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Strict; Max-Age={sign_ins.LIFETIME_SECONDS}", cookie
    )
    assert quiet_server.token not in cookie
    assert "/app/main.js" in browser.get("/").text
    docs = browser.get("/docs")
    assert docs.status_code == 200
    assert re.fullmatch(STRICT, docs.headers["content-security-policy"])
    assert [each["session_id"] for each in browser.get("/v1/sessions").json()["sessions"]] == ["main"]


@pytest.mark.parametrize(
    "target", ["https://elsewhere.test/", "//elsewhere.test/", "/\\elsewhere.test", "docs", "/a\nb"]
)
def test_signing_in_never_leads_elsewhere(browser: httpx.Client, quiet_server: Server, target: str) -> None:
    assert sign_in(browser, quiet_server.token, next=target).headers["location"] == "/"


def test_a_program_can_sign_in_and_out(browser: httpx.Client, quiet_server: Server) -> None:
    with httpx.Client(base_url=quiet_server.url) as client:
        refused = client.post("/v1/signin", json={"token": "nonsense"})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert client.post("/v1/signin", json={"tok": 1}).status_code == 422
        assert client.post("/v1/signin", content=b"x" * 20_000).status_code == 413
        assert client.post("/v1/signin", json={"token": quiet_server.token}).status_code == 204
        kept = dict(client.cookies)
        assert client.get("/v1/sessions").status_code == 200
        out = client.post("/v1/signout", headers={"origin": origin_of(client)})
        assert (out.status_code, "Max-Age=0" in out.headers["set-cookie"]) == (204, True)
        client.cookies.update(kept)
        assert client.get("/v1/sessions").status_code == 401


OTHER_PORT = {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"}
OTHER_SITE = {"origin": "http://elsewhere.test", "sec-fetch-site": "cross-site"}


@pytest.mark.parametrize("headers", [OTHER_PORT, OTHER_SITE, {}, {"sec-fetch-site": "same-site"}, {"origin": "null"}])
def test_a_cookie_changes_nothing_for_other_pages(
    browser: httpx.Client, quiet_server: Server, headers: dict[str, str]
) -> None:
    """Programs on other ports of this machine share its cookies, so the origin decides."""
    assert sign_in(browser, quiet_server.token).status_code == 303
    for method, path in (("POST", "/v1/sessions"), ("DELETE", "/v1/sessions/main"), ("POST", "/v1/signout")):
        refused = browser.request(method, path, headers={**headers, "accept": "*/*"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert browser.get("/v1/sessions").status_code == 200
    own = {"origin": origin_of(browser)}
    assert browser.post("/v1/sessions/main/interrupt", json={}, headers=own).status_code == 200


def test_other_pages_read_nothing_with_the_cookie_but_may_link_here(
    browser: httpx.Client, quiet_server: Server
) -> None:
    assert sign_in(browser, quiet_server.token).status_code == 303
    same_site = {"sec-fetch-site": "same-site"}
    assert browser.get("/v1/sessions", headers={**same_site, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert browser.get("/v1/sessions", headers=OTHER_PORT).status_code == 403
    assert browser.get("/docs", headers={**same_site, "sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("headers", [OTHER_PORT, OTHER_SITE])
def test_other_pages_cannot_sign_a_browser_in(
    browser: httpx.Client, quiet_server: Server, headers: dict[str, str]
) -> None:
    refused = browser.post("/v1/signin", data={"token": quiet_server.token}, headers=headers)
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)


def test_a_websocket_takes_the_cookie_of_its_own_page_only(browser: httpx.Client, quiet_server: Server) -> None:
    assert sign_in(browser, quiet_server.token).status_code == 303
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    url = quiet_server.url.replace("http", "ws") + "/v1/sessions/main/events"

    async def watch(origin: str | None) -> int:
        try:
            async with connect(url, additional_headers={"cookie": cookie}, origin=origin, proxy=None):  # type: ignore[arg-type]
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(watch(origin_of(browser))) == 101
    assert asyncio.run(watch("http://127.0.0.1:1")) == 403
    assert asyncio.run(watch(None)) == 403


def test_over_tls_the_cookie_is_secure(browser: httpx.Client, quiet_server: Server) -> None:
    host = origin_of(browser).removeprefix("http://")
    answer = browser.post("/v1/signin", data={"token": quiet_server.token}, headers={"origin": f"https://{host}"})
    assert answer.headers["set-cookie"].endswith("; Secure")


def test_sign_ins_expire_are_bounded_and_end_with_their_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_ins, "MAX_SIGN_INS", 2)
    now = [0.0]
    service = Service(make_settings(), None)  # type: ignore[arg-type]
    principal = Principal(service, OWNER, b"")
    table = SignIns(lambda: now[0])
    first, second, third = (table.add(principal) for _ in range(3))
    assert [table.find([value]) for value in (first, second, third)] == [None, principal, principal]
    assert table.find(["nonsense", third]) is principal
    now[0] = sign_ins.LIFETIME_SECONDS
    assert table.find([second, third]) is None
    revoked = table.add(principal)
    monkeypatch.setattr(OWNER, "revoked", True)
    assert table.find([revoked]) is None


def test_the_reference_tells_meaning_default_and_what_is_required(quiet_server: Server) -> None:
    page = quiet_server.client.get("/docs").text
    section = page.partition("<h2>POST /v1/sessions/{session_id}/execute</h2>")[2].partition("<h2>")[0]
    assert "<tr><td><code>code</code><td>body<td>string<td>required<td>Source of the cell." in section
    assert "<tr><td><code>queue</code><td>body<td>boolean<td>false<td>Wait for the turn of this cell" in section
    document = quiet_server.client.get("/openapi.json").json()
    bodies = {
        media["schema"]["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for operation in methods.values()
        for media in operation.get("requestBody", {}).get("content", {}).values()
        if "schema" in media
    }
    queries = [
        (operation["operationId"], each["name"])
        for methods in document["paths"].values()
        for operation in methods.values()
        for each in operation["parameters"]
        if each["in"] == "query" and not each["schema"].get("description")
    ]
    fields = [
        (name, field)
        for name in sorted(bodies)
        for field, schema in document["components"]["schemas"][name]["properties"].items()
        if not schema.get("description")
    ]
    assert (queries, fields) == ([], [])
