"""Calls of tools that wait for a person, answered in the page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from support.console import cell, open_session, start
from support.server import Server
from support.tools import entry

pytestmark = pytest.mark.web


@pytest.fixture
def asks(server: Server, name: str) -> str:
    """A session whose cell may not delete without a person."""
    tools = entry(rules={"@destructive": "ask"}, policy="allow")
    server.client.put(f"/v1/sessions/{name}/tools/box", json=tools).raise_for_status()
    server.execute("import tools\ntools.box.add(1, 2)", name)
    return name


@pytest.mark.req("web.live")
def test_a_call_is_allowed_where_the_cell_asks(page: Page, server: Server, asks: str) -> None:
    open_session(page, server, asks)
    start(server, asks, "print(tools.box.delete(number=7))")
    asked = cell(page, 2).get_by_role("group", name="Approval of delete")
    expect(asked).to_contain_text("box.delete(number=7)")
    expect(asked).to_contain_text("may destroy")
    expect(page).to_have_title(re.compile(r"^\(\d+\) waiting for you"))
    page.reload()
    asked.get_by_role("button", name="Allow").click()
    expect(asked).to_have_count(0)
    expect(cell(page, 2)).to_contain_text('{"number": 7}')
    expect(cell(page, 2).get_by_title("A tool that the cell called")).to_contain_text("done")


@pytest.mark.req("web.live")
def test_a_call_is_refused_in_the_list(page: Page, server: Server, asks: str) -> None:
    page.goto(server.url + "/")
    start(server, asks, "tools.box.delete(number=1)")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=asks, exact=True))
    expect(row).to_contain_text("waiting for you")
    expect(page.locator("tbody tr").first).to_contain_text("box.delete(number=1)")
    row.get_by_role("button", name="Refuse").click()
    expect(row).to_contain_text("failed")
    assert server.client.get(f"/v1/sessions/{asks}/cells/2").json()["error"]["value"] == "box.delete was not approved"


def test_several_calls_wait_at_once_also_after_their_cell(page: Page, server: Server, asks: str) -> None:
    open_session(page, server, asks)
    server.execute(
        "import threading\n"
        "threads = [threading.Thread(target=tools.box.delete, args=(n,), daemon=True) for n in range(2)]\n"
        "for each in threads: each.start()",
        asks,
    )
    waiting = page.get_by_role("group", name="Approval of delete")
    expect(waiting).to_have_count(2)
    waiting.filter(has_text="number=1").get_by_role("button", name="Refuse").click()
    expect(waiting).to_have_count(1)
    expect(waiting).to_contain_text("number=0")


def test_a_token_that_may_not_approve_sees_no_button(page: Page, server: Server, asks: str) -> None:
    def lessen(route: Route) -> None:
        about = route.fetch().json()
        about["scopes"].remove("approve")
        route.fulfill(json=about)

    page.route("**/v1/me", lessen)
    start(server, asks, "tools.box.delete(number=3)")
    open_session(page, server, asks)
    expect(cell(page, 2)).to_contain_text("needs the scope approve")
    expect(page.get_by_role("button", name="Allow")).to_have_count(0)
