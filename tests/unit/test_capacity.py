"""Capacity of a machine, from the files in which the kernel tells its limits."""

import resource
from pathlib import Path

import pytest

from ingle.sessions import capacity
from ingle.settings import Settings

GIB = 1024**3
PLENTY = {"pid_max": "4194304", "threads-max": "4194304", "memory": 1024 * GIB}


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity.resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def machine(root: Path, groups: dict[str, str] | None = None, **given: str | int) -> Path:
    """Write the files of a machine with these limits. `groups` are files in the cgroups of this process."""
    facts = {**PLENTY, **given}
    kernel = root / "proc/sys/kernel"
    kernel.mkdir(parents=True)
    for name in ("pid_max", "threads-max"):
        (kernel / name).write_text(f"{facts[name]}\n")
    (root / "proc/meminfo").write_text(f"MemTotal:       {int(facts['memory']) // 1024} kB\n")
    (root / "proc/self").mkdir()
    (root / "proc/self/mountinfo").write_text("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (root / "proc/self/cgroup").write_text("0::/system/ingle\n")
    for name, text in (groups or {}).items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.req("scale.bounds")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    ("given", "groups", "sessions", "bound"),
    [
        ({"pid_max": "32768"}, {}, 14336, "kernel.pid_max is 32768"),
        ({"threads-max": "8000"}, {}, 3500, "kernel.threads-max is 8000"),
        ({"memory": 16 * GIB}, {}, 7168, "the memory of this machine is 16.0 GiB"),
        (
            {},
            {"system/ingle/pids.max": "800\n", "system/pids.max": "max\n"},
            350,
            "pids.max of this control group is 800",
        ),
        ({}, {"system/ingle/pids.max": "max\n", "system/pids.max": "80\n"}, 35, "pids.max of this control group is 80"),
        (
            {"memory": 16 * GIB},
            {"system/ingle/memory.max": str(4 * GIB)},
            1792,
            "the memory that this control group may use is 4.0 GiB",
        ),
    ],
)
def test_the_lowest_bound_counts_and_is_named(
    tmp_path: Path, given: dict[str, str | int], groups: dict[str, str], sessions: int, bound: str
) -> None:
    held = capacity.measure(Settings(), root=machine(tmp_path, groups, **given))
    assert (held.sessions, held.bound) == (sessions, bound)
    assert held.sentence == f"up to {sessions} sessions at once, because {bound}"
    assert held.remedy


@pytest.mark.req("scale.bounds")
@pytest.mark.parametrize(
    ("files", "network", "sessions", "connections"),
    [
        (20_000, "full", 10_648, 4096),
        (20_000, "none", 10_648, 4096),
        (20_000, "allowlist", 5_324, 4096),
        (1024, "full", 256, 256),
        (16, "full", 4, 4),
    ],
)
def test_open_files_bound_sessions_and_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, network: str, sessions: int, connections: int
) -> None:
    limits = {resource.RLIMIT_NOFILE: (min(files, 1024), files)}
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(capacity.resource, "getrlimit", lambda kind: limits.get(kind, none))
    held = capacity.measure(Settings(), network, machine(tmp_path))
    assert (held.sessions, held.connections) == (sessions, connections)
    each = 2 if network == "allowlist" else 1
    assert held.bound == f"this process may open {files} files, and an idle session takes {each}"


@pytest.mark.req("scale.bounds")
@pytest.mark.usefixtures("many_files")
def test_the_setting_lowers_the_number_and_never_raises_it(tmp_path: Path) -> None:
    root = machine(tmp_path, pid_max="800")
    assert capacity.measure(Settings(max_sessions=7), root=root).sessions == 7
    assert capacity.measure(Settings(max_sessions=7), root=root).bound == "the setting max_sessions is 7"
    assert capacity.measure(Settings(max_sessions=5000), root=root).sessions == 350
