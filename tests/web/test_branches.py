"""Branches of a session in the page: copies, their originals, and trials."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from support.console import cell, open_session, start
from support.server import Server

pytestmark = pytest.mark.web


@pytest.fixture
def copies(server: Server, name: str, page: Page) -> Iterator[tuple[str, str]]:
    """A copy of the session with a name that tells nothing, and a copy of that."""
    server.execute("x = 1", name)
    one, two = f"one{name}", f"two{name}"
    server.client.post(f"/v1/sessions/{name}/fork", json={"session_id": one}).raise_for_status()
    server.client.post(f"/v1/sessions/{one}/fork", json={"session_id": two}).raise_for_status()
    yield one, two
    # A page that is open would ask for what is gone.
    page.close()
    for each in (two, one):
        server.client.delete(f"/v1/sessions/{each}")


def test_copies_and_originals_are_found_by_what_they_are(
    page: Page, server: Server, name: str, copies: tuple[str, str]
) -> None:
    one, two = copies
    open_session(page, server, name, "branches")
    points = page.get_by_role("list", name="States of the session").get_by_role("listitem")
    expect(points).to_contain_text(["Now", one, two])
    server.execute("x = 2", one)
    points.filter(has_text=one).get_by_role("button", name="Compare").click()
    differences = page.get_by_role("region", name="Differences")
    expect(differences.get_by_role("row", name=re.compile("changed x"))).to_be_visible()
    page.get_by_role("link", name=one, exact=True).click()
    expect(points).to_contain_text(["Now", two, f"{name} the original of this copy"])


def test_a_copy_is_adopted_after_its_changes_were_seen(
    page: Page, server: Server, name: str, copies: tuple[str, str]
) -> None:
    one, _ = copies
    server.execute("x = 2; open('made.txt', 'w').write('new')", one)
    server.execute("mine = 3", name)
    open_session(page, server, name, "branches")
    points = page.get_by_role("list", name="States of the session").get_by_role("listitem")
    points.filter(has_text=one).get_by_role("button", name="Adopt").click()
    changes = page.get_by_role("dialog", name=f"Adopt {one}?")
    expect(changes.get_by_role("row", name=re.compile("deleted mine"))).to_be_visible()
    expect(changes).to_contain_text(re.compile("Lost:.*created made.txt"))
    changes.get_by_role("button", name="Adopt").click()
    expect(cell(page, 3)).to_contain_text("x = 2")
    assert (
        server.execute("x, 'mine' in dir(), open('made.txt').read()", name)["result"]["text/plain"]
        == "(2, False, 'new')"
    )
    # The state before was kept.
    points.filter(has_text=f"before-{one}").get_by_role("button", name="Go back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("alert")).to_contain_text("rolled back to")
    assert server.execute("x, mine", name)["result"]["text/plain"] == "(1, 3)"


def test_a_copy_is_adopted_from_its_own_page(page: Page, server: Server, name: str, copies: tuple[str, str]) -> None:
    one, _ = copies
    server.execute("x = 7", one)
    open_session(page, server, one, "branches")
    page.get_by_role("button", name="Adopt this copy there").click()
    page.get_by_role("dialog").get_by_role("button", name="Adopt").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(cell(page, 2)).to_contain_text("x = 7")


def test_a_trial_is_looked_at_and_committed(page: Page, server: Server, name: str) -> None:
    server.execute("x = 1", name)
    open_session(page, server, name, "branches")
    trial = {"code": "x = 2; y = 3; open('made.txt', 'w').write('new')", "trial": True, "network": "allowed"}
    server.client.post(f"/v1/sessions/{name}/execute", json=trial).raise_for_status()
    shown = page.get_by_role("region", name="Trial trial-")
    expect(shown.get_by_role("row", name=re.compile("created y"))).to_be_visible()
    expect(shown).to_contain_text("made.txt")
    shown.get_by_role("button", name="Discard").click()
    expect(shown).to_have_count(0)
    server.client.post(f"/v1/sessions/{name}/execute", json=trial).raise_for_status()
    shown.get_by_role("button", name="Commit").click()
    expect(shown).to_have_count(0)
    expect(cell(page, 2)).to_contain_text("y = 3")
    assert server.execute("x + y", name)["result"]["text/plain"] == "5"


def test_answers_and_interrupts_name_who_gave_them(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    start(server, name, "input('Ready? ')\nimport time\nwhile True: time.sleep(0.01)")
    page.get_by_label("Ready?").fill("yes")
    page.get_by_role("button", name="Answer").click()
    for _ in range(2):
        expect(cell(page, 1)).to_contain_text("answered by console")
        server.client.post(f"/v1/sessions/{name}/interrupt", json={}).raise_for_status()
        expect(cell(page, 1).locator("header")).to_contain_text(re.compile("interrupted.*by python-httpx"))
        page.reload()
