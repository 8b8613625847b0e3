"""Take the pictures of the console in docs/pictures. Run `python tools/screenshots.py`, and look at what it took."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.server import Server

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDE, NARROW = {"width": 1280, "height": 760}, {"width": 390, "height": 760}
SETTLE_SECONDS = 2.5

CELLS = [
    "def share(quarter):\n    return units[quarter] / sum(units.values())\n\n"
    "units = {'Q1': 310, 'Q2': 420}\nshare('Q4')",
    "import pandas as pd\nquarters = ['Q1', 'Q2', 'Q3', 'Q4']\n"
    "sales = pd.DataFrame({'quarter': quarters, 'units': [310, 420, 380, 510]})\nsales",
    "open('report.md', 'w').write('# Sales')\nprint(f'{sales.units.max() / sales.units.sum():.1%} of all units in Q4')",
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


def fill(server: Server) -> None:
    """Make sessions in the states that the pictures show."""
    server.client.headers["user-agent"] = "my-agent/1.0"
    for name in ("sales-report", "train-classifier", "migrate-db", "scratch"):
        server.make_session(name, durable=name == "train-classifier")
    for code in CELLS:
        server.execute(code, "sales-report")
    server.client.post("/v1/sessions/sales-report/checkpoints", json={"name": "before-cleanup"})
    server.execute(PLOT, "sales-report")
    server.client.post("/v1/sessions/train-classifier/execute", json={"code": TRAIN, "wait": 0})
    ask = "answer = input('Drop 3 unused columns from table orders? [y/N] ')"
    server.client.post("/v1/sessions/migrate-db/execute", json={"code": ask, "wait": 0.5})
    server.execute("1 / 0", "scratch")


def take(browser: Browser, server: Server, name: str, path: str, scheme: str, size: dict[str, int]) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(server.url + server.client.post("/v1/signin/codes", json={}).json()["path"])
    page.wait_for_url(server.url + "/")
    page.goto(server.url + path)
    page.wait_for_selector("main h1")
    time.sleep(SETTLE_SECONDS)
    page.screenshot(path=PICTURES / f"console-{name}.png")
    context.close()


def main() -> None:
    os.environ.setdefault("INGLE_ISOLATION", "none")
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        server = Server(Path(home))
        try:
            fill(server)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            session = "/sessions/sales-report"
            take(browser, server, "list", "/", "light", WIDE)
            take(browser, server, "session", session, "light", WIDE)
            take(browser, server, "session-dark", session + "/branches", "dark", WIDE)
            take(browser, server, "phone", "/", "light", NARROW)
            browser.close()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
