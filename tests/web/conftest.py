"""A real browser on a real server. `make test-web` runs these tests; `make test` leaves them out."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import own_mark
from support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

if not all(map(importlib.util.find_spec, ("playwright", "axe_playwright_python"))):
    # Other tests can be collected without them. `make test-web` fails, because it finds no test.
    collect_ignore_glob = ["test_*.py"]

NAMES = ("chromium", "chromium-browser", "google-chrome")

WIDE = {"width": 1280, "height": 800}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.exit("no Chromium is installed; install it: apt-get install chromium", 4)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox of its own.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests. Each test has sessions with names of its own."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as home:
        running = Server(Path(home), env=own_mark())
        yield running
        running.stop()


class Watched:
    """What a page did that it must never do: errors in its console, and requests to other hosts."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.complaints: list[str] = []
        self._own = (server.url, server.url.replace("http", "ws"), "data:", "blob:")
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", lambda request: self._check(request.url))
        context.on("page", lambda page: page.on("websocket", lambda socket: self._check(socket.url)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def _check(self, url: str) -> None:
        if not url.startswith(self._own):
            self.complaints.append(f"a request to {url}")


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A browser that is signed in. Afterwards no page may have complained or asked another host."""
    opened = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
    opened.set_default_timeout(20_000)
    watched = Watched(opened, server)
    sign_in(opened, server)
    yield opened
    opened.close()
    assert watched.complaints == []


def sign_in(context: BrowserContext, server: Server) -> None:
    path = server.client.post("/v1/signin/codes", json={}).json()["path"]
    page = context.new_page()
    page.goto(server.url + path)
    page.wait_for_url(server.url + "/")
    page.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def name(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    """A session of the test's own."""
    made: str = server.make_session(f"s{abs(hash(request.node.name)) % 10**8}")["session_id"]
    yield made
    # A page that looks at a session while it is removed is answered that there is none.
    if "context" in request.fixturenames:
        for page in request.getfixturevalue("context").pages:
            page.close()
    server.client.delete(f"/v1/sessions/{made}")
