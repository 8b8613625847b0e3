"""The transcript of long and mixed sessions: the order of outputs, notes, and thousands of cells."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from support.console import cell, open_session, start, write
from support.server import Server

pytestmark = pytest.mark.web

MIXED = """import sys
print('first')
print('second', file=sys.stderr)
display('third')
print('fourth')
shown = display('old', display_id=True)
shown.update('fifth')
print('sixth', file=sys.stderr)
'seventh'"""

COUNT, FAILED = 1_000, 234

MOST_SHOWN = 150
"""Cells that the page holds at the same time."""

TOLD = ["first", "second", "'third'", "fourth", "'fifth'", "sixth"]


@pytest.mark.req("web.live")
def test_outputs_stand_in_the_order_in_which_they_came(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    write(page, MIXED)
    outputs = cell(page, 1).locator(".part")
    expect(outputs).to_have_text([*TOLD, "'seventh'"])
    page.reload()
    expect(outputs).to_have_text([*TOLD, "'seventh'"])


@pytest.mark.req("web.live")
def test_a_cell_that_still_runs_is_the_same_after_a_reload(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    start(server, name, MIXED + "\nprint(input('Go on? '))")
    expect(cell(page, 1)).to_contain_text("Go on?")
    page.reload()
    outputs = cell(page, 1).locator(".part")
    expect(outputs).to_contain_text(TOLD)
    page.get_by_label("Go on?").fill("yes, go on")
    page.get_by_role("button", name="Answer").click()
    expect(outputs.last).to_contain_text("yes, go on")
    expect(outputs).to_contain_text(TOLD)


def test_notes_and_later_output_stand_between_the_cells(page: Page, server: Server, name: str) -> None:
    def note(text: str) -> None:
        server.client.post(f"/v1/sessions/{name}/notes", json={"text": text}).raise_for_status()

    open_session(page, server, name)
    note("# Before all")
    later = "import threading\ngo = threading.Event()\n"
    server.execute(later + "threading.Thread(target=lambda: (go.wait(), print('from a thread'))).start()", name)
    note("## Between *them*")
    server.execute("go.set()\nimport time\nwhile threading.active_count() > 1: time.sleep(0.01)", name)
    heading = re.compile("Before all.*go = threading.*Between them.*go.set.*from a thread", re.DOTALL)
    transcript = page.get_by_role("feed")
    expect(transcript).to_contain_text(heading)
    page.reload()
    expect(transcript).to_contain_text(heading)
    expect(transcript.get_by_role("heading", name="Between them")).to_be_visible()


@pytest.mark.req("web.live")
def test_a_rollback_is_told_where_it_happened(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    server.execute("x = 1", name)
    server.client.post(f"/v1/sessions/{name}/checkpoints", json={"name": "base"}).raise_for_status()
    server.execute("x = 2", name)
    done = server.client.post(f"/v1/sessions/{name}/rollback", json={"name": "base"}).raise_for_status().json()
    # Before anything else has run, too.
    notice = page.get_by_text(done["notice"], exact=True)
    expect(notice).to_be_visible()
    assert server.execute("x", name)["notices"] == [done["notice"]]
    order = re.compile("x = 2.*rolled back to checkpoint 'base' of cell 1.*x", re.DOTALL)
    for _ in range(2):
        expect(cell(page, 3)).to_contain_text("1")
        expect(page.get_by_role("feed")).to_contain_text(order)
        expect(notice).to_have_count(1)
        expect(cell(page, 3)).not_to_contain_text("rolled back")
        page.reload()


@pytest.mark.req("web.flood")
def test_many_cells_are_gone_through(page: Page, server: Server, name: str) -> None:
    """They are run in one go, as a busy agent's: the page opens at the end and reads only what is looked at."""
    with server.make_client() as client:
        for number in range(COUNT):
            code = "1 / 0" if number == FAILED - 1 else str(number)
            client.post(f"/v1/sessions/{name}/execute", json={"code": code}).raise_for_status()
    open_session(page, server, name)
    expect(cell(page, COUNT)).to_contain_text(str(COUNT - 1))
    assert page.get_by_role("article").count() <= MOST_SHOWN
    page.get_by_role("button", name="Previous error").click()
    expect(cell(page, FAILED)).to_contain_text("ZeroDivisionError")
    expect(cell(page, FAILED)).to_be_in_viewport()
    page.get_by_label("Cell", exact=True).fill("1")
    expect(cell(page, 1)).to_be_in_viewport()
    transcript = page.get_by_role("feed")
    for number in range(60, 601, 60):
        expect(cell(page, number)).to_be_attached()
        transcript.evaluate("box => { box.scrollTop = box.scrollHeight }")
    assert page.get_by_role("article").count() <= MOST_SHOWN
    page.get_by_role("button", name=re.compile("Newest")).click()
    expect(cell(page, COUNT)).to_be_in_viewport()
    write(page, "print('one more')")
    expect(cell(page, COUNT + 1)).to_contain_text("one more")
    # A reader who goes away from the end at once: the scroll that was under way does not hold on to it.
    page.reload()
    expect(cell(page, COUNT + 1)).to_be_in_viewport()
    transcript.evaluate(
        """box => {
            const slider = document.querySelector("input[type=range]");
            slider.value = "1";
            slider.dispatchEvent(new Event("change", { bubbles: true }));
            box.dispatchEvent(new Event("scroll"));
        }"""
    )
    expect(cell(page, 1)).to_be_in_viewport()
    transcript.evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(cell(page, 120)).to_be_attached()
    page.wait_for_load_state("networkidle")
    expect(cell(page, 181)).not_to_be_attached()
