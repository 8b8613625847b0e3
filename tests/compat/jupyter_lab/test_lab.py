"""JupyterLab in Chromium, with ingle as its gateway, used as a person does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway import TOKEN, gateway
from playwright.sync_api import Locator, Page, expect, sync_playwright
from serving import Server

pytestmark = [pytest.mark.req("compat.jupyter"), pytest.mark.timeout(300)]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_MS = 60_000
TAKEN_MS = 5_000
"""Time after which keys that did nothing are pressed again."""

PLOT = "import matplotlib.pyplot as plt\nplt.figure(figsize=(4, 2))\nplt.plot([1, 4, 9, 16])\nplt.show()"
LOOP = "import time\nprint('begun')\nwhile True:\n    time.sleep(0.1)"
ASK = "name = input('Who are you? ')\nf'Hello, {name}'"
LEFT = "'name' in dir()"


@pytest.fixture(scope="module")
def lab(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A notebook of four cells, open in JupyterLab."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed; install it: apt-get install chromium")
    home = tmp_path_factory.mktemp("lab")
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "source": code,
            "outputs": [],
            "execution_count": None,
        }
        for number, code in enumerate((PLOT, LOOP, ASK, LEFT))
    ]
    spec = {"name": "python3", "display_name": "Python 3 (ingle)", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    (home / "notebook.ipynb").write_text(json.dumps(notebook))
    with gateway(server, home, "jupyterlab") as url, sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.goto(f"{url}/lab/tree/notebook.ipynb?token={TOKEN}")
        yield page
        browser.close()


def wait_idle(page: Page) -> None:
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible()
    # The indicator is idle also while the kernel starts, and JupyterLab drops what is run before that.
    expect(page.get_by_text("Python 3 (ingle) | Idle")).to_be_visible()


def run(page: Page, number: int) -> Locator:
    """Run a cell. Return what it shows."""
    cell = page.locator(".jp-CodeCell").nth(number)
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    while prompt.inner_text() == before:
        # A page that still starts takes the focus away, and JupyterLab then sends no request for the keys.
        prompt.click()
        page.keyboard.press("Control+Enter")
        with contextlib.suppress(AssertionError):
            expect(prompt).not_to_have_text(before, timeout=TAKEN_MS)
    return cell.locator(".jp-OutputArea")


def test_a_person_runs_plots_interrupts_answers_and_restarts(lab: Page) -> None:
    wait_idle(lab)
    expect(run(lab, 0).locator("img")).to_be_visible()

    shown = run(lab, 1)
    expect(shown.get_by_text("begun")).to_be_visible()
    lab.keyboard.press("i")
    lab.keyboard.press("i")
    expect(shown.get_by_text("KeyboardInterrupt").first).to_be_visible()
    wait_idle(lab)

    shown = run(lab, 2)
    shown.locator(".jp-Stdin-input").fill("Ada")
    lab.keyboard.press("Enter")
    expect(shown.get_by_text("'Hello, Ada'")).to_be_visible()
    expect(run(lab, 3).get_by_text("True")).to_be_visible()
    if picture := os.environ.get("INGLE_LAB_PICTURE"):
        # A question about news of Jupyter covers a corner.
        lab.add_style_tag(content=".Toastify { display: none }")
        lab.screenshot(path=Path(picture))

    lab.keyboard.press("Escape")
    lab.keyboard.press("0")
    lab.keyboard.press("0")
    lab.locator(".jp-Dialog .jp-mod-accept").click()
    lab.locator(".jp-Dialog").wait_for(state="detached")
    wait_idle(lab)
    expect(run(lab, 3).get_by_text("False")).to_be_visible()
