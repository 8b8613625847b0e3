"""The processes of a local cluster, with a program in the place of Ray."""

import sys
from pathlib import Path

import pytest

from ingle import errors
from ingle.cluster.ray.local import STARTS, LocalCluster

RAY = """#!/bin/sh
echo x >> {count}
if [ $(wc -l < {count}) -le {slow} ]; then
    echo 'Exception: The current node timed out during startup.'
    exit 1
fi
echo 'Ray runtime started.'
exec sleep 60
"""


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    made = LocalCluster(tmp_path / "home")
    made.prepare()
    return made


def replace_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int) -> Path:
    """Have a `ray` that is too slow so many times; the file with a line for each start."""
    count, program = tmp_path / "count", tmp_path / "ray"
    program.write_text(RAY.format(count=count, slow=slow))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return count


def test_a_node_that_ray_finds_too_slow_is_started_again(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = replace_ray(tmp_path, monkeypatch, STARTS - 1)
    try:
        assert cluster.start_node().alive
        assert len(count.read_text().split()) == STARTS
    finally:
        cluster.down()


def test_a_node_that_never_starts_is_given_up(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = replace_ray(tmp_path, monkeypatch, 100)
    with pytest.raises(errors.StartFailed, match="timed out"):
        cluster.start_node()
    assert len(count.read_text().split()) == STARTS
    cluster.down()
