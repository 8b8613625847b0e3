"""What the console costs: first paint, a flood of output, thousands of cells, and execute while many pages look on.

A page of the load is what a page costs the server: a WebSocket with the list and one with the events of a session.
Run `python bench/console.py`; it needs Chromium. `--quick` is a look.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ingle.support import processes
from support.server import Server

LONG_TASKS = """window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration)))
  .observe({ type: "longtask", buffered: true });"""
"""Notes each time above 50 ms in which the page could answer nothing."""

STREAM = "import time\nwhile True:\n    print('a line of output')\n    time.sleep(0.1)"


async def look(server: Server, session: str) -> None:
    """Be one page: follow the list and one session."""
    base = server.url.replace("http", "ws")
    headers = {"authorization": f"Bearer {server.token}"}

    async def read(path: str) -> None:
        async with connect(base + path, additional_headers=headers, proxy=None, max_size=None) as socket:
            async for _ in socket:
                pass

    await asyncio.gather(read("/v1/overview"), read(f"/v1/sessions/{session}/events"))


async def latency(server: Server, count: int) -> float:
    """Return the median time of an execute, in milliseconds."""
    times = []
    headers = {"authorization": f"Bearer {server.token}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        for _ in range(count):
            began = time.perf_counter()
            (await client.post("/v1/sessions/measured/execute", json={"code": "1"})).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.005)
    return statistics.median(times)


async def load(server: Server, pages: int, sessions: int, count: int) -> dict[str, float]:
    """Compare execute with and without pages, while sessions stream in both cases."""
    server.make_session("measured")
    names = [f"stream-{number}" for number in range(sessions)]
    for name in names:
        server.make_session(name)
        server.client.post(f"/v1/sessions/{name}/execute", json={"code": STREAM, "wait": 0}).raise_for_status()
    await latency(server, count // 4)
    rounds = []
    for _ in range(3):
        without = await latency(server, count)
        looking = [asyncio.create_task(look(server, names[number % sessions])) for number in range(pages)]
        await asyncio.sleep(3)
        rounds.append((without, await latency(server, count)))
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        await asyncio.sleep(1)
    without, with_pages = min(rounds, key=sum)
    for name in names:
        server.client.delete(f"/v1/sessions/{name}")
    return {
        "pages": pages,
        "streaming_sessions": sessions,
        "execute_ms_without": round(without, 2),
        "execute_ms_with": round(with_pages, 2),
        "growth_percent": round((with_pages / without - 1) * 100, 1),
    }


def in_browser(server: Server, flood_bytes: int) -> dict[str, float]:
    """Measure first paint from a cold cache, and the memory of a tab after a flood of output."""
    server.make_session("flood")
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        paints = []
        for _ in range(5):
            context = browser.new_context()
            page = context.new_page()
            page.goto(server.url + server.client.post("/v1/signin/codes", json={}).json()["path"])
            page.wait_for_selector("table.sessions")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            context.close()
        found["first_paint_ms"] = round(statistics.median(paints), 1)
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + server.client.post("/v1/signin/codes", json={}).json()["path"] + "&session=flood")
        page.wait_for_selector(".cm-content")
        code = f"line = 'x' * 99\nfor _ in range({flood_bytes} // 100): print(line)\nprint('the', 'end')"
        began = time.perf_counter()
        server.client.post("/v1/sessions/flood/execute", json={"code": code, "wait": 0}).raise_for_status()
        page.locator("#cell-1").get_by_text("the end").wait_for(timeout=600_000)
        found["flood_bytes"] = flood_bytes
        found["flood_seconds"] = round(time.perf_counter() - began, 1)
        devtools = context.new_cdp_session(page)
        devtools.send("Performance.enable")
        metrics = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
        found["tab_heap_bytes"] = int(metrics["JSHeapUsedSize"])
        found["tab_resident_bytes"] = max(renderers())
        browser.close()
    return found


def many_cells(server: Server, count: int) -> dict[str, float]:
    """Run many cells, open their session, and go through it. Measure the longest time that the page did not answer."""
    server.make_session("many")
    with server.make_client() as client:
        for number in range(count):
            client.post("/v1/sessions/many/execute", json={"code": f"print({number})"}).raise_for_status()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(LONG_TASKS)
        busy = Busy(page)
        path = server.client.post("/v1/signin/codes", json={}).json()["path"]
        began = time.perf_counter()
        page.goto(f"{server.url}{path}&session=many")
        page.locator(f"#cell-{count}").wait_for()
        opened, worked = time.perf_counter() - began, busy.seconds()
        for number in (1, count // 2, count):
            page.get_by_label("Cell", exact=True).fill(str(number))
            page.locator(f"#cell-{number}").get_by_text(str(number - 1), exact=True).first.wait_for()
        page.get_by_label("Cell", exact=True).fill("1")
        page.locator("#cell-1").wait_for()
        for number in range(60, 901, 60):
            page.locator(f"#cell-{number}").wait_for(state="attached")
            page.get_by_role("feed").evaluate("box => { box.scrollTop = box.scrollHeight }")
        found = {
            "cells": count,
            "cells_open_seconds": round(opened, 2),
            "cells_open_busy_seconds": worked,
            "cells_longest_task_ms": page.evaluate("Math.round(Math.max(0, ...window.longTasks))"),
            "cells_in_page": page.get_by_role("article").count(),
        }
        browser.close()
    server.client.delete("/v1/sessions/many")
    return found


def renderers() -> list[int]:
    """Return the resident memory of every tab of Chromium that this program has started."""
    below = processes.below(os.getpid())
    tabs = [pid for pid in below if b"--type=renderer" in processes.read(f"/proc/{pid}/cmdline")]
    return [processes.usage(pid)[0] or 0 for pid in tabs] or [0]


class Busy:
    """Time that the main thread of a page works. Unlike a duration, it tells little of what else the machine does."""

    def __init__(self, page: Page) -> None:
        self._devtools = page.context.new_cdp_session(page)
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds(self) -> float:
        metrics = {each["name"]: each["value"] for each in self._devtools.send("Performance.getMetrics")["metrics"]}
        return round(metrics["TaskDuration"], 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Fewer pages, less output.")
    os.environ.setdefault("INGLE_ISOLATION", "none")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home))
        try:
            found = in_browser(server, 50_000_000 if quick else 1_000_000_000)
            found |= many_cells(server, 1000 if quick else 10_000)
            print(json.dumps(found), flush=True)
            pages, sessions, count = (20, 5, 100) if quick else (200, 50, 400)
            found |= asyncio.run(load(server, pages, sessions, count))
        finally:
            server.stop()
    text = json.dumps(found, indent=2)
    print(text)
    if not quick:
        (Path(__file__).parents[1] / "docs/bench/console.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
