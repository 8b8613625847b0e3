"""Take the pictures of the console in docs/pictures. Run `python tools/screenshots.py`, and look at what it took.

A folder as its argument takes all states there in light and dark, wide and narrow, to be looked at.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.server import Server
from support.tools import entry

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SIZES = {"wide": {"width": 1280, "height": 760}, "narrow": {"width": 390, "height": 760}}
SETTLE_SECONDS = 2.5

CELLS = [
    "def share(quarter):\n    return units[quarter] / sum(units.values())\n\n"
    "units = {'Q1': 310, 'Q2': 420}\nshare('Q4')",
    "import pandas as pd\nquarters = ['Q1', 'Q2', 'Q3', 'Q4']\n"
    "sales = pd.DataFrame({'quarter': quarters, 'units': [310, 420, 380, 510]})\nsales",
    "open('report.md', 'w').write('# Sales')\nprint(f'{sales.units.max() / sales.units.sum():.1%} of all units in Q4')",
    "import numpy as np\nrng = np.random.default_rng(7)\ndays = pd.date_range('2026-01-01', periods=365)\n"
    "orders = pd.DataFrame({'day': days, 'orders': rng.poisson(40, 365), 'value': rng.normal(52, 9, 365).cumsum()})",
]

PLOT = """import matplotlib.pyplot as plt
plt.figure(figsize=(5, 2.2))
plt.bar(sales.quarter, sales.units, color='#c2501d')
plt.title('Units sold')
plt.show()"""

TRAIN = """import time
for epoch in range(10_000):
    sum(range(2_000_000))
    print(f'\\repoch {epoch}', end='', flush=True)"""


def start(server: Server, name: str, code: str) -> None:
    server.client.post(f"/v1/sessions/{name}/execute", json={"code": code, "wait": 0.5})


def fill(server: Server) -> None:
    """Make sessions in the states that the pictures show."""
    server.client.headers["user-agent"] = "my-agent/1.0"
    for name in ("sales-report", "train-classifier", "migrate-db", "clean-up", "scratch"):
        server.make_session(name, durable=name == "train-classifier")
    for code in CELLS:
        server.execute(code, "sales-report")
    server.client.post("/v1/sessions/sales-report/notes", json={"text": "### Check\nThe chart goes into the report."})
    server.client.post("/v1/sessions/sales-report/checkpoints", json={"name": "before-cleanup"})
    server.execute(PLOT, "sales-report")
    server.client.post("/v1/sessions/sales-report/fork", json={"session_id": "what-if"})
    server.client.post("/v1/sessions/what-if/fork", json={"session_id": "what-if-prices"})
    start(server, "train-classifier", TRAIN)
    start(server, "migrate-db", "answer = input('Drop 3 unused columns from table orders? [y/N] ')")
    server.client.put("/v1/sessions/clean-up/tools/shop", json=entry(rules={"@destructive": "ask"}, policy="allow"))
    server.execute("import tools\ntools.shop.add(2, 3)", "clean-up")
    start(server, "clean-up", "tools.shop.delete(number=1042)")
    server.execute("1 / 0", "scratch")


def nothing(page: Page) -> None:
    """Show the page as it opens."""


def show_table(page: Page) -> None:
    page.get_by_role("button", name="orders", exact=True).click()
    page.get_by_role("region", name="Rows").get_by_role("button", name="value").click()


def show_terminal(page: Page) -> None:
    page.get_by_role("button", name="Open a terminal").click()
    page.locator(".xterm-rows").get_by_text("workspace").wait_for()
    page.keyboard.type("ls -l; git --version\n")


def show_loss(page: Page) -> None:
    page.locator("summary", has_text="More").click()
    page.get_by_role("button", name="Stop the session").click()


SESSION = "/sessions/sales-report"

STATES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "list": ("/", nothing),
    "session": (SESSION, nothing),
    "approval": ("/sessions/clean-up", nothing),
    "table": (SESSION + "/variables", show_table),
    "branches": (SESSION + "/branches", nothing),
    "terminal": (SESSION + "/shell", show_terminal),
    "stop": (SESSION, show_loss),
    "resources": ("/sessions/train-classifier/resources", nothing),
    "files": (SESSION + "/files", nothing),
    "network": (SESSION + "/network", nothing),
    "empty": ("/sessions/what-if", nothing),
    "server": ("/machine", nothing),
}

DOCUMENTED = {
    "list": ("list", "wide", "light"),
    "list-dark": ("list", "wide", "dark"),
    "phone": ("list", "narrow", "light"),
    "phone-dark": ("session", "narrow", "dark"),
    "session": ("session", "wide", "light"),
    "session-dark": ("branches", "wide", "dark"),
    "approval": ("approval", "wide", "light"),
    "table": ("table", "wide", "light"),
    "terminal": ("terminal", "wide", "dark"),
}
"""By the name of the picture: which state, size and colours it shows."""


def take(browser: Browser, server: Server, path: Path, state: str, size: str, scheme: str) -> None:
    where, act = STATES[state]
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(server.url + server.client.post("/v1/signin/codes", json={}).json()["path"])
    page.wait_for_url(server.url + "/")
    page.goto(server.url + where)
    page.wait_for_selector("main h1")
    act(page)
    time.sleep(SETTLE_SECONDS)
    page.screenshot(path=path)
    context.close()


def main() -> None:
    os.environ.setdefault("INGLE_ISOLATION", "none")
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        server = Server(Path(home))
        try:
            fill(server)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            if sys.argv[1:]:
                folder = Path(sys.argv[1])
                folder.mkdir(parents=True, exist_ok=True)
                for state in STATES:
                    for size in SIZES:
                        for scheme in ("light", "dark"):
                            take(browser, server, folder / f"{state}-{size}-{scheme}.png", state, size, scheme)
            else:
                for name, (state, size, scheme) in DOCUMENTED.items():
                    take(browser, server, PICTURES / f"console-{name}.png", state, size, scheme)
            browser.close()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
