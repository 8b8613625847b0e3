"""Steps of a person who uses the console."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

from support.server import Server


def open_session(page: Page, server: Server, name: str, view: str = "") -> None:
    page.goto(f"{server.url}/sessions/{name}{view and '/' + view}")
    page.get_by_role("heading", name=name, exact=True).wait_for()


def start(server: Server, name: str, code: str) -> None:
    """Run a cell that does not end soon."""
    server.client.post(f"/v1/sessions/{name}/execute", json={"code": code, "wait": 0}).raise_for_status()


def write(page: Page, code: str) -> None:
    """Type a cell and run it."""
    editor = page.get_by_role("textbox", name="Code of the next cell")
    editor.click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")


def cell(page: Page, number: int) -> Locator:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)
