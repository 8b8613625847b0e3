"""Limits that a session asks for: they hold without a sandbox too, or the session is refused.

Apart from `test_limits_hold`, whose server runs until its last test, beside which no service may be patched.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.isolation.limits import cgroup_mounts, disk_usage
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.isolation.limits.watchdog import CLEANUP_BYTES, Watchdog, Watched
from ingle.requests import SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from support.cells import value
from support.service import make_settings
from support.waiting import wait_until

pytestmark = [pytest.mark.req("safe.isolation")]

MIB = 1024**2

HAS_GROUPS = os.geteuid() == 0 and cgroup_mounts.PROCESSES in cgroup_mounts.find_places(Path("/"))


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="limits")


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_without_isolation_the_limits_that_were_asked_for_hold(mark: str, home: Path, method: str) -> None:
    async with Service.local(make_settings(preload=[], pool=1, isolation="none", start_method=method), home) as service:
        made = await service.create_session("s", limits=SessionLimits(files=200, file_size=5 * MIB))
        assert made.limits == SessionLimits(files=200, file_size=5 * MIB)
        code = "import resource as r; r.getrlimit(r.RLIMIT_NOFILE)[1], r.getrlimit(r.RLIMIT_FSIZE)[1]"
        assert await value(service, "s", code) == f"(200, {5 * MIB})"
        told = await service.shell("ulimit -n; ulimit -f", session_id="s")
        assert told.stdout == f"200\n{5 * 1024}\n"


async def test_a_limit_that_does_not_hold_is_named_and_the_session_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitApplier, "of_process", lambda self, wanted: {})
    with pytest.raises(errors.LimitUnavailable, match="the limit files: files is 1024"):
        await service.create_session("s", limits=SessionLimits(files=200))
    assert [each.session_id for each in await service.list_sessions()] == []


@pytest.mark.skipif(not HAS_GROUPS, reason="no cgroup can be made here")
async def test_a_limit_that_the_cgroup_refuses_is_named_and_the_session_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = Group.bound

    def refuse(group: Group, memory: int | None, processes: int | None) -> None:
        if processes == 20:
            raise OSError(22, "no such limit")
        bound(group, memory, processes)

    monkeypatch.setattr(Group, "bound", refuse)
    with pytest.raises(errors.LimitUnavailable, match="memory or processes"):
        await service.create_session("s", limits=SessionLimits(processes=20))


def test_what_may_be_written_after_a_breach_is_not_raised_by_the_next(tmp_path: Path) -> None:
    watched = Watched(0, SessionLimits(disk=MIB), lambda limit: None, folder=tmp_path)
    watchdog = Watchdog(lambda only_running: [watched])

    def written(mib: int) -> list[str]:
        (tmp_path / "file").write_bytes(bytes(mib * MIB))
        for each in watchdog._disks.values():
            each.due = 0.0
        return [limit for _, limit in watchdog._full([watched])]

    more = CLEANUP_BYTES // MIB
    found: list[Any] = [written(mib) for mib in (0, 2, 3, 3 + more, 4 + more, 5 + more, 3, 0, 2)]
    killed = ["disk limit 1 MiB"]
    assert found == [[], killed, [], killed, killed, killed, [], [], killed]


def test_files_are_counted_again_only_after_something_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Path] = []
    of_session = disk_usage.of_session

    def count(folder: Path, kept: Iterable[str], pids: Iterable[int], user: int) -> disk_usage.Usage:
        counted.append(folder)
        return of_session(folder, kept, pids, user)

    monkeypatch.setattr(disk_usage, "of_session", count)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        watched = Watched(program.pid, SessionLimits(disk=MIB), lambda limit: None, folder=tmp_path)
        watchdog = Watchdog(lambda only_running: [watched])

        def look() -> int:
            for each in watchdog._disks.values():
                each.due = 0.0
            watchdog._full([watched])
            return len(counted)

        assert wait_until(lambda: look() == look(), 10)
        at_rest = look()
        assert look() == at_rest
        program.stdin.write(b"x\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"x\n"
        assert look() == at_rest + 1
        program.stdin.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="as root each session has a user of its own")
class TestManyProcessesOfThisUser:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(isolation="restricted", limit_processes=12)

    async def test_they_do_not_count_as_the_sessions(self, service: Service) -> None:
        await service.create_session("s")
        others = [subprocess.Popen(["sleep", "60"]) for _ in range(24)]
        try:
            code = "import threading\nthread = threading.Thread(target=print, args=(1,))\nthread.start(); thread.join()"
            result = await service.execute("s", code)
            assert (result.status, result.stdout) == ("ok", "1\n")
        finally:
            for each in others:
                each.kill()
                each.wait()
