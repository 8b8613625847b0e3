"""The audit log: who did what, without what they wrote, in lines that nobody can forge."""

import asyncio
import contextlib
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.callers import IMPLIED, Caller
from ingle.service import Service
from ingle.support import audit_log
from ingle.support.audit_log import Audit
from support.service import make_settings
from support.waiting import until


def lines(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "audit.log").read_text().splitlines()]


async def test_it_tells_who_did_what_and_never_what_they_wrote(mark: str, home: Path) -> None:
    settings = make_settings(preload=[], pool=1, isolation="limits", audit="on")
    async with Service.local(settings, home) as service:
        other = service.acting_for(Caller("token", "other", IMPLIED["admin"]))
        await service.create_session("s")
        await service.execute("s", "hidden = 'do not keep this'")
        await service.execute("s", "import os; os.kill(os.getpid(), 9)")
        await service.shell("echo do not keep this")
        with contextlib.suppress(errors.NotGranted):
            await other.create_session("t", cwd="/etc")
        await other.create_session("t")
        await service.end_session("s")
    text = (home / "audit.log").read_text()
    assert "do not keep this" not in text
    assert (home / "audit.log").stat().st_mode & 0o777 == 0o600
    code = b"hidden = 'do not keep this'"
    about = [{name: each[name] for name in each if name != "time"} for each in lines(home)]
    limits = {"isolation": "limits"}
    assert about[:2] == [
        {"action": "session_made", "tenant": "", "session": "s", **limits, "network": "full"},
        {
            "action": "cell",
            "tenant": "",
            "session": "s",
            "cell": 1,
            **limits,
            "sha256": hashlib.sha256(code).hexdigest(),
            "size": len(code),
        },
    ]
    assert [(each["action"], each["tenant"], each.get("session")) for each in about[2:]] == [
        ("cell", "", "s"),
        ("worker_ended", "", "s"),
        ("shell", "", None),
        ("refused", "other", "t"),
        ("session_made", "other", "t"),
        ("session_ended", "", "s"),
        ("session_ended", "other", "t"),
    ]
    assert about[3]["signal"] == "SIGKILL"
    assert "--mount /etc" in about[5]["reason"]


async def test_without_the_setting_there_is_none(service: Service, home: Path) -> None:
    await service.create_session("s")
    await service.execute("s", "1")
    assert not (home / "audit.log").exists()


async def test_a_line_is_one_line_of_plain_characters_whatever_is_noted(tmp_path: Path) -> None:
    log = Audit(tmp_path)
    hostile = 'a\n{"action": "forged"}\x1b[2J\x7f\x9b\u202e\ud800'
    log.note("refused", tenant=hostile, session=hostile, code=hostile, reason=hostile)
    await log.close()
    text = (tmp_path / "audit.log").read_bytes()
    assert text.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in text[:-1])
    assert lines(tmp_path)[0]["reason"] == hostile


async def test_it_is_bounded_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 2000)
    monkeypatch.setattr(audit_log, "WRITE_DELAY_SECONDS", 0.0)
    log, second = Audit(tmp_path), Audit(tmp_path)
    for number in range(200):
        (log if number % 2 else second).note("cell", session=f"s{number}")
        await asyncio.sleep(0.001)
    await log.close()
    await second.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[-4:] == [f"audit.log.{number}" for number in range(1, 5)]
    kept = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert "s199" in {each["session"] for each in kept}
    assert "s0" not in {each["session"] for each in kept}
    assert all(path.stat().st_size < 3000 for path in tmp_path.iterdir())


def test_at_its_end_lines_that_wait_for_a_thread_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loop of its own: one thread for all would be too few for the tests that follow."""
    monkeypatch.setattr(audit_log, "WRITE_DELAY_SECONDS", 0.0)

    async def close_while_the_thread_is_busy() -> None:
        loop, busy = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, busy.wait)
        log = Audit(tmp_path)
        log.note("cell")
        assert await until(lambda: not log._waiting)
        closing = asyncio.create_task(log.close())
        await asyncio.wait({closing}, timeout=0.05)  # whatever it does at once
        busy.set()
        await closing

    asyncio.run(close_while_the_thread_is_busy())
    assert [each["action"] for each in lines(tmp_path)] == ["cell"]


async def test_when_the_disk_is_behind_the_rest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_WAITING", 3)
    log = Audit(tmp_path)
    for _ in range(5):
        log.note("cell")
    await log.close()
    assert [each["action"] for each in lines(tmp_path)] == ["cell", "cell", "cell", "left_out"]
    assert lines(tmp_path)[-1]["count"] == 2


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    log = Audit(tmp_path)
    log.note("cell")
    await log.close()
    assert (tmp_path / "elsewhere").read_text() == "kept"
    assert "audit log were lost" in caplog.text
