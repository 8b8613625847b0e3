"""The log: what is in it, where it goes, in which form, and what is never in it."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ingle.support.logs import logging_to
from support.server import Server, raw_exchange
from support.service import make_settings
from support.waiting import wait_until

SECRET = "s3cret-word"


def use(server: Server) -> None:
    """A session, cells of every end, and a worker that dies, with a word in code and output that must stay there."""
    server.make_session()
    server.execute(f"print('{SECRET}')")
    server.execute("1/0")
    server.execute("import os; os._exit(3)")
    httpx.get(f"{server.url}/v1/sessions?token={server.token}", headers={"Authorization": f"Bearer {SECRET}"})
    raw_exchange(server.port, f"GET /{SECRET} no http\r\n\r\n".encode())
    server.client.delete("/v1/sessions/main")


@pytest.mark.req("log.config")
def test_sessions_cells_and_workers_are_told_in_json_with_durations_and_reasons(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "ingle.log"
    server = start("--log-level", "info", "--log-file", str(file), "--log-format", "json")
    use(server)
    server.stop()
    text = file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    told = [(line["event"], line.get("cell"), line.get("status") or line.get("reason")) for line in lines]
    for expected in (
        ("session made", None, None),
        ("worker started", None, None),
        ("cell begun", 1, None),
        ("cell ended", 1, "ok"),
        ("cell ended", 2, "error"),
        ("cell ended", 3, "exit"),
        ("worker ended", None, "failed"),
        ("worker ended", None, "ended"),
        ("session ended", None, "asked for"),
    ):
        assert expected in told, told
    for line in lines:
        assert line["level"] == "info"
        assert line["time"] > 0
        if line["event"] in ("session made", "worker started", "cell ended", "session ended"):
            assert line["seconds"] >= 0
        if line["event"] == "worker ended":
            assert line["how"]
    assert {line["session"] for line in lines if not line["event"].startswith("isolation ")} == {"main"}
    for secret in (SECRET, server.token, "print", "ZeroDivisionError"):
        assert secret not in text
        assert secret not in "".join(server.said)


@pytest.mark.req("log.config")
def test_text_goes_to_standard_error_and_the_level_says_how_much(start: Callable[..., Server]) -> None:
    server = start("--log-level", "info")
    use(server)
    server.stop()
    said = "".join(server.said)
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info cell ended session=main cell=1 status=ok seconds=0\.\d{6}$",
        said,
        re.MULTILINE,
    ), said
    assert SECRET not in said
    assert server.token not in said
    quiet = start()
    use(quiet)
    quiet.stop()
    assert "cell" not in "".join(quiet.said)


@pytest.mark.req("log.config")
def test_a_reader_that_stops_costs_lines_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def __init__(self) -> None:
            import threading

            self.gate = threading.Event()

        def write(self, text: str) -> None:
            self.gate.wait(60)

        def flush(self) -> None: ...

    stuck = Stuck()
    monkeypatch.setattr(sys, "stderr", stuck)
    monkeypatch.setattr("ingle.support.logs.FLUSH_SECONDS", 0.1)
    with logging_to(make_settings(log_level="info")):
        for number in range(30_000):
            logging.getLogger("ingle.test").info("line %d", number)
    # Nothing was written, and it came to an end all the same.
    stuck.gate.set()
    logging.getLogger().setLevel(logging.WARNING)


@pytest.mark.req("log.config")
def test_a_file_that_was_moved_away_is_made_anew_and_an_exception_is_one_line_of_json(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(make_settings(log_file=str(file), log_format="json")):
        logging.getLogger("ingle.test").warning("first")
        assert wait_until(lambda: "first" in file.read_text())
        file.rename(tmp_path / "log.1")
        try:
            raise RuntimeError("broken\nin two")
        except RuntimeError:
            logging.getLogger("ingle.test").exception("second")
    [line] = file.read_text().splitlines()
    assert (json.loads(line)["event"], json.loads(line)["level"]) == ("second", "error")
    assert "broken\nin two" in json.loads(line)["traceback"]
    logging.getLogger().setLevel(logging.WARNING)
