"""What sessions and the machine use: samples of CPU and memory, and hosts that code asked for."""

from pathlib import Path

import pytest

from ingle.capacity import HostUse
from ingle.isolation.egress import host_log
from ingle.isolation.egress.host_log import HostLog
from ingle.isolation.limits.usage_samples import KEPT_SECONDS, MAX_SAMPLES, UsageSamples
from support.server import Server, problem
from support.tokens import client_with, ingle_token


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_tells_its_memory_its_limit_and_its_cpus(server: Server) -> None:
    server.make_session(limits={"memory": 512 * 1024**2})
    server.execute("data = bytearray(50_000_000)")
    told = server.client.get("/v1/sessions/main/usage").json()
    (sample,) = told["samples"]
    assert told["session_id"] == "main"
    assert 50_000_000 < sample["memory"] < told["memory_limit"] == 512 * 1024**2
    assert told["cpus"] >= 1
    # Another one is due only after some seconds, however often it is asked for.
    assert server.client.get("/v1/sessions/main/usage").json()["samples"] == [sample]


def test_a_session_tells_its_processes_and_its_files(server: Server) -> None:
    server.make_session()
    server.execute(
        "import subprocess; child = subprocess.Popen(['sleep', '60']); open('data', 'wb').write(bytes(1 << 20))"
    )
    told = server.client.get("/v1/sessions/main/usage").json()
    assert sorted(each["name"] for each in told["processes"])[-1] == "sleep"
    assert [each["memory"] for each in told["processes"]] == sorted(
        (each["memory"] for each in told["processes"]), reverse=True
    )
    assert 1 << 20 <= told["disk"] < 1 << 22
    server.execute("child.kill(); child.wait()")
    assert "sleep" not in [each["name"] for each in server.client.get("/v1/sessions/main/usage").json()["processes"]]


def test_only_the_owner_and_admins_read_what_the_machine_uses(home: Path, server: Server) -> None:
    token = ingle_token(home, "new", "alice")
    server.make_session()
    told = server.client.get("/v1/usage").json()
    assert told["sessions"] == 1
    assert 0 < told["memory_available"] < told["memory_total"]
    assert told["samples"][-1]["memory"] > 0
    with client_with(server, token) as alice:
        problem(alice.get("/v1/usage"), 403, "forbidden")
        problem(alice.get("/v1/sessions/main/usage"), 404, "session_not_found")
        problem(alice.get("/v1/sessions/main/network"), 404, "session_not_found")


@pytest.mark.level("none", "a sandbox has a proxy")
def test_without_a_proxy_a_session_says_that_hosts_are_not_recorded(server: Server) -> None:
    server.make_session()
    told = server.client.get("/v1/sessions/main/network").json()
    assert (told["hosts"], told["more"]) == ([], 0)
    assert told["notices"]


def test_samples_are_spaced_bounded_and_forgotten_after_half_an_hour() -> None:
    clock = Clock()
    samples = UsageSamples(clock)
    assert samples.read() == []
    for number in range(2 * MAX_SAMPLES):
        samples.add(cpu_seconds=number * 2.5, memory=number)
        samples.add(cpu_seconds=number * 2.5, memory=number)
        clock.now += 5.0
    found = samples.read()
    assert len(found) == MAX_SAMPLES
    assert [each.memory for each in found[-2:]] == [2 * MAX_SAMPLES - 2, 2 * MAX_SAMPLES - 1]
    assert {each.cpus for each in found[1:]} == {0.5}
    # The process was replaced, and counts from zero.
    samples.add(cpu_seconds=1.0, memory=1)
    assert samples.read()[-1].cpus == 0.2
    clock.now += KEPT_SECONDS + 1
    assert samples.read() == []


def test_hosts_are_counted_with_the_flag_that_allows_them_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_log, "MAX_HOSTS", 2)
    clock = Clock()
    log = HostLog(clock)
    log.refused("a.example:443", "a.example")
    log.reached("b.example:443")
    clock.now += 1
    log.refused("a.example:443", "a.example")
    assert log.read() == [
        HostUse("a.example:443", 0, 2, 1001.0, "--allow-host a.example"),
        HostUse("b.example:443", 1, 0, 1000.0),
    ]
    log.reached("c.example:80")
    assert [use.host for use in log.read()] == ["c.example:80", "a.example:443"]
    assert log.forgotten == 1
